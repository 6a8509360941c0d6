"""The CPU build of Paddle, made faster: the path of MKL, memory that stays with the process, waiting threads.

They are set at the start of a process that computes, by `machine.tune_process`. Results differ in their last
bits between paths of MKL.
"""

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from paddlevideo_fast.machine import MKL_PATH

_MKL_SWITCH = "PADDLEVIDEO_FAST_MKL"  # "off" leaves MKL alone

# Values of MKL_PATH, the fastest first, with the instructions that each needs, as the kernel names them.
_MKL_PATHS = (("7", {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}), ("5", {"avx2", "fma"}))

# Loads MKL and computes with it; argument: Paddle's folder of libraries.
_MKL_TRIAL = """
import ctypes, sys
from pathlib import Path
libs = Path(sys.argv[1])
ctypes.CDLL(str(libs / "libiomp5.so"), mode=ctypes.RTLD_GLOBAL)
mkl = ctypes.CDLL(str(libs / "libmklml_intel.so"))
size = 64
matrix = ctypes.c_float * size**2
a, c = matrix(*[0.5] * size**2), matrix()
one, zero = ctypes.c_float(1), ctypes.c_float(0)
mkl.cblas_sgemm(101, 111, 111, size, size, size, one, a, size, a, size, zero, c, size)
assert set(c) == {size / 4}
mkl.vsExp(size**2, a, c)
assert all(abs(value - 1.6487213) < 1e-5 for value in c)
"""


def tune_process() -> None:
    """Takes the fastest path of MKL, keeps freed memory, and lets threads sleep that wait."""
    take_mkl_path()
    keep_freed_memory()
    let_idle_threads_sleep()


def take_mkl_path(cpu_info: Path = Path("/proc/cpuinfo")) -> None:
    """Tells Paddle's MKL the fastest instructions of this processor, where it is not one of Intel.

    The CPU build of Paddle computes with MKL of 2019, which takes its slowest path on processors of others.
    The variable `MKL_DEBUG_CPU_TYPE` names another path. MKL reads it before its first computation and does
    not promise it, so each path is tried in a process of its own, once on a machine. A value that the user
    has set stays, and `PADDLEVIDEO_FAST_MKL=off` leaves MKL alone. Processes that this one starts inherit
    the value.

    Args:
        cpu_info: the kernel's description of the processors.
    """
    if MKL_PATH in os.environ or _is_off(_MKL_SWITCH):
        return
    processor, libraries = _first_processor(cpu_info), _libraries_of_paddle()
    if processor.get("vendor_id", "GenuineIntel") == "GenuineIntel" or libraries is None:
        return
    flags, model = set(processor.get("flags", "").split()), processor.get("model name", "")
    for path, needed in _MKL_PATHS:
        if needed <= flags and _mkl_works(path, model, libraries):
            os.environ[MKL_PATH] = path
            return


def _is_off(switch: str) -> bool:
    return os.environ.get(switch, "").lower() in ("off", "0")


_WAIT_VARIABLES = ("KMP_BLOCKTIME", "OMP_WAIT_POLICY")
_SPIN_MS = "1"  # longer than from one operator to the next


def let_idle_threads_sleep() -> None:
    """Lets the threads of Paddle's operators sleep after a millisecond without work.

    Intel's OpenMP library lets them spin for 200 ms, while the training process waits for a clip, reads or
    logs: on a busy machine, this time is missing where something is computed. From one operator to the next,
    they still spin. The library reads the variables when Paddle is imported. Variables that the user has set
    stay. The number of threads stays, and with it every bit of the results.
    """
    if not any(name in os.environ for name in _WAIT_VARIABLES):
        os.environ["KMP_BLOCKTIME"] = _SPIN_MS


_MALLOC_SWITCH = "PADDLEVIDEO_FAST_MALLOC"  # "off" leaves the C library alone
_MALLOC_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of mallopt(3)
_NEVER = -1


def keep_freed_memory() -> None:
    """Lets the C library keep the memory that is freed, where a tensor is given back and made anew.

    Paddle's CPU build takes the memory of each tensor from `malloc`. The GNU library gives large tensors back
    to the kernel when they are freed, and the kernel clears each page of the next one: an addition of two
    tensors of 20 MB spends five sixths of its time so. The variables of `mallopt(3)`, such as
    `MALLOC_TRIM_THRESHOLD_`, go before this, and `PADDLEVIDEO_FAST_MALLOC=off` turns it off. Other libraries
    and systems are left alone.
    """
    if malloc_variables() or not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)


def malloc_variables() -> list[str]:
    """The variables of this process that keep `keep_freed_memory` from its work."""
    given = [name for name in _MALLOC_VARIABLES if name in os.environ]
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        given.append("GLIBC_TUNABLES")
    return [*given, _MALLOC_SWITCH] if _is_off(_MALLOC_SWITCH) else given


def _first_processor(cpu_info: Path) -> dict[str, str]:
    """What the kernel says about the first processor; empty where it says nothing."""
    fields = {}
    with contextlib.suppress(OSError), cpu_info.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if not key.strip():
                break
            fields[key.strip()] = value.strip()
    return fields


def _libraries_of_paddle() -> Path | None:
    """The folder of the libraries that came with Paddle, if MKL is there; does not import Paddle."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("paddle")
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).parent / "libs"
            return folder if (folder / "libmklml_intel.so").exists() else None
    return None


def _mkl_works(path: str, model: str, libraries: Path) -> bool:
    """Whether MKL computes by this path. The answer is kept for this processor and this MKL."""
    status = (libraries / "libmklml_intel.so").stat()
    key = hashlib.sha256(f"{path} {model} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paddlevideo_fast"
    kept = folder / f"mkl-{key}"
    with contextlib.suppress(OSError):
        return kept.read_text() == "works"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _MKL_TRIAL, str(libraries)],
            env={**os.environ, MKL_PATH: path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    if done.returncode in (0, -signal.SIGILL):  # other ends may have another cause, such as memory
        with contextlib.suppress(OSError):  # without a cache, the next process tries again
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=folder, prefix="mkl-", delete=False) as file:
                file.write("works" if done.returncode == 0 else "fails")
            os.replace(file.name, kept)
    return done.returncode == 0
