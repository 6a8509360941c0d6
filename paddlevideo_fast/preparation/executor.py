"""Where the tasks of a tool run: in processes of this machine, or on the workers of a Dask cluster.

One loop feeds a `concurrent.futures.Executor`, whichever it is:

    --scheduler local             a ProcessPoolExecutor, or this process alone with --workers 1
    --scheduler tcp://HOST:PORT   a Dask cluster that runs
    --scheduler FILE.yaml         a Dask cluster whose workers are jobs of Slurm, see `read_cluster_file`

Tasks travel in batches of about half a second, so that a million short tasks do not pay for a million
messages. A batch whose worker is lost is done again elsewhere: a task may run twice, also at the same time.
So tasks write each output under a name of its own and rename it, and the same task gives the same bytes.
"""

import contextlib
import inspect
import logging
import os
import signal
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import av
import cv2
from tqdm import tqdm

import paddlevideo_fast
from paddlevideo_fast.config.yaml_source import parse
from paddlevideo_fast.errors import MissingExtraError, PaddleVideoFastError
from paddlevideo_fast.io.files import read_text
from paddlevideo_fast.io.locks import Lock
from paddlevideo_fast.loader.worker_process import end_with
from paddlevideo_fast.preparation.run import ToolError, duration
from paddlevideo_fast.registry import did_you_mean

LOCAL = "local"

_BATCH_SEC = 0.5
_LEAST_BATCH_SEC = 0.05  # towards the end
_POLL_SEC = 1.0
_CONNECT_SEC = 20
_PATIENCE_SEC = 10.0  # until a file that one machine has written must be seen by another
_MAX_CLUSTER_BYTES = 2**20

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Engine(NamedTuple):
    """Where tasks run.

    Attributes:
        workers: processes of this machine; 0 and 1: this process.
        scheduler: "local", the address of a Dask scheduler, or a YAML file of a Dask cluster to start. With
            one of the last two, `workers` has no effect.
    """

    workers: int = 1
    scheduler: str = LOCAL


class Site(NamedTuple):
    """What a worker on another machine must see.

    Attributes:
        lock: of the output, which the run holds; None: it has none.
        folders: that tasks read.
    """

    lock: Lock | None = None
    folders: Sequence[str] = ()


def run_all(
    function: Callable[[Argument], Result],
    tasks: Sequence[Argument],
    engine: Engine,
    what: str,
    site: Site = Site(),  # noqa: B008
    each: Callable[[Argument, Result], None] | None = None,
) -> Iterator[Result]:
    """Calls `function` on each task somewhere, shows progress, and yields results in task order.

    Args:
        function: a function of a module; its argument and its result are pickled. It may be called twice on a
            task.
        tasks: its arguments; paths in them are absolute, see `located`.
        engine: where.
        what: name of the tasks in the progress, such as "videos".
        site: what a worker elsewhere must see.
        each: called in this process once for each task, as soon as its result is here.

    Raises:
        ToolError: a process died, the scheduler is away, or a worker does not fit.
    """
    ready: dict[int, Result] = {}
    place = 0
    with _executor(engine, len(tasks), site) as pool:
        for done, result in _progress(_completed(pool, function, tasks), len(tasks), what):
            if each:
                each(tasks[done], result)
            ready[done] = result
            while place in ready:
                yield ready.pop(place)
                place += 1


def located(path: Any) -> str:
    """A path as a worker finds it, whatever folder it runs in; a URL stays."""
    text = str(path)
    return text if "://" in text else os.path.join(os.getcwd(), text)


def common_folder(paths: Sequence[str]) -> list[str]:
    """The folder that local files have in common, for `Site.folders`; none where it says nothing."""
    folders = {os.path.dirname(path) for path in paths if "://" not in path}
    common = os.path.commonpath(folders) if folders else ""
    return [common] if os.path.isdir(common) else []


# --- one loop for all executors


class _Pool:
    """An executor, what its tasks are wrapped in, and what its errors mean; this one is a process pool."""

    def __init__(self, executor: Executor, num_slots: int) -> None:
        self.executor: Any = executor  # that of Dask takes more keywords than others
        self.num_slots = num_slots

    def submit(self, function: Callable, tasks: Sequence[Any]) -> Future:
        return self.executor.submit(_serve, function, tasks)

    def watch(self) -> None:
        """Called about once a second while tasks run; raises `ToolError` where there is no use in waiting."""

    def meaning(self, error: BaseException) -> BaseException:
        """What to raise for the error of a batch."""
        if isinstance(error, BrokenProcessPool):
            return ToolError("a worker process died (out of memory?); try fewer --workers")
        return error


