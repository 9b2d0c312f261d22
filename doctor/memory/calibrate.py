"""Measures, on the GPU at hand, the operators of a job that no measurement speaks for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fsdp_doctor.memory.calibration import BadTable, Entry, Table, entry
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.measure import CUDA, environment
from fsdp_doctor.memory.replay import Replay, ReplayError, in_child, replay
from fsdp_doctor.tables.substitutions import MEASURED, OWN_SPACES, SUBSTITUTIONS, UNMEASURED
from fsdp_doctor.tables.substitutions import entry as entry_of

ROUNDS = 3
"""Another kernel for attention makes other calls of its backward, which are measured in the next round."""
BUDGET = 240.0
"""Seconds for the calls of one round."""
WITHOUT_A_RULE: Mapping[str, tuple[str, ...]] = {
    "aten::scaled_dot_product_attention": ("aten::_scaled_dot_product_flash_attention",),
}
"""Operators that are measured together with one of the table: what they take may differ elsewhere."""


def unsettled(sm: int) -> tuple[str, ...]:
    """Operators whose rule was not measured on an architecture or goes by shapes, or that have none."""
    found: dict[str, None] = {}
    for operator in dict.fromkeys(o for s in SUBSTITUTIONS for o in s.operators):
        of = entry_of(operator, sm)
        if of is None or not of.single or (of.stands(sm) == MEASURED and not of.by_call):
            continue
        found |= dict.fromkeys((operator, *WITHOUT_A_RULE.get(operator, ())))
    return (*found, *sorted(UNMEASURED))


def watch(sm: int) -> dict[str, object]:
    """What a replay is asked to note the calls of."""
    return {"operators": list(unsettled(sm)), "own": list(OWN_SPACES)}


def with_table(
    job: Job,
    table: Table | None,
    *,
    sm: int,
    processors: int | None = None,
    python: str = sys.executable,
    deadline: float | None = None,
) -> Replay:
    """A replay that takes measured entries where it has them. Raises `ReplayError`."""
    more = fields(table, sm)
    return replay(job, sm=sm, processors=processors, python=python, deadline=deadline, more=more)


def fields(table: Table | None, sm: int) -> dict[str, object]:
    """What a job's description needs for a replay to take measured entries."""
    return {} if table is None else {"watch": watch(sm), "calibration": table.for_child()}


@dataclass(slots=True)
class Calibrated:
    """What came of measuring a job's operators."""

    table: Table
    measured: list[Entry] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Why there is no entry, by operator: the first reason of each."""
    calls: int = 0
    """Different calls of such operators in the job."""


def calibrate(
    job: Job,
    table: Table,
    *,
    python: str = sys.executable,
    deadline: float | None = None,
    meter: Mapping[str, object] = CUDA,
) -> Calibrated:
    """Measure what `table` has no entry for, until the job makes no new calls. Raises `ReplayError`."""
    found = Calibrated(table)
    tried: set[str] = set()
    for _ in range(ROUNDS):
        done = with_table(job, found.table, sm=table.sm, python=python, deadline=deadline)
        calls = dict(_calls(done.about.get("calls")))
        found.calls = len(calls)
        unwritable = done.about.get("unwritable")
        found.failed |= (
            {str(k): str(v) for k, v in unwritable.items()} if isinstance(unwritable, dict) else {}
        )
        known = {e.signature for e in found.table.entries}
        missing = [text for text in calls if text not in known and text not in tried]
        if not missing:
            break
        tried.update(missing)
        described = {**job.to_json(), "work": "calibrate", "measure": dict(meter), "signatures": missing}
        result, _ = in_child({**described, "budget": BUDGET}, python, deadline, environment())
        made = list(_entries(result.get("calibrated"), calls, found.failed))
        found.measured += made
        found.table = found.table.with_entries(made)
    return found


def _calls(said: object) -> Iterable[tuple[str, str]]:
    for row in said if isinstance(said, list) else ():
        if isinstance(row, dict):
            yield str(row.get("signature")), str(row.get("operator"))


def _entries(said: object, calls: Mapping[str, str], failed: dict[str, str]) -> Iterable[Entry]:
    rows = said.get("entries") if isinstance(said, dict) else None
    if not isinstance(rows, list):
        raise ReplayError("child", "the child that measured operators left no figures")
    for row in rows:
        text = str(row.get("signature")) if isinstance(row, dict) else ""
        operator = calls.get(text, "")
        if "problem" in row:
            failed.setdefault(operator, str(row["problem"]))
            continue
        try:
            yield entry({**row, "operator": operator}, operator)
        except BadTable as error:
            failed.setdefault(operator, str(error))
