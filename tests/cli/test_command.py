"""How a command ends: its exit code, and one message where the input is wrong."""

import ctypes
import os
import signal
import subprocess
import sys
from argparse import Namespace

import paddle
import pytest

from paddlevideo_fast.cli import quiet_import, run_command
from paddlevideo_fast.errors import EXIT_USER_ERROR, ConfigError, WeightError
from paddlevideo_fast.log import get_logger
from tests.support.launching import ROOT


def _raise(error):
    def work(args):
        raise error

    return work


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (143, 143)])
def test_the_code_is_what_the_work_returns(returned, code):
    assert run_command(lambda args: args.returned, Namespace(returned=returned)) == code


@pytest.mark.parametrize("error", [ConfigError(["a.yaml:3  epochs: missing"]), WeightError("w: no file")])
def test_wrong_input_is_one_message_on_stderr(error, capsys):
    assert run_command(_raise(error), Namespace()) == EXIT_USER_ERROR == 2
    assert capsys.readouterr() == ("", f"{type(error).__name__}: {error}\n")


def test_too_little_memory_is_one_sentence(capsys):
    def on_cpu(args):
        paddle.zeros([10**13]).sum()

    trace = "\n".join(f"{number}   phi::memory::Allocator of C++" for number in range(80))
    on_gpu = [  # as the allocator, CUDA and cuBLAS say it, and Paddle at another level of its call stack
        f"{trace}\n\nResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 2.0GB "
        "memory on GPU 0, 77.1GB memory has been allocated and available memory is only 1.9GB.\n\nPlease",
        f"{trace}\n(External) CUDA error(2), out of memory. \n  [Hint: 'cudaErrorMemoryAllocation'. The API",
        f"{trace}\n(External) CUBLAS error(3). \n  [Hint: 'CUBLAS_STATUS_ALLOC_FAILED'. Resource allocation",
        f"{trace}\n(External) CUDNN error(4), CUDNN_STATUS_ALLOC_FAILED.",
    ]
    told = [
        "OutOfMemoryError: Out of memory error on GPU 0. Cannot allocate 2.0GB memory on GPU 0, 77.1GB",
        "OutOfMemoryError: (External) CUDA error(2), out of memory.; ",
        "OutOfMemoryError: [Hint: 'CUBLAS_STATUS_ALLOC_FAILED'. Resource allocation; ",
        "OutOfMemoryError: (External) CUDNN error(4), CUDNN_STATUS_ALLOC_FAILED.; ",
    ]
    works = [on_cpu, *(_raise(RuntimeError(text)) for text in on_gpu)]
    for work, words in zip(works, ["Fail to alloc memory of 4", *told], strict=True):
        assert run_command(work, Namespace()) == EXIT_USER_ERROR
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert words in err
        assert "take smaller batches with --batch_size N" in err
        assert ("or fewer workers" in err) == (work is on_cpu)
        assert ("RUNTIME.recompute=true" in err) == (work is not on_cpu)


def test_ctrl_c_leaves_no_traceback(capsys):
    assert run_command(_raise(KeyboardInterrupt()), Namespace()) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


INTERRUPTED = """
import os
import signal
import time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
except KeyboardInterrupt:
    raise ImportError("initialization failed") from None  # as Paddle's C++ code makes of it
"""


@pytest.mark.parametrize("module", ["paddle", "yaml", "numpy"])
def test_ctrl_c_in_the_first_seconds_leaves_no_traceback(tmp_path, module):
    """Modules in place of the real ones are interrupted while they are imported."""
    (tmp_path / f"{module}.py").write_text(INTERRUPTED)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    words = [sys.executable, "-m", "paddlevideo_fast", "train", "tsm_motion"]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *words]  # as a job in the background does
    done = subprocess.run(ignoring, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != -signal.SIGINT


def test_sigterm_does_after_the_import_of_paddle_what_it_did_before():
    """Paddle's C++ code sets a handler that prints a C++ stack."""
    set_handler = ctypes.CDLL(None).signal
    set_handler.restype = ctypes.c_void_p
    with quiet_import():
        set_handler(signal.SIGTERM, 1)  # SIG_IGN
    assert not set_handler(signal.SIGTERM, 0)  # it was SIG_DFL


def test_a_fault_of_the_program_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run_command(_raise(ZeroDivisionError()), Namespace())


def test_the_log_of_a_command_goes_to_stderr(capsys):
    def work(args):
        get_logger("paddlevideo_fast.apps.export").info("fixed: 8 frames")
        print("result")
        return 0

    assert run_command(work, Namespace()) == 0
    out, err = capsys.readouterr()
    assert out == "result\n"
    assert err.endswith("INFO: fixed: 8 frames\n")
