"""Predicted against measured: moment by moment, and the modules and operators that make the difference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from fsdp_doctor.memory.events import MARK, EventList
from fsdp_doctor.memory.simulate import Phase, Run, living, simulate, steps
from fsdp_doctor.subjects.memory_measured import Difference, MeasuredMoment, OperatorBytes

BEFORE = "held from before the step"
"""What the child that measures calls blocks older than the traced step."""
LEAST = 1 << 20
"""Bytes that a place in the model must differ by to be named."""
SHARE = 0.05
"""Part of the largest difference that another one must have to be named."""
PLACES, OPERATORS = 8, 4
NUMBER = re.compile(r"\d+")


def moments(run: Run, phases: Sequence[Phase]) -> tuple[MeasuredMoment, ...]:
    """The phases of a replay beside those that were measured, as far as the latter go."""
    found: list[MeasuredMoment] = []
    step = 0
    predicted = [p for p in run.phases if p.name not in ("start", "end")]
    for expected, seen in zip(predicted, phases, strict=False):
        if expected.name.startswith("step "):
            step = int(expected.name[5:])
        if expected.name != seen.name:
            break
        if not expected.name.startswith("step ") and expected.name != "end of step":
            found.append(
                MeasuredMoment(
                    step, seen.name, expected.peak, seen.peak, expected.after, seen.after, seen.reserved
                )
            )
    return tuple(found)


def peak(phases: Iterable[Phase]) -> int:
    """The peak of all steps, as predictions define it; of what was seen where no step was completed."""
    seen = list(phases)
    whole = steps(seen)
    done = max((max(s.fwd_bwd_peak, s.opt_peak) for s in whole), default=0)
    return done or max((p.peak for p in seen), default=0)


def measured_phases(rows: object) -> list[Phase]:
    """The child's list of phases. Raises `ValueError` for one that is not as expected."""
    if not isinstance(rows, list):
        raise ValueError("the measurement has no list of phases")
    return [_phase(row) for row in rows]


def _phase(row: object) -> Phase:
    if not isinstance(row, Mapping):
        raise ValueError("a phase of the measurement is no object")
    before, top, after, reserved = (_int(row.get(k)) for k in ("before", "peak", "after", "reserved"))
    return Phase(str(row.get("name")), 0, before, top, 0, after, reserved)


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r} is no number of bytes")
    return value


def differences(predicted: EventList, traced: EventList) -> tuple[Difference, ...]:
    """Places in the model whose blocks hold other sums at the last step's peak, largest difference first."""
    ours, theirs = _at_peak(predicted), _at_peak(traced)
    places: dict[str, dict[str, list[int]]] = {}
    for side, held in enumerate((ours, theirs)):
        for (module, operator), size in held.items():
            places.setdefault(module, {}).setdefault(operator, [0, 0])[side] += size
    found = [_difference(module, operators) for module, operators in places.items()]
    found.sort(key=lambda d: -abs(d.measured - d.predicted))
    largest = abs(found[0].measured - found[0].predicted) if found else 0
    least = max(LEAST, int(SHARE * largest))
    return tuple(d for d in found[:PLACES] if abs(d.measured - d.predicted) >= least)


def _difference(module: str, operators: Mapping[str, list[int]]) -> Difference:
    rows = [OperatorBytes(name, a, b) for name, (a, b) in operators.items() if a != b]
    rows.sort(key=lambda o: -abs(o.measured - o.predicted))
    sums = [sum(side) for side in zip(*operators.values(), strict=True)]
    return Difference(module, sums[0], sums[1], tuple(rows[:OPERATORS]))


def _at_peak(events: EventList) -> dict[tuple[str, str], int]:
    """Bytes as requested at the highest moment of the last step, by place in the model and operator."""
    run = simulate(events)
    start = _last_step(events)
    inside = [p for p in run.phases if p.first >= start]
    if not inside:
        return {}
    row = max(inside, key=lambda p: p.peak).peak_row
    sums: dict[tuple[str, str], int] = {}
    for b in living(events, row):
        old = b.row < start
        key = ("", BEFORE) if old or b.operator == BEFORE else (NUMBER.sub("*", b.module), b.operator)
        sums[key] = sums.get(key, 0) + b.size
    return sums


def _last_step(events: EventList) -> int:
    """The row of the last mark that begins a step."""
    found = 0
    for row, (kind, _, _, _, operator, _) in enumerate(events.rows()):
        if kind == MARK and events.operator_names[operator].startswith("step "):
            found = row
    return found
