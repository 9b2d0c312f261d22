"""Why a script did not come to its steps: its own error, what cannot be rehearsed, or an operator."""

from __future__ import annotations

import os
import traceback
from subprocess import CalledProcessError
from typing import Any

from ..loading import Offline, one_line
from .notes import Refusal, library
from .schedulers import setter

UNSUPPORTED = ("UnsupportedOperatorException", "DynamicOutputShapeException", "DataDependentOutputException")
ABSENT = "invalid device ordinal"
NUMBERED = "Cannot access accelerator device when none is available"
"""What a torch without CUDA says of `torch.device(0)`, which nothing here can answer for it."""
NATIVE = ("Permission denied", "unable to open database file", "Parent directory", "Read-only file system")
"""What libraries say of files that they open themselves, when Landlock refuses or a folder is redirected."""
ASSERTED = "CUDA error: device-side assert triggered"
OFFLINE = ("offline", "couldn't connect", "could not connect", "Max retries", "no network")


def described(error: BaseException, rehearsal: Any) -> dict[str, object]:
    """Kind, text, place and traceback of an exception that ended the script."""
    cause = _cause(error)
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    trace = _as_meant(trace, rehearsal.folder)[-8000:]
    place = place_of(error) or place_of(cause)
    if isinstance(cause, Refusal):
        return {"kind": cause.kind, "text": cause.text, "place": cause.place or place, "trace": trace}
    text = one_line(_as_meant(f"{type(error).__name__}: {error}", rehearsal.folder))
    if rehearsal.mode == "fake":
        text = text.replace("cpu:0", "cuda:0")  # which stands for it
    kind, operator, module = "script", "", ""
    tracker, node = rehearsal.tracker, getattr(rehearsal.meter, "node", None)
    chain = list(_chain(error))
    if any(isinstance(e, Offline) for e in chain) or any(w in str(e) for e in chain for w in OFFLINE):
        kind = "network"
    elif any(type(e).__name__ in UNSUPPORTED for e in chain) or (
        isinstance(error, NotImplementedError) and any(w in str(error).lower() for w in ("fake", "meta"))
    ):
        kind = "operator"
        operator = str(tracker.running or "") if tracker is not None else ""
    elif rehearsal.mode == "gpu" and any("OutOfMemory" in type(e).__name__ for e in chain):
        kind = "oom"
    elif isinstance(error, MemoryError):
        kind = "memory"
    elif node is not None and any(ABSENT in str(e) for e in chain):
        kind, text = "refused", f"{ABSENT}: {node.missing()}"
    elif rehearsal.mode == "fake" and NUMBERED in str(error):
        kind = "refused"
        text = 'a device named by its number alone is not rehearsed on fake tensors: write "cuda:0"'
    elif any(ASSERTED in str(e) for e in chain):
        text = f"{type(error).__name__}: {ASSERTED}, here or before (CUDA_LAUNCH_BLOCKING=1 says where)"
    who = setter(error) if kind == "script" else ""
    if who:
        kind = "scheduler"
        text += f", which {who} sets: put `{who} …` with its nodes and tasks before the command, or set it"
    if kind == "script" and _refused_file(error):
        kind = "refused"
        text += "; native code may write in the rehearsal's folder alone"
    blamed = rehearsal.programs.blamed(error) if kind == "script" and rehearsal.programs is not None else None
    if blamed is not None:
        kind, place = "program", place or blamed[1]
        own = isinstance(error, CalledProcessError) or hasattr(error, "_doctor_program")
        text = blamed[0] if own else f"{text.rstrip(': ')}; {blamed[0]}"
    if tracker is not None:
        module = tracker.failed_in if kind == "operator" else ""
    return {
        "kind": kind,
        "text": text,
        "place": place,
        "trace": trace,
        "operator": operator,
        "module": module,
        "phase": rehearsal.steps.phase if rehearsal.steps is not None else "",
        "step": rehearsal.steps.step if rehearsal.steps is not None else 0,
    }


def _as_meant(text: str, folder: str) -> str:
    """Paths as the script wrote them, and not where its writes are kept."""
    return text.replace(os.path.join(os.path.realpath(folder), "written") + os.sep, os.sep)


def _refused_file(error: BaseException) -> bool:
    """Whether code that is not Python's own was kept from a file that it would write."""
    file = getattr(error, "filename", None)
    if isinstance(file, str) and os.path.exists(file) and not os.access(file, os.R_OK):
        return False
    return any(words in str(error) for words in NATIVE)


def _chain(error: BaseException) -> Any:
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        seen.add(id(now))
        yield now
        now = now.__cause__ or now.__context__


def _cause(error: BaseException) -> BaseException:
    """A refusal anywhere in the chain, else the error itself."""
    return next((e for e in _chain(error) if isinstance(e, Refusal)), error)


def place_of(error: BaseException) -> str:
    """File and line of the innermost frame that is the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    for f in reversed(frames):
        if not library(f.filename):
            return f"{f.filename}:{f.lineno}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    return ""
