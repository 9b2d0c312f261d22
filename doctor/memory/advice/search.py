"""The largest value that fits: memory is close to affine in it, so that few replays bracket it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

ROUNDS = 32
AFFINE_ROUNDS = 5
"""Rounds after which halving takes over from the straight line."""
FLAT = 256
"""Times the first value: where nothing more is needed there, it has no influence."""
MOST = 1 << 24
"""Values are not tried beyond."""


@dataclass(frozen=True, slots=True)
class Point:
    """One value that was replayed. Bytes that one rank needs, or why the model does not take it."""

    value: int
    needed: int | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to."""

    value: int | None
    """The largest that fits, replayed in full; 0 where the smallest does not, None where none is known."""
    next: Point | None
    """The next larger one, replayed too: it does not fit, or the model does not take it."""
    points: tuple[Point, ...]
    confirmed: bool
    """Whether `value` and `next` are neighbours; else time ended before."""
    why: str = ""
    """Why it is not confirmed."""


Measure = Callable[[Sequence[int]], Mapping[int, Point]]


def largest(measure: Measure, start: Point, capacity: int, step: int = 1) -> Found:
    """Search multiples of `step` from a known point. `measure` leaves out what time does not allow."""
    points = {start.value: start}
    why = ""
    for round_ in range(ROUNDS):
        low, high = _bracket(points, capacity)
        if high is not None and high - (low or 0) <= step:
            break
        if low is not None and low >= MOST:
            why = f"{MOST} still fits"
            break
        if high is None and low is not None and _is_flat(points, low):
            why = "what it needs does not grow with it"
            break
        wanted = _guesses(points, capacity, step, low, high, round_)
        guesses = [g for g in wanted if g not in points] or [_halfway(step, low, high)]
        fresh = {v: p for v, p in measure(guesses).items() if v in guesses}
        points.update(fresh)
        if not fresh:
            why = "time ended"
            break
    low, high = _bracket(points, capacity)
    after = points[high] if high is not None else None
    if high is not None and high - (low or 0) <= step:
        return Found(low or 0, after, _sorted(points), True)
    return Found(low, after, _sorted(points), False, why or f"not settled by {len(points)} replays")


def _is_flat(points: Mapping[int, Point], low: int) -> bool:
    """Whether much larger values need no more than the smallest one."""
    first = points[min(points)]
    return low >= FLAT * first.value and (points[low].needed or 0) <= (first.needed or 0)


def _halfway(step: int, low: int | None, high: int | None) -> int:
    """The middle of the bracket; twice as much where it has no upper end."""
    return _multiple(2 * (low or step) if high is None else ((low or 0) + high) / 2, step, low, high)


def _bracket(points: Mapping[int, Point], capacity: int) -> tuple[int | None, int | None]:
    """The smallest value that does not fit, and the largest below it that does."""
    high = min((v for v, p in points.items() if not _fits(p, capacity)), default=None)
    low = max(
        (v for v, p in points.items() if _fits(p, capacity) and (high is None or v < high)), default=None
    )
    return low, high


def _fits(point: Point, capacity: int) -> bool:
    return point.needed is not None and point.needed <= capacity


def _guesses(
    points: Mapping[int, Point], capacity: int, step: int, low: int | None, high: int | None, round_: int
) -> list[int]:
    """Neighbours of where the line through the nearest points crosses the capacity."""
    if high is not None and (round_ >= AFFINE_ROUNDS or points[high].needed is None):
        return [_halfway(step, low, high)]
    known = sorted((v, p.needed) for v, p in points.items() if p.needed is not None)
    if not known:
        return []
    if len(known) == 1:
        value, needed = known[0]
        ratio = value * capacity / max(1, needed)
        far = ratio if needed <= capacity else value / 2
        near = 2 * value if needed <= capacity else ratio
        return sorted({_multiple(far, step, low, high), _multiple(near, step, low, high)})
    (a, x), (b, y) = _nearest(known, capacity)
    if y <= x:
        return []
    crossing = min(a + (capacity - x) * (b - a) / (y - x), MOST, 64.0 * known[-1][0])
    first = _multiple(crossing, step, low, high)
    second = _multiple(first + step, step, low, high)
    return [first] if second == first else [first, second]


def _nearest(known: Sequence[tuple[int, int]], capacity: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Two points on both sides of the capacity where there are, else the last two on one side."""
    below = [k for k in known if k[1] <= capacity]
    above = [k for k in known if k[1] > capacity]
    if below and above:
        return below[-1], above[0]
    return (known[-2], known[-1]) if below else (known[0], known[1])


def _multiple(value: float, step: int, low: int | None, high: int | None) -> int:
    """The multiple of `step` at or below a value, inside the bracket where it has room."""
    found = max(step, int(value // step) * step)
    if high is not None:
        found = min(found, (high - 1) // step * step)
    if low is not None:
        found = max(found, (low // step + 1) * step)
    return max(step, found)


def _sorted(points: Mapping[int, Point]) -> tuple[Point, ...]:
    return tuple(points[v] for v in sorted(points))
