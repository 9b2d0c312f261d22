"""Starts the child of a rehearsal and reads what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fsdp_doctor import process
from fsdp_doctor.memory.events import BrokenEvents, EventList, read
from fsdp_doctor.memory.rehearsal.job import Rehearse
from fsdp_doctor.memory.replay import START
from fsdp_doctor.tables.gpu_memory import GIB, Product, product

DEADLINE = 300.0
"""Seconds for a rehearsal where the user gives none."""
STAND_IN = "H100 80GB"
"""The GPU of whose kind a script is told where none was named."""
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SAID = 2000
"""Characters of the script's last output that are kept."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a child left."""

    result: Mapping[str, object]
    """Empty where it died."""
    events: EventList | None
    kind: str = ""
    """time, child: it gave no answer. The others are in the result's `problem`."""
    text: str = ""
    place: str = ""
    trace: str = ""
    said: str = ""
    """The end of the script's own output."""


def rehearse(job: Rehearse, gpu: Product | None, python: str, deadline: float | None) -> Outcome:
    """Run the script in a child."""
    folder = Path(tempfile.mkdtemp(prefix="fsdp-doctor-rehearsal-"))
    try:
        seconds = deadline or DEADLINE
        meant = gpu or product(STAND_IN)
        assert meant is not None
        described = {
            **job.to_json(),
            "gpu": {"sm": meant.sm, "name": f"NVIDIA {meant.name}", "bytes": int(meant.gib * GIB)},
            "seconds": max(1.0, seconds - 1.0),
            "asked": seconds,
        }
        path = folder / "job.json"
        path.write_text(json.dumps(described))
        ended = process.run(
            [python, "-B", str(START), str(path), "rehearsal.main"],
            seconds,
            env=_environment(job),
            stdout_limit=256 << 10,
        )
        result = _json(folder / "result.json")
        said = (
            (ended.stdout[-SAID:] + b"\n" + ended.stderr[-SAID:]).decode("utf-8", "replace").strip()[-SAID:]
        )
        if result is None:
            return _died(ended, folder, seconds, said)
        events = None
        if "rows" in result:
            try:
                events = read(folder / "events.bin", result)
            except (OSError, BrokenEvents) as error:
                return Outcome(
                    {}, None, "child", f"what the rehearsal left cannot be read: {error}", said=said
                )
        return Outcome(result, events, said=said)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(job: Rehearse) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in RANK_VARIABLES}
    kept |= {**job.environment, "PYTHONDONTWRITEBYTECODE": "1"}
    if job.device == "fake":
        kept["CUDA_VISIBLE_DEVICES"] = ""
    kept.setdefault("OMP_NUM_THREADS", "1")
    return kept


def _json(path: Path) -> dict[str, object] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _died(ended: process.Outcome, folder: Path, seconds: float, said: str) -> Outcome:
    stage, stack = _text(folder / "stage") or "starting", _text(folder / "stack")
    place = innermost(stack)
    if ended.timed_out or "Timeout" in stack[:200]:
        return Outcome(
            {}, None, "time", f"no step was finished in {seconds:.0f} s, while {stage}", place, stack, said
        )
    why = ended.problem or "it left no result"
    if ended.returncode in (-9, 137):
        why = "it was killed, probably for memory of the host"
    return Outcome({}, None, "child", f"the process ended while {stage}: {why}", place, stack or said, said)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[-20000:]
    except OSError:
        return ""


def innermost(stack: str) -> str:
    """The innermost frame of a faulthandler stack of the main thread that is the user's own."""
    own = str(START.parent)
    lines = stack.splitlines()
    last = max((i for i, line in enumerate(lines) if "(most recent call first)" in line), default=-1)
    for line in lines[last + 1 :]:
        before, _, rest = line.strip().partition('File "')
        name, _, after = rest.partition('", line ')
        if before or not name or name.startswith((own, "<")):
            continue
        if any(part in name for part in ("site-packages", "dist-packages", f"{os.sep}lib{os.sep}python3")):
            continue
        number = after.partition(" ")[0]
        if number.isdigit():
            return f"{name}:{number}"
    return ""
