"""The largest value that fits: memory is close to affine in it, so that few replays bracket it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

ROUNDS = 14
AFFINE_ROUNDS = 5
"""Rounds after which halving takes over from the straight line."""
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
            return Found(low or 0, points[high], _sorted(points), True)
        if low is not None and low >= MOST:
            why = f"{MOST} still fits"
            break
        guesses = [g for g in _guesses(points, capacity, step, low, high, round_) if g not in points]
        if not guesses:
            why = "what it needs does not grow with it"
            break
        fresh = {v: p for v, p in measure(guesses).items() if v in guesses}
        points.update(fresh)
        if not fresh:
            why = "time ended"
            break
    else:
        why = f"not settled by {len(points)} replays"
    low, high = _bracket(points, capacity)
    return Found(low, points[high] if high is not None else None, _sorted(points), False, why)


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
    if round_ >= AFFINE_ROUNDS and high is not None:
        return [_multiple(((low or 0) + high) / 2, step, low, high)]
    known = sorted((v, p.needed) for v, p in points.items() if p.needed is not None)
    if not known:
        return [_multiple((high or step) / 2, step, low, high)]
    if len(known) == 1:
        value, needed = known[0]
        ratio = value * capacity / max(1, needed)
        far = ratio if needed <= capacity else value / 2
        near = 2 * value if needed <= capacity else ratio
        return sorted({_multiple(far, step, low, high), _multiple(near, step, low, high)})
    (a, x), (b, y) = _nearest(known, capacity)
    if y <= x:
        return [] if high is None else [_multiple(((low or 0) + high) / 2, step, low, high)]
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
