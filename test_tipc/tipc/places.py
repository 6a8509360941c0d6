"""Where a training runs: an entry of `gpu_list`.

`-1` is a process on the CPU and `0` one on that GPU; `-1,-1` and `0,1` are two processes of one run;
`10.0.0.1,10.0.0.2;0,1` are two on each of two machines, on each of which the same command is started.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass

from test_tipc.tipc.text import Line, TipcError

_CPU = "-1"
_DEFAULT_PORT = "6170"


@dataclass(frozen=True)
class Place:
    """Devices of one training.

    Attributes:
        devices: device of each process of a machine: number of a GPU, or -1 for the CPU.
        ips: addresses of the machines; empty: this machine alone.
        node: place of this machine in `ips`.
    """

    devices: tuple[str, ...]
    ips: tuple[str, ...] = ()
    node: int = 0

    @property
    def on_cpu(self) -> bool:
        """Whether no GPU is asked for."""
        return self.devices[0] == _CPU

    @property
    def num_nodes(self) -> int:
        """Number of machines."""
        return max(1, len(self.ips))

    @property
    def name(self) -> str:
        """The devices as part of a file's name."""
        return ",".join(self.devices)

    @property
    def launched(self) -> bool:
        """Whether a launcher starts the training: it has several processes."""
        return len(self.devices) > 1 or bool(self.ips)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that choose the GPU of a command that no launcher starts."""
        return {"CUDA_VISIBLE_DEVICES": "" if self.on_cpu else self.devices[0]}

    def obstacle(self, num_gpus: int) -> str | None:
        """Why this place cannot be used where Paddle finds so many GPUs; None where it can."""
        if self.on_cpu and self.launched and num_gpus:
            return "processes of one run on the CPU need Paddle's CPU build"
        if self.on_cpu or max(map(int, self.devices)) < num_gpus:
            return None
        return f"it asks for GPU {self.name}, and Paddle finds {num_gpus or 'none'} here"

    def launcher(self, log_dir: str) -> list[str]:
        """The words in front of a script that start its processes; none for one process."""
        if not self.launched:
            return []
        count = ["--nproc_per_node", str(len(self.devices))] if self.on_cpu else ["--gpus", self.name]
        words = ["tools/launch.py", *count, "--log_dir", log_dir]
        if self.ips:
            port = os.environ.get("FLAGS_START_PORT", _DEFAULT_PORT)
            words += ["--nnodes", str(self.num_nodes), "--rank", str(self.node)]
            words += ["--master", f"{self.ips[0]}:{port}", "--host", self.ips[self.node]]
        return words


def places_of(line: Line) -> list[Place]:
    """The entries of a text's gpu_list.

    Raises:
        TipcError: an entry is malformed, or names machines and this machine is not among them.
    """
    places = []
    for entry in line.choices:
        ips, _, devices = entry.rpartition(";")
        if not re.fullmatch(r"-1(,-1)*|\d+(,\d+)*", devices):
            raise TipcError(
                f"{line.place}: gpu_list: '{entry}': expected -1 for the CPU, numbers of GPUs such as 0,1, "
                "or addresses of machines before them: 10.0.0.1,10.0.0.2;0,1"
            )
        machines = tuple(ips.split(",")) if ips else ()
        places.append(Place(tuple(devices.split(",")), machines, _node(line, machines)))
    return places


def _node(line: Line, ips: tuple[str, ...]) -> int:
    """Place of this machine among the addresses: the first address that a socket can be bound to."""
    for number, ip in enumerate(ips):
        with socket.socket() as own:
            try:
                own.bind((ip, 0))
            except OSError:
                continue
            return number
    if ips:
        raise TipcError(f"{line.place}: gpu_list: none of {', '.join(ips)} is an address of this machine")
    return 0
