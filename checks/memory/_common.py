"""Words and thresholds that checks of a forecast share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fsdp_doctor.findings import Confidence, Finding, Fix, Subject, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.memory import Cause, MemoryAnswer, MemoryForecast
from fsdp_doctor.tables.units import memory_size as size

TIGHT = 0.92
"""Part of the GPU above which little is left for longer batches and fragmentation."""
SHARE = 0.2
"""Part of the peak from which one thing is worth a change of the program."""
LISTED = 3
WAYS = {
    "loss": "Compute head and loss for a part of the tokens at a time, or by a fused cross-entropy",
    "scores": "Let a fused kernel compute attention (scaled_dot_product_attention)",
    "activations": "Checkpoint the activations of the blocks",
}
"""The change that takes a cause away."""

Reason = Callable[[MemoryForecast], tuple[int, str] | None]


def at(place: str) -> Subject:
    """File and line of a place as a replay writes it; nothing where it has none."""
    file, _, line = place.rpartition(":")
    return Subject(file=file or None, line=int(line) if line.isdigit() else None)


def moment(f: MemoryForecast) -> str:
    """Where the peak is and what it is made of."""
    where = f" in {f.peak.module}" if f.peak.module else ""
    parts = ", ".join(f"{p.name} {size(p.bytes)}" for p in f.peak.parts[:4])
    when = f"{f.peak.phase} of step {f.peak.step}" if f.peak.step else "preparation, before the first step"
    return f"peak in {when}{where}" + (f": {parts}" if parts else "")


def places(cause: Cause) -> str:
    """The modules of a cause."""
    more = len(cause.modules) - LISTED
    if not cause.modules:
        return ""
    return " of " + ", ".join(cause.modules[:LISTED]) + (f" and {more} more" if more > 0 else "")


def saved(f: MemoryForecast, cause: Cause) -> int:
    """By how much the peak falls, at most, where the tensors of a cause are not made."""
    return 0 if cause.without is None else max(0, f.highest - cause.without)


def saving(f: MemoryForecast, name: str) -> str:
    """What the replay says of a cause's change, as a sentence; empty where it says nothing."""
    cause = f.cause(name)
    if cause is None or not saved(f, cause):
        return ""
    return f". Saves up to {size(saved(f, cause))}: the highest moment then holds {size(cause.without or 0)}"


def short(f: MemoryForecast) -> bool:
    """Whether memory is short on the GPU that was named."""
    return f.capacity is not None and f.needed > TIGHT * f.capacity


def judged(
    facts: Facts, reason: Reason, expected: str, fix: Callable[[], Fix], fine: str
) -> Iterator[Finding]:
    """Warn of a reason for the peak where memory is short; pass where there is room."""
    f = facts[MemoryAnswer].forecast
    if f is None:
        yield skip("there is no forecast")
        return
    if f.capacity is None:
        yield skip("no GPU was named", enable='--gpu "H100 80GB"')
        return
    if not short(f):
        yield ok(f"needs {size(f.needed)} of {size(f.capacity)}")
        return
    found = reason(f)
    if found is None:
        yield ok(fine)
        return
    held, what = found
    yield warn(
        f"{size(held)} of {size(f.highest)} at the peak: {what}",
        expected,
        fix=fix(),
        confidence=Confidence.MEDIUM,
    )
