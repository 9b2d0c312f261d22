"""Where a process stands, by its frames: whether it is idle or active says nothing in a hang."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fsdp_doctor.subjects.incident import Frame
from fsdp_doctor.subjects.stacks import (
    CODE,
    COLLECTIVE,
    COMPILE,
    DATA,
    GPU,
    LOCK,
    SAVE,
    UNSEEN,
    Place,
    Thread,
)

LIBRARY = re.compile(
    r"[/\\](?:site-packages|dist-packages)[/\\]|[/\\]lib(?:64)?[/\\]python[0-9.]+[/\\]|^<frozen |^<string>"
)
"""Files that are not the user's program."""
TORCH = re.compile(r"[/\\](?:site-packages|dist-packages|pytorch)[/\\]torch[/\\]")
STANDARD = re.compile(
    r"[/\\]lib(?:64)?[/\\]python[0-9.]+[/\\](?!site-packages|dist-packages)|^<frozen |^<string>"
)
COLLECTIVE_FILES = re.compile(
    r"torch[/\\]distributed[/\\](?:distributed_c10d|_functional_collectives|c10d_logger|rendezvous"
    r"|fsdp[/\\]_fully_shard[/\\]_fsdp_(?:collectives|param_group)|fsdp[/\\]_runtime_utils|_composable"
    r"|algorithms|utils|nn[/\\])"
)
COLLECTIVES = re.compile(
    r"(?:all_?reduce|all_?gather|reduce_?scatter|broadcast|barrier|monitored_barrier|all_to_all|scatter|gather"
    r"|reduce|send|recv|irecv|isend|batch_isend_irecv|wait_tensor|wait|init_process_group|_store_based_barrier"
    r"|new_group|destroy_process_group|wait_for_unshard|_wait_all_gather|unshard|foreach_\w+)"
)
GPU_WAIT = re.compile(r"(?:synchronize|item|tolist|cpu|wait_stream|_to_copy|nonzero|elapsed_time|_sync\w*)")
DATA_FILES = re.compile(r"torch[/\\]utils[/\\]data[/\\]|[/\\]datasets[/\\]|webdataset|streaming")
DATA_NAMES = re.compile(r"_?fetch\w*|collate\w*|(?:get|load|next|read)_(?:batch|sample)\w*|__getitem__")
SAVE_FILES = re.compile(r"torch[/\\](?:distributed[/\\]checkpoint[/\\]|serialization)|safetensors|orbax")
SAVE_NAMES = re.compile(r"_?save\w*|\w*_checkpoint|state_dict")
COMPILE_FILES = re.compile(
    r"torch[/\\](?:_dynamo|_inductor|_functorch)[/\\](?!eval_frame|external_utils)|triton[/\\]compiler"
)
LOCK_FILES = re.compile(
    r"(?:threading|queue|selectors|subprocess|multiprocessing[/\\]\w+|concurrent[/\\]futures[/\\]\w+)\.py$"
)
LOCK_NAMES = re.compile(
    r"(?:acquire|wait|join|get|put|select|poll|communicate|_wait\w*|result|__enter__|recv|recv_bytes)"
)
OWN_THREADS = ("fsdp-doctor",)


def place(threads: Sequence[Thread]) -> Place:
    """Where a process stands, by its main thread; by another where that one waits for the other's work."""
    candidates = [t for t in threads if t.frames and t.name not in OWN_THREADS]
    if not candidates:
        return Place(UNSEEN)
    main = next((t for t in candidates if t.main), candidates[0])
    found = of_frames(main.frames)
    if _waits_for_engine(main.frames):
        # On a GPU the autograd engine runs the hooks of FSDP in a thread of its own.
        for thread in candidates:
            inner = of_frames(thread.frames) if thread is not main else None
            if inner is not None and inner.kind in (COLLECTIVE, GPU, COMPILE) and _runs_hooks(thread.frames):
                return Place(inner.kind, found.user or inner.user, inner.library)
    return found


def _waits_for_engine(frames: Sequence[Frame]) -> bool:
    return bool(frames) and bare(frames[-1]) == "_engine_run_backward"


def _runs_hooks(frames: Sequence[Frame]) -> bool:
    return any(TORCH.search(f.file) for f in frames)


def of_frames(frames: Sequence[Frame]) -> Place:
    """Where one thread stands; `frames` has the innermost last."""
    user = next((f for f in reversed(frames) if is_user(f)), None) or _installed_program(frames)
    inner = list(_inner(frames, user))
    for kind, found in _kinds(inner, user):
        if found is not None:
            return Place(kind, user, found)
    return Place(CODE, user, None)


def is_user(frame: Frame) -> bool:
    """Whether a frame belongs to the program and not to Python, torch or another installed package."""
    return bool(frame.file) and not LIBRARY.search(frame.file) and not TORCH.search(frame.file)


def bare(frame: Frame) -> str:
    """A function's own name: from Python 3.11 on it is given with its class or outer function."""
    return frame.function.rpartition(".")[2]


def _installed_program(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of a training program that is itself an installed package."""
    own = (f for f in reversed(frames) if f.file and not TORCH.search(f.file) and not STANDARD.search(f.file))
    return next(own, None)


def _inner(frames: Sequence[Frame], user: Frame | None) -> Iterator[Frame]:
    """The frames inside the user's innermost one, innermost first."""
    for frame in reversed(frames):
        if frame is user:
            return
        yield frame


def _kinds(inner: Sequence[Frame], user: Frame | None) -> Iterator[tuple[str, Frame | None]]:
    yield COLLECTIVE, _outermost_collective(inner)
    yield COMPILE, _first(inner, COMPILE_FILES, None)
    yield DATA, _first(inner, DATA_FILES, None)
    yield SAVE, _first(inner, SAVE_FILES, None)
    yield GPU, _first(inner, TORCH, GPU_WAIT)
    yield LOCK, _first(inner, LOCK_FILES, LOCK_NAMES)
    if inner and bare(inner[0]) == "_engine_run_backward":
        yield COLLECTIVE, inner[0]
    # Calls into C show no frame of their own: the user's function is all there is to see of them.
    if user is not None and not inner:
        yield DATA, user if DATA_NAMES.fullmatch(bare(user)) else None
        yield SAVE, user if SAVE_NAMES.fullmatch(bare(user)) else None


def _outermost_collective(inner: Sequence[Frame]) -> Frame | None:
    """The collective as the program called it: the outermost frame of torch's that is one."""
    if not any(COLLECTIVE_FILES.search(f.file) for f in inner):
        return None
    calls = [f for f in inner if COLLECTIVE_FILES.search(f.file) and COLLECTIVES.fullmatch(bare(f))]
    return calls[-1] if calls else next(f for f in inner if COLLECTIVE_FILES.search(f.file))


def _first(frames: Sequence[Frame], files: re.Pattern[str], names: re.Pattern[str] | None) -> Frame | None:
    for frame in frames:
        if files.search(frame.file) and (names is None or names.fullmatch(bare(frame))):
            return frame
    return None


def same(a: Place, b: Place) -> bool:
    """Whether two processes stand at the same line of the program, in the same call."""
    return a.kind == b.kind and _spot(a.user) == _spot(b.user) and _name(a.library) == _name(b.library)


def _spot(frame: Frame | None) -> tuple[str, str, int | None] | None:
    return None if frame is None else (bare(frame), frame.file, frame.line)


def _name(frame: Frame | None) -> str | None:
    return None if frame is None else bare(frame)
