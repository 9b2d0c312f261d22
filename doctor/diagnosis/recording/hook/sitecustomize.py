"""What `fsdp-doctor run` does inside each Python process of a job: nothing, until something goes wrong.

Python imports this module at its start because its folder is on PYTHONPATH. It imports the standard library
alone, changes nothing that the program can see, and runs the environment's own sitecustomize afterwards.

- A real-time signal writes the stacks of all threads to a file (faulthandler, which needs no lock).
- A thread that sleeps on a named pipe writes torch's Flight Recorder when it is asked to; gloo's has no
  other way out of a process that hangs.
- An exception that ends the process is written to the file that torchrun has named for it, and the
  Flight Recorder beside it.
- `fsdp-doctor run` and what it starts may look into the process (prctl PR_SET_PTRACER), which kernels
  with Yama allow to a process's parents alone, and not to the py-spy that they start.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as `typing` has it, which would cost time at the start of every process
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

FOLDER = "FSDP_DOCTOR_RUN"
"""Names the folder of the run: without it nothing is done."""
LOCAL = "FSDP_DOCTOR_LOCAL"
"""Names a folder on a local disk, for named pipes."""
TRACER = "FSDP_DOCTOR_PID"
"""The process of `fsdp-doctor run`."""
OWNER = "FSDP_DOCTOR_RANK_PID"
"""Set by the first Python process of a rank, so that those that it starts in turn are none."""
SIGNAL_OFFSET = 9
"""The signal is SIGRTMIN plus this."""
ENTRY_LIMIT = 64 << 20
PR_SET_PTRACER = 0x59616D61


def _rank() -> int | None:
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return None


def _is_worker() -> bool:
    """Whether this is a rank: torchrun's agent has none, and what a rank starts only inherits it."""
    if _rank() is None or os.environ.get(OWNER, str(os.getpid())) != str(os.getpid()):
        return False
    # srun and mpirun give their rank to torchrun's agent as well.
    if any(
        w == "torch.distributed.run" or os.path.basename(w) == "torchrun"
        for w in getattr(sys, "orig_argv", [])[:5]
    ):
        return False
    os.environ[OWNER] = str(os.getpid())
    return True


def _stacks_on_signal(folder: str) -> object:
    import faulthandler
    import signal

    name = os.path.join(folder, "stacks", f"faulthandler-{os.uname().nodename}-{os.getpid()}.txt")
    file = open(name, "ab", buffering=0)  # noqa: SIM115 - for as long as the process lives
    faulthandler.register(signal.SIGRTMIN + SIGNAL_OFFSET, file=file, all_threads=True)
    return file  # faulthandler keeps the number of the descriptor alone


def _flight_recorder(stacks: bool) -> bytes | None:
    """The recorder of this rank as torch writes it; None where there is no torch, or it has none."""
    if "torch.distributed" not in sys.modules:
        return None
    from torch._C import _distributed_c10d as c10d

    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            try:
                data = dump(includeStackTraces=stacks)
            except TypeError:  # torch before 2.4 has no such choice
                data = dump()
            return data if isinstance(data, bytes) else None
    return None


def _write(path: str, data: bytes) -> None:
    if len(data) > ENTRY_LIMIT:
        return
    part = f"{path}.{os.getpid()}.part"
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _dump_flight(folder: str, rank: int | None, stacks: bool = False) -> None:
    """Write the recorder. Without stacks it takes a millisecond; naming the frames takes torch seconds."""
    data = _flight_recorder(stacks)
    if data:
        # The name that NCCL's watchdog gives it too: it is the same recorder, and the later file knows more.
        _write(os.path.join(folder, "flight", f"rank_{rank}"), data)


def _answer_requests(folder: str, local: str, rank: int | None) -> None:
    import threading

    pipe = os.path.join(local, f"ask_{os.getpid()}")
    os.mkfifo(pipe, 0o600)
    # Open for both, so that it never reads as ended when nobody writes.
    number = os.open(pipe, os.O_RDWR)

    def serve() -> None:
        while os.read(number, 1):
            _attempt(_dump_flight, folder, rank)
            _attempt(_dump_flight, folder, rank, True)

    threading.Thread(target=serve, name="fsdp-doctor", daemon=True).start()


def _keep_last_exception(folder: str, rank: int | None) -> None:
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        _attempt(_write_error, kind, error, trace)
        _attempt(_dump_flight, folder, rank)

    sys.excepthook = hook


def _write_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    import json
    import time
    import traceback

    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.path.exists(path) or issubclass(kind, KeyboardInterrupt):
        return
    stack = "".join(traceback.format_exception(kind, error, trace))[-65536:]
    message = f"{kind.__name__}: {error}"[:4096]
    extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    _write(path, json.dumps({"message": {"message": message, "extraInfo": extra}}).encode("utf-8", "replace"))


def _allow_inspection(tracer: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(tracer), 0, 0, 0)


def _attempt(function: Callable[..., object], *arguments: object) -> object:
    try:
        return function(*arguments)
    except Exception:
        return None


def _begin() -> object:
    folder, local = os.environ.get(FOLDER), os.environ.get(LOCAL)
    if not folder or not _is_worker():
        return None
    kept = _attempt(_stacks_on_signal, folder)
    _attempt(_keep_last_exception, folder, _rank())
    if local:
        _attempt(_answer_requests, folder, local, _rank())
    tracer = os.environ.get(TRACER, "")
    if tracer.isdigit() and sys.platform == "linux":
        _attempt(_allow_inspection, int(tracer))
    return kept


def _next_in_line() -> None:
    """Import the sitecustomize that this one hides, under its own name."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    path = [p for p in sys.path if os.path.abspath(p or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_KEPT = _begin()
_next_in_line()
