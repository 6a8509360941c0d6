"""A server under load on the loopback address: answers by status, their time, and the server's memory."""

import http.client
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.measuring import Positive, write_clips
from paddlevideo_fast.errors import PaddleVideoFastError

_BUSY = 503
_PAUSE_SEC = 0.05  # of a client that was refused


def run(model: str, clients: Positive = 64, seconds: Positive = 60) -> dict[str, Any]:
    """Asks a server of these flags for predictions of small videos, one after the other with each client.

    Args:
        model: what `paddlevideo-fast serve` takes.
        clients: at a time.
        seconds: of each part.

    Returns:
        "parts", for each: "statuses", number of answers by status; "other", requests
        without an answer; "answers_per_sec" with status 200, and the median and the 99th percentile of their
        time; "clips_of_batch", the mean; "memory_mib" of all processes of the server after a tenth of the
        time and at the end.

    Raises:
        PaddleVideoFastError: the server does not start.
    """
    parts = {
        "a batch of 8, 64 requests": (),
        "a batch of 1, 64 requests": ("--max_batch", "1"),
        "a batch of 8, 16 requests": ("--max_queue", "16"),
    }
    with tempfile.TemporaryDirectory() as folder:
        bodies = [path.read_bytes() for path in write_clips(Path(folder), 20, 30)]
        found = {name: _part(model, flags, bodies, clients, seconds) for name, flags in parts.items()}
    return {"parts": found}


def _part(
    model: str, flags: tuple[str, ...], bodies: list[bytes], clients: int, seconds: int
) -> dict[str, Any]:
    words = [sys.executable, "-m", "paddlevideo_fast", "serve", model, "--port", "0", *flags]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next((line for line in process.stderr if " answers at " in line), None)
        if line is None:
            raise PaddleVideoFastError(f"the server of {model} does not start")
        port = int(line.partition(" ;")[0].rstrip("/").rpartition(":")[2])
        try:
            return _load(process.pid, port, bodies, clients, seconds)
        finally:
            process.terminate()


def _load(server: int, port: int, bodies: list[bytes], clients: int, seconds: int) -> dict[str, Any]:
    with ThreadPoolExecutor(clients) as pool:
        found = pool.map(partial(_ask, port, bodies, time.monotonic() + seconds), range(clients))
        time.sleep(seconds / 10)
        memory = [_memory_mib(server)]
        answers = [answer for of_client in found for answer in of_client]
    memory.append(_memory_mib(server))
    statuses = Counter(status for status, _ in answers)
    times = [sec for status, sec in answers if status == 200]
    cuts = quantiles(times, n=100)
    return {
        "statuses": {str(status): statuses[status] for status in sorted(statuses) if status},
        "other": statuses[0],
        "answers_per_sec": len(times) / seconds,
        "sec": [cuts[49], cuts[98]],
        "clips_of_batch": _mean_batch(port),
        "memory_mib": memory,
    }


def _ask(port: int, bodies: list[bytes], end: float, number: int) -> list[tuple[int, float]]:
    """What a client gets until the end: the status of each answer, 0 where there is none, and its seconds."""
    rng, connection = random.Random(number), http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    answers = []
    while (began := time.monotonic()) < end:
        status = 0
        try:
            connection.request("POST", "/predict?top_k=1", rng.choice(bodies))
            answer = connection.getresponse()
            answer.read()
            status = answer.status
        except (OSError, http.client.HTTPException):
            connection.close()
        answers.append((status, time.monotonic() - began))
        if status == _BUSY:
            time.sleep(_PAUSE_SEC)
    return answers


def _memory_mib(server: int) -> int:
    """Resident memory of a process and its children."""
    text = subprocess.run(["ps", "-eo", "pid=,ppid=,rss="], capture_output=True, text=True, check=True)
    rows = (map(int, line.split()) for line in text.stdout.splitlines())
    return sum(rss for pid, parent, rss in rows if server in (pid, parent)) // 1024


def _mean_batch(port: int) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", "/metrics")
    lines = (line.split(" ") for line in connection.getresponse().read().decode().splitlines())
    found = {line[0]: float(line[1]) for line in lines if len(line) == 2}
    name = "paddlevideo_fast_batch_clips"
    return found[f"{name}_sum"] / found[f"{name}_count"]
