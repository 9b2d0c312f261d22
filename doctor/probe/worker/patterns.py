"""Data that tell where they came from: every element names its rank and its place, so that a slice in the
wrong place, a stale one and a damaged byte are all seen.

Collectives that move bytes carry a hash of (source, place). Sums carry small integers that bfloat16 adds
exactly in any order: a bit from one rank in `k`, and from one rank a code of the place below 127.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

STEP = 1 << 22
"""Elements that are made and compared at once."""
CODES = 127
LARGEST_COUNT = 128
GOLDEN = 0x9E3779B1


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor as 32-bit integers."""
    import torch

    return tensor.view(torch.int32)


def _pieces(count: int) -> list[tuple[int, int]]:
    return [(i, min(i + STEP, count)) for i in range(0, count, STEP)]


def coded(source: int, start: int, end: int, device: torch.device) -> torch.Tensor:
    """The words of a source at places `start` to `end`."""
    import torch

    places = torch.arange(start, end, dtype=torch.int64, device=device)
    mixed = (places * GOLDEN + (source + 1) * 0x85EBCA6B) & 0x7FFFFFFF
    return mixed.to(torch.int32)


def fill_coded(tensor: torch.Tensor, source: int) -> None:
    """Fill with the words of a source."""
    found = words(tensor)
    for a, b in _pieces(found.numel()):
        found[a:b] = coded(source, a, b, tensor.device)


def check_coded(tensor: torch.Tensor, source: int) -> str | None:
    """The first wrong word in words; None where all are right."""
    found = words(tensor)
    for a, b in _pieces(found.numel()):
        said = _difference(found[a:b], coded(source, a, b, tensor.device), a)
        if said is not None:
            return said
    return None


def _every(world: int) -> int:
    return max(1, -(-world // LARGEST_COUNT))


def fill_summand(tensor: torch.Tensor, rank: int, world: int) -> None:
    """A rank's part of a sum."""
    import torch

    every = _every(world)
    for a, b in _pieces(tensor.numel()):
        p = torch.arange(a, b, dtype=torch.int64, device=tensor.device)
        bits = ((p + rank) % every == 0).to(torch.int64)
        codes = torch.where(p % world == rank, (p // world) % CODES, torch.zeros_like(p))
        tensor[a:b] = (bits + codes).to(tensor.dtype)


def check_sum(tensor: torch.Tensor, world: int, offset: int = 0) -> str | None:
    """The first wrong element of a sum whose first place is `offset`; None where all are right."""
    import torch

    every = _every(world)
    counts = torch.tensor(
        [sum((p + r) % every == 0 for r in range(world)) for p in range(every)], dtype=torch.int64
    ).to(tensor.device)
    for a, b in _pieces(tensor.numel()):
        p = torch.arange(a + offset, b + offset, dtype=torch.int64, device=tensor.device)
        expected = (counts[p % every] + (p // world) % CODES).to(tensor.dtype)
        said = _difference(tensor[a:b], expected, a + offset)
        if said is not None:
            return said
    return None


def _difference(found: torch.Tensor, expected: torch.Tensor, offset: int) -> str | None:
    wrong = found != expected
    if not bool(wrong.any()):
        return None
    first = int(wrong.nonzero()[0])
    said = f"element {offset + first} is {found[first].item()}, expected {expected[first].item()}"
    return f"{said} ({int(wrong.sum())} of {wrong.numel()} wrong)"
