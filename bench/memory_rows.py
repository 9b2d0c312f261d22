"""One case of the accuracy bench: what was predicted and measured for it, and what a set of them says."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fsdp_doctor.memory import bounds
from fsdp_doctor.memory.events import EventList
from fsdp_doctor.memory.later import with_another
from fsdp_doctor.memory.simulate import simulate, steps

WARM = 64 << 20
"""Bytes that cuBLAS had taken before the model came, the same in every run that noted them."""


@dataclass(frozen=True)
class Row:
    """One case. Bytes and per cent."""

    name: str
    api: str
    measured: int
    predicted: int
    error: float
    after_backward: float
    optimizer: float
    reserved: int
    reserved_low: int
    reserved_high: int
    reserved_now: int
    """Where freed blocks can be handed out again at once."""
    late: int
    """The peak with DDP's first buckets in it; else 0."""
    predicted_rest: int
    """The optimizer's peak."""
    rest: tuple[int, int]
    """By how many bytes the figures after backward and in the optimizer are off."""
    again: tuple[dict[str, object], ...]
    """Further measurements."""

    def within(self, held: int) -> bool:
        """Whether the band holds a measured figure."""
        return self.reserved_low <= held <= self.reserved_high

    def text(self) -> str:
        """The row of a table."""
        gib = 2**30
        return (
            f"| {self.name} | {self.measured / gib:.3f} | {self.predicted / gib:.3f} | {self.error:+.3f} "
            f"| {self.after_backward:+.3f} | {self.optimizer:+.3f} "
            f"| {self.reserved / gib:.3f}, {self.reserved_low / gib:.3f} to {self.reserved_high / gib:.3f} |"
        )


def summary(name: str, rows: list[Row]) -> str:
    """Median and largest error of the peak, and of the two other figures."""
    errors = [abs(r.error) for r in rows]
    after, top = max(abs(r.after_backward) for r in rows), max(abs(r.optimizer) for r in rows)
    return (
        f"{name}: {len(rows)} cases, median {statistics.median(errors):.3f} %, largest {max(errors):.3f} %; "
        f"after backward within {after:.3f} %, optimizer within {top:.3f} %"
    )


def reserved(rows: list[Row]) -> list[str]:
    """How well the memory that the allocator holds is known."""
    lines: list[str] = []
    for api in ("fsdp2", "fsdp1", "ddp"):
        some = [r for r in rows if r.api == api]
        if some:
            errors = [abs(r.reserved_now / r.reserved - 1) * 100 for r in some]
            wide = statistics.median((r.reserved_high - r.reserved_low) / r.reserved * 100 for r in some)
            inside = [r for r in some if r.within(r.reserved)]
            again = [r.within(held(m)) for r in some for m in r.again]
            lines.append(
                f"- {api}: the measured figure lies in the band in {len(inside)} of {len(some)} cases"
                + (f" and in {sum(again)} of {len(again)} further runs of some" if again else "")
                + f"; median width of the band {wide:.2f} %. A GPU that keeps up with the host: median error "
                f"{statistics.median(errors):.2f} %, largest {max(errors):.1f} %."
            )
            missed = ", ".join(r.name for r in some if r not in inside)
            lines += [f"  Outside: {missed}."] if missed else []
    return lines


def rests(rows: list[Row]) -> list[str]:
    """Cases whose figures after backward or in the optimizer are off by more than a thousandth."""
    lines: list[str] = []
    for r in rows:
        if max(abs(r.after_backward), abs(r.optimizer)) > 0.1:
            after, top = (f"{b / 2**20:+.2f} MiB" for b in r.rest)
            seen = [_bytes(a["opt_peak"]) for a in r.again if "opt_peak" in a]
            spread = ", ".join(f"{100 * (r.predicted_rest / s - 1):+.3f} %" for s in seen)
            lines.append(
                f"- {r.name}: after backward {r.after_backward:+.3f} % ({after}), "
                f"optimizer {r.optimizer:+.3f} % ({top})" + (f"; of a further run {spread}" if spread else "")
            )
    return lines


def buckets(rows: list[Row]) -> list[str]:
    """DDP's first buckets: gone at once, or only after the backward in which they were replaced."""
    lines: list[str] = []
    for r in rows:
        if r.late:
            seen = ", ".join(f"{m / 2**30:.3f}" for m in (r.measured, *(_bytes(a["peak"]) for a in r.again)))
            lines.append(
                f"- {r.name}: predicted {r.predicted / 2**30:.3f} GiB, with late buckets {r.late / 2**30:.3f}; "
                f"measured {seen}."
            )
    return lines


def held(measured: Mapping[str, object]) -> int:
    """What the allocator held at most, less what cuBLAS had taken before the model came."""
    return _bytes(measured["reserved"]) - (_bytes(measured.get("base", WARM)) >> 21 << 21)


def _bytes(value: object) -> int:
    assert isinstance(value, int)
    return value


def row(
    case: dict[str, object],
    measured: dict[str, object],
    found: EventList | str,
    again: Iterable[dict[str, object]] = (),
) -> Row | None:
    """The errors of one case; refusals are printed."""
    if isinstance(found, str):
        print(f"{measured['id']}: {found}")
        return None
    longer = with_another(found)
    later = simulate(longer)
    three = steps(later.phases)
    last, real = three[-1], measured["steps"][-1]  # type: ignore[index]
    peak = max(max(s.fwd_bwd_peak, s.opt_peak) for s in three)

    def off(a: int, b: object) -> float:
        assert isinstance(b, int)
        return 100 * (a / b - 1)

    low, high = bounds.reserved(longer, later)
    return Row(
        name=str(measured["id"]),
        api=str(case["api"]),
        measured=measured["peak"],  # type: ignore[arg-type]
        predicted=peak,
        error=off(peak, measured["peak"]),
        after_backward=off(last.after_backward, real["after_backward"]),
        optimizer=off(last.opt_peak, real["opt_peak"]),
        reserved=held(measured),
        reserved_low=low,
        reserved_high=high,
        reserved_now=later.reserved_peak,
        late=bounds.late_buckets(found) if case["api"] == "ddp" else 0,
        predicted_rest=last.opt_peak,
        rest=(last.after_backward - real["after_backward"], last.opt_peak - real["opt_peak"]),
        again=tuple(again),
    )
