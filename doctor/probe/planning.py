"""What a probe measures: sizes from the command line, and plans for GPUs and CPU ranks, full and short."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from fsdp_doctor.probe.tournament import GIB, KIB, MIB, rounded, sizes
from fsdp_doctor.subjects.probe import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, ProbePlan

NCCL, GLOO = "nccl", "gloo"
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?\Z", re.IGNORECASE)
UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB}
STEP = 4
"""Ratio of neighbouring sizes of a range."""
LARGEST = 1 << 40
PAIRS_UP_TO = 16
"""Ranks up to which pairs are tried unless it is said otherwise: they take a round per rank."""
DEFAULT_OPS = (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE)


class SizeError(ValueError):
    """A size that cannot be used; the message says what one looks like."""


class Effort(Enum):
    """How much time a probe may take."""

    FULL = "full"
    SHORT = "short"
    """Enough to find what is broken, in seconds."""


def parse_sizes(text: str) -> tuple[int, ...]:
    """Bytes of "64K:1G" (each four times the one before, and both ends) or "64K,1M". Raises `SizeError`."""
    if ":" in text:
        low, _, high = text.partition(":")
        first, last = parse_size(low), parse_size(high)
        if first > last:
            raise SizeError(f"{text}: the first size is larger than the last")
        found = []
        while first < last:
            found.append(first)
            first *= STEP
        return (*found, last)
    return tuple(sorted({parse_size(part) for part in text.split(",") if part.strip()}))


def parse_size(text: str) -> int:
    """Bytes of one size such as 64K, 1.5MiB or 4096. Raises `SizeError`."""
    found = SIZE.match(text.strip())
    value = int(float(found[1]) * UNITS[found[2].upper()]) if found else 0
    if not 0 < value <= LARGEST:
        raise SizeError(f"{text.strip() or 'nothing'}: not a size; write 64K, 1M, 1G or a number of bytes")
    return value


GPU_SIZES = {
    Effort.FULL: (64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB),
    Effort.SHORT: (64 * KIB, 64 * MIB, 512 * MIB),
}
CPU_SIZES = {Effort.FULL: (64 * KIB, MIB, 16 * MIB), Effort.SHORT: (64 * KIB, 4 * MIB)}
GPU_PAIR, CPU_PAIR = 64 * MIB, 4 * MIB
COPY = 256 * MIB
SECONDS = {
    NCCL: {Effort.FULL: (120.0, 30.0, 3.0), Effort.SHORT: (30.0, 15.0, 0.4)},
    GLOO: {Effort.FULL: (90.0, 20.0, 1.0), Effort.SHORT: (25.0, 10.0, 0.25)},
}
"""Backend -> effort -> seconds for the whole, for one collective, for one operation at one size at most."""
SWEEP_SECONDS = 5.0
"""Of all operations and sizes on CPU cores, shared evenly: what is measured there is worth no more."""
LEAST_SECONDS = 0.2
"""Of one operation at one size in any case."""
WARMUP = {
    NCCL: {Effort.FULL: 5, Effort.SHORT: 3},
    GLOO: {Effort.FULL: 3, Effort.SHORT: 3},
}


def plan(
    backend: str,
    ranks: int,
    effort: Effort = Effort.FULL,
    *,
    ops: Sequence[str] = DEFAULT_OPS,
    sweep: Sequence[int] = (),
    units: Sequence[int] = (),
    pairs: bool | None = None,
    seconds: float | None = None,
) -> ProbePlan:
    """The plan for so many ranks. `seconds` bounds the whole; `pairs` None: where there are few ranks."""
    on_gpu = backend == NCCL
    whole, timeout, per_size = SECONDS[backend][effort]
    if seconds is not None:
        whole = seconds
    chosen = tuple(sweep) or (GPU_SIZES if on_gpu else CPU_SIZES)[effort]
    planned = sizes(ranks, chosen, units)
    if not on_gpu:
        share = SWEEP_SECONDS / max(len(planned) * len(ops), 1)
        per_size = min(per_size, max(share, LEAST_SECONDS))
    wanted = ranks > 1 and (pairs if pairs is not None else ranks <= PAIRS_UP_TO)
    return ProbePlan(
        backend=backend,
        ops=tuple(ops),
        sizes=planned,
        unit_sizes=tuple(sorted({rounded(u, ranks) for u in units})),
        warmup=WARMUP[backend][effort],
        size_seconds=per_size,
        copy_bytes=(COPY,) if on_gpu else (),
        pair_bytes=((GPU_PAIR if on_gpu else CPU_PAIR),) if wanted else (),
        # Sums on CPU cores are taken in a type that every gloo has.
        dtype="bfloat16" if on_gpu else "float32",
        deadline_seconds=whole,
        timeout_seconds=min(timeout, whole / 2),
    )
