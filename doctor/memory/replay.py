"""Runs a job in a torch child and reads what it leaves: events, the unit plan, or why it was refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fsdp_doctor import process
from fsdp_doctor.memory import leftovers
from fsdp_doctor.memory.events import BrokenEvents, EventList, read
from fsdp_doctor.memory.job import Job
from fsdp_doctor.tables.gpu_memory import DEFAULT_PROCESSORS, PROCESSORS

START = Path(__file__).absolute().parent / "child" / "start.py"
DEADLINE = 600.0
"""Seconds for one replay where the user gives none."""
INSTALLED = re.compile(r"/(site-packages|dist-packages|lib(64)?/python3\.\d+)/")


class ReplayError(RuntimeError):
    """No answer. The text is one line; `place` is the user's file and line where one is known."""

    def __init__(self, kind: str, text: str, place: str = "", trace: str = "") -> None:
        super().__init__(text)
        self.kind, self.text, self.place, self.trace = kind, text, place, trace
        self.lacks = ""
        """What it asks for that a replay has not, as `ReplayProblem` has it."""
        self.plan: Mapping[str, object] | None = None
        """What was read off the model, where it could be built."""
        self.measured: Mapping[str, object] | None = None
        """What was measured before it ended."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a child answered."""

    events: EventList
    about: Mapping[str, object]
    """The result's own fields: torch, params, units, parameters, assumed, seconds, rss_bytes."""


def replay(
    job: Job,
    *,
    sm: int,
    processors: int | None = None,
    python: str = sys.executable,
    deadline: float | None = None,
    more: Mapping[str, object] | None = None,
) -> Replay:
    """Run a job. `more` are further fields for the child. Raises `ReplayError`."""
    count = processors or PROCESSORS.get(sm, DEFAULT_PROCESSORS)
    gpu = {"sm": sm, "processors": count}
    described = {**job.to_json(), "gpu": gpu, **(more or {})}
    result, events = in_child(described, python, deadline, _environment())
    return Replay(events, result)


def in_child(
    described: Mapping[str, object], python: str, deadline: float | None, environment: Mapping[str, str]
) -> tuple[Mapping[str, object], EventList]:
    """What a child answers to a job, and its events. Raises `ReplayError`, with what it left on its way."""
    folder = Path(tempfile.mkdtemp(prefix="fsdp-doctor-memory-"))
    try:
        seconds = deadline or DEADLINE
        path, plan, measured = folder / "job.json", folder / "plan.json", folder / "measured.json"
        more = {"seconds": max(1.0, seconds - 0.5), "plan_path": str(plan), "measured_path": str(measured)}
        path.write_text(json.dumps({**described, **more}))
        environment = leftovers.marked(dict(environment), folder)
        outcome = process.run(
            [python, "-B", str(START), str(path)], seconds, env=environment, stdout_limit=64 << 10
        )
        result = _result(folder / "result.json")
        if result is None:
            raise _died(outcome, folder, python, seconds)
        refused = result.get("refused")
        if isinstance(refused, Mapping):
            raise _refused(refused)
        try:
            return result, read(folder / "events.bin", result)
        except (OSError, BrokenEvents) as error:
            raise ReplayError("child", f"the replay's events cannot be read: {error}") from None
    except ReplayError as error:
        error.plan, error.measured = _result(folder / "plan.json"), _result(folder / "measured.json")
        raise
    finally:
        leftovers.end(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _environment() -> dict[str, str]:
    """One thread: fake tensors do no arithmetic, and threads that wait for it only take memory."""
    kept = {
        k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
    }
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}


def _result(path: Path) -> dict[str, object] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _refused(said: Mapping[str, object]) -> ReplayError:
    def text(key: str) -> str:
        value = said.get(key, "")
        return value if isinstance(value, str) else ""

    words = text("text")
    if text("kind") == "operator":
        words = f"the operator {text('operator')} has no form that works on shapes alone: {words}"
    elif text("kind") == "failed":
        words = f"{words} (in {text('stage')})"
    if text("module"):
        words += f", in module {text('module')}"
    error = ReplayError(text("kind"), words, text("place"), text("trace"))
    error.lacks = text("lacks")
    return error


def _died(outcome: process.Outcome, folder: Path, python: str, seconds: float) -> ReplayError:
    lines = outcome.stderr.decode("utf-8", "replace").strip().splitlines()
    if any("No module named 'torch" in line for line in lines[-3:]):
        return ReplayError("torch", f"{python} has no torch: name the Python of the training with --python")
    stage = _text(folder / "stage") or "starting"
    stack = _text(folder / "stack")
    place = _user_frame(stack.splitlines())
    if outcome.timed_out or "Timeout" in stack[:200]:
        return ReplayError("time", f"no answer in {seconds:.0f} s, while {stage}", place, stack)
    why = outcome.problem or "it left no result"
    if outcome.returncode in (-9, 137):
        why = "it was killed, probably for memory (is the model built on real tensors?)"
    return ReplayError(
        "child", f"the replay ended while {stage}: {why}", place, stack or "\n".join(lines[-20:])
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[-20000:]
    except OSError:
        return ""


def _user_frame(lines: Iterable[str]) -> str:
    """File and line of the innermost frame of a faulthandler stack that is neither torch's nor ours.

    One of the user's own before one of a library or of Python.
    """
    own = str(START.parent)
    installed = ""
    for line in lines:
        before, _, rest = line.strip().partition('File "')
        name, _, after = rest.partition('", line ')
        number = after.partition(" ")[0]
        if before or not name or name.startswith((own, "<")) or not number.isdigit():
            continue
        if any(f"/{part}/" in name for part in ("torch", "transformers", "importlib")):
            continue
        if not INSTALLED.search(name):
            return f"{name}:{number}"
        installed = installed or f"{name}:{number}"
    return installed