def _completed(pool: _Pool, function: Callable, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Place and result of each task, in the order in which they are done."""
    first, size, task_sec = 0, 1, 0.0
    under_way: dict[Future, range] = {}
    while first < len(tasks) or under_way:
        while first < len(tasks) and len(under_way) < pool.num_slots:
            batch = range(first, min(first + size, len(tasks)))
            under_way[pool.submit(function, [tasks[place] for place in batch])] = batch
            first = batch.stop
        finished, _ = wait(under_way, timeout=_POLL_SEC, return_when=FIRST_COMPLETED)
        for future in finished:
            batch = under_way.pop(future)
            try:
                results, error, spent_sec = future.result()
            except (Exception, CancelledError) as problem:
                meaning = pool.meaning(problem)
                raise meaning from (None if meaning is problem else problem)
            yield from zip(batch, results)
            if error:
                raise error
            task_sec = max(spent_sec / len(batch), 1e-6, task_sec / 2)
            rest = (len(tasks) - first) // (2 * pool.num_slots)  # so that all end at about one time
            least, most = (int(sec / task_sec) for sec in (_LEAST_BATCH_SEC, _BATCH_SEC))
            size = max(1, min(most, 4 * len(batch), max(rest, least)))
        pool.watch()


def _serve(
    function: Callable, tasks: Sequence[Any], check: Callable[[], None] = lambda: None
) -> tuple[list[Any], PaddleVideoFastError | None, float]:
    """Does a batch: the results up to the first error of a user's, that error, and the seconds."""
    began_sec = time.monotonic()
    results, problem = [], None
    for task in tasks:
        try:
            check()
            results.append(function(task))
        except PaddleVideoFastError as error:
            problem = error
            break
    return results, problem, time.monotonic() - began_sec


def _progress(results: Iterator[Result], total: int, what: str) -> Iterator[Result]:
    """Passes `results` on; shows a bar on a terminal and about ten plain lines elsewhere."""
    if sys.stderr.isatty():
        yield from tqdm(results, total=total, desc=what)
        return
    step = max(1, total // 10)
    began_sec = time.monotonic()
    for count, result in enumerate(results, 1):
        yield result
        if count % step == 0 or count == total:
            per_sec = count / max(time.monotonic() - began_sec, 1e-9)
            left = duration((total - count) / per_sec)
            print(f"{what}: {count}/{total}, {per_sec:.3g}/s, {left} left", flush=True)


@contextlib.contextmanager
def _executor(engine: Engine, num_tasks: int, site: Site) -> Iterator[_Pool]:
    if not num_tasks:
        yield _Pool(_InThisProcess(), 1)
    elif engine.scheduler != LOCAL:
        with _cluster(engine.scheduler) as (client, name):
            yield _Cluster(client, name, site)
    elif engine.workers <= 1 or num_tasks == 1:
        yield _Pool(_InThisProcess(), 1)
    else:
        workers = min(engine.workers, num_tasks)
        pool = ProcessPoolExecutor(workers, initializer=_start_worker, initargs=(os.getpid(),))
        try:
            yield _Pool(pool, 2 * workers)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(parent: int) -> None:
    end_with(parent)
    cv2.setNumThreads(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer


class _InThisProcess(Executor):
    """Calls a function when it is submitted."""

    def submit(self, function: Callable, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


# --- a Dask cluster


def _versions() -> dict[str, str]:
    """What decides the bytes of an output, beside the task."""
    return {"paddlevideo_fast": paddlevideo_fast.__version__, "av": av.__version__, "cv2": cv2.__version__}


class _Batch(NamedTuple):
    """Tasks for a worker of a cluster.

    Attributes:
        function: for each task.
        tasks: its arguments.
        site: what the worker must see.
        scheduler: name of the cluster, for errors.
        versions: see `_versions`.
    """

    function: Callable
    tasks: Sequence[Any]
    site: Site
    scheduler: str
    versions: dict[str, str]

    def do(self) -> tuple[list[Any], PaddleVideoFastError | None, float]:
        """Does the tasks; see `_serve`."""
        cv2.setNumThreads(0)
        try:
            self._check_worker()
            return _serve(self.function, self.tasks, self._check_run)
        except ToolError as error:
            return [], error, 0.0
        except Exception:  # as text: any exception need not survive the way, and its traceback does not
            raise RuntimeError(f"error in a worker:\n{traceback.format_exc()}") from None

    def _check_worker(self) -> None:
        worker = f"the worker on {socket.gethostname()} (process {os.getpid()})"
        differing = [
            f"{name} {there}, and here it is {self.versions[name]}"
            for name, there in _versions().items()
            if there != self.versions[name]
        ]
        if differing:
            raise ToolError(
                f"--scheduler {self.scheduler}: {worker} has {'; '.join(differing)}: install the same "
                "versions there, and run the same command again"
            )
        for folder in self.site.folders:
            if not os.path.isdir(folder):
                raise ToolError(
                    f"{folder}: {worker} does not see this folder; put the data where all workers of "
                    f"{self.scheduler} see it under the same path"
                )
        lock = self.site.lock
        deadline = time.monotonic() + _PATIENCE_SEC
        while lock and not lock.is_seen:
            if time.monotonic() > deadline:
                raise ToolError(
                    f"{os.path.dirname(lock.path)}: {worker} does not see what this run writes there; give "
                    f"an --output that all workers of {self.scheduler} share under the same path"
                )
            time.sleep(0.2)

    def _check_run(self) -> None:
        """A run that was killed, and whose worker was not, must not write into the output of the next one."""
        lock = self.site.lock
        if lock and not lock.is_seen:
            raise ToolError(f"{os.path.dirname(lock.path)}: the run that this task was for has ended")


class _Cluster(_Pool):
    """The workers of a Dask cluster."""

    def __init__(self, client: Any, name: str, site: Site) -> None:
        super().__init__(client.get_executor(pure=False), 1)
        self._client = client
        self._name = name
        self._site = site
        self._num_workers = -1
        self._looked_sec = -_POLL_SEC
        self.watch()

    def submit(self, function: Callable, tasks: Sequence[Any]) -> Future:
        batch = _Batch(function, tasks, self._site, self._name, _versions())
        key = f"paddlevideo_fast-{function.__name__.strip('_')}-{uuid.uuid4().hex}"  # the dashboard shows it
        return self.executor.submit(_Batch.do, batch, key=key)

    def watch(self) -> None:
        if time.monotonic() - self._looked_sec < _POLL_SEC:
            return
        try:
            threads = self._client.nthreads() if self._client.status == "running" else {}
        except (OSError, ValueError, TimeoutError) as error:
            raise self._away() from error
        if self._client.status != "running":
            raise self._away()
        self._looked_sec = time.monotonic()
        self.num_slots = 2 * max(1, sum(threads.values()))
        if len(threads) != self._num_workers:
            self._num_workers = len(threads)
            waits = "" if threads else "; waiting for some"
            print(f"workers of {self._name}: {len(threads)}{waits}", flush=True)

    def _away(self) -> ToolError:
        return ToolError(
            f"--scheduler {self._name}: the scheduler is away; what is finished is kept: start it, and run "
            "the same command again"
        )

    def meaning(self, error: BaseException) -> BaseException:
        from distributed import CancelledError as Cancelled
        from distributed import KilledWorker
        from distributed.comm import CommClosedError

        if isinstance(error, (CancelledError, Cancelled, CommClosedError)):
            return self._away()
        if isinstance(error, KilledWorker):
            return ToolError(
                f"--scheduler {self._name}: several workers, one after the other, died over the same tasks "
                "(out of memory, or another version of paddlevideo_fast or Python?); see their logs. What is "
                "finished is kept"
            )
        return error


@contextlib.contextmanager
def _cluster(scheduler: str) -> Iterator[tuple[Any, str]]:
    """A client of the cluster, and what messages call the cluster."""
    try:
        from distributed import Client
    except ImportError:
        raise MissingExtraError("distributed", "dask", f"--scheduler {scheduler}") from None

    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet())
        address: Any = scheduler
        if "://" not in scheduler:
            address = stack.enter_context(_start_cluster(Path(scheduler)))
        try:
            client = Client(address, timeout=_CONNECT_SEC, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise ToolError(
                f"--scheduler {scheduler}: no Dask scheduler answers there ({error}); start one with  dask "
                "scheduler"
            ) from error
        stack.enter_context(client)
        yield client, scheduler


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Reports of Dask and its loop of lost connections give way to our one sentence."""
    names = ("distributed", "distributed.client", "distributed.core", "tornado.application")
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before):
            logger.setLevel(level)


# --- a cluster whose workers are jobs

_CLUSTERS = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "sge": "SGECluster",
    "lsf": "LSFCluster",
    "moab": "MoabCluster",
    "oar": "OARCluster",
    "htcondor": "HTCondorCluster",
    "local": "local.LocalCluster",  # runs the job script on this machine: for trying a file
}
_NOT_OURS = (
    "self",
    "scheduler",
    "config_name",
    "security",
    "loop",
    "asynchronous",
    "job_cls",
    "n_workers",
    "host",
)


class _ClusterFile(NamedTuple):
    """What the YAML file of a cluster says.

    Attributes:
        cluster: the kind, a key of `_CLUSTERS`.
        jobs: how many to submit.
        arguments: of the class in dask-jobqueue.
    """

    cluster: str
    jobs: int
    arguments: dict[str, Any]


def read_cluster_file(path: Path) -> _ClusterFile:
    """Reads and checks a file such as

        cluster: slurm
        jobs: 8
        arguments: {queue: cpu, cores: 16, processes: 16, memory: 32GB, walltime: "24:00:00"}

    Raises:
        ConfigError: it is no YAML.
        ToolError: it cannot be read, or a key or value does not fit; the message has file and line.
    """
    try:
        source = parse(read_text(path, _MAX_CLUSTER_BYTES), str(path))
    except OSError as error:
        hint = "give local, tcp://HOST:PORT, or a YAML file"
        raise ToolError(f"--scheduler {path}: cannot be read: {error.strerror or error}; {hint}") from error

    def wrong(key: tuple[str, ...], text: str) -> ToolError:
        return ToolError(f"{path}:{source.lines.get(key, 1)}: {text}")

    data = source.data if isinstance(source.data, dict) else {}
    for key in data:
        if key not in _ClusterFile._fields:
            hint = did_you_mean(key, _ClusterFile._fields)
            raise wrong((key,), f"{key}: unknown{hint}; known are {', '.join(_ClusterFile._fields)}")
    kind, jobs, arguments = data.get("cluster"), data.get("jobs"), data.get("arguments")
    if kind not in _CLUSTERS:
        raise wrong(("cluster",), f"cluster is {kind}; known are {', '.join(_CLUSTERS)}")
    if type(jobs) is not int or jobs < 1:
        raise wrong(("jobs",), f"jobs is {jobs}; must be a whole number from 1 on: how many to submit")
    if not isinstance(arguments, dict):
        raise wrong(
            ("arguments",), f"arguments is {arguments}; must be a mapping, such as of cores and memory"
        )
    known = _arguments_of(_cluster_class(kind))
    for key in arguments:
        if key not in known:
            hint = did_you_mean(key, known)
            raise wrong(("arguments", key), f"arguments.{key}: {kind} has no such argument{hint}")
    return _ClusterFile(kind, jobs, arguments)


def _cluster_class(kind: str) -> Any:
    try:
        import dask_jobqueue
        import dask_jobqueue.local
    except ImportError:
        raise MissingExtraError("dask-jobqueue", "dask", f"cluster: {kind}") from None
    found: Any = dask_jobqueue
    for name in _CLUSTERS[kind].split("."):
        found = getattr(found, name)
    return found


def _arguments_of(cluster: Any) -> tuple[str, ...]:
    """Names that a cluster class takes: its own, of its jobs, and of all jobs."""
    classes = [*cluster.__mro__, *cluster.job_cls.__mro__]
    functions = [
        vars(cls)["__init__"]
        for cls in classes
        if cls.__module__.startswith("dask_jobqueue") and "__init__" in vars(cls)
    ]
    parameters = [one for function in functions for one in inspect.signature(function).parameters.values()]
    names = (one.name for one in parameters if one.kind is not one.VAR_KEYWORD)
    return tuple(dict.fromkeys(name for name in names if name not in _NOT_OURS))


@contextlib.contextmanager
def _start_cluster(path: Path) -> Iterator[Any]:
    """Submits the jobs of a cluster file; at the end, their scheduler and the jobs end."""
    given = read_cluster_file(path)
    try:
        cluster = _cluster_class(given.cluster)(**given.arguments)
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        raise ToolError(f"{path}: {given.cluster} does not start: {error}") from error
    try:
        cluster.scale(jobs=given.jobs)
        yield cluster
    finally:
        cluster.close()
