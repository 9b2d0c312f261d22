"""Memory that the allocator holds beside what tensors take."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.memory._common import TIGHT
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Confidence, Finding, Fix, Row, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.memory import MemoryAnswer
from fsdp_doctor.tables.units import memory_size as size

GAP = 0.1
"""Part of the allocated peak by which reserved memory is more, from which it is worth a change."""
SAVES = 0.25
"""Part of the gap that expandable segments must take away to be advised for it."""


@check("MEM012", Row.OOM, needs=(MemoryAnswer,), tags=("memory",), cost=Cost.SECONDS)
def reserved_far_above_allocated(facts: Facts, options: Options) -> Iterator[Finding]:
    """The allocator reserves far more than tensors take.

    What: Compares what the caching allocator reserves, as the replay fills its segments, with the peak of
        allocated memory; warns where reserved memory and the overhead come close to the GPU's memory or above
        it, and says what the replay reserves with expandable segments.
    Why: Free blocks between tensors of other sizes cannot be joined across segments: near the GPU's limit
        the allocator gives segments back and takes them anew (num_alloc_retries), which stops all ranks, or
        runs out of memory with gigabytes reserved but unallocated.
    Fix: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, where the replay says that it saves.
    Sources: c10/cuda/CUDACachingAllocator.cpp; PyTorch, CUDA semantics (memory management).
    """
    f = facts[MemoryAnswer].forecast
    if f is None:
        yield skip("there is no forecast")
        return
    if f.capacity is None:
        yield skip(f"no GPU was named; {size(f.reserved_high)} are reserved", enable='--gpu "H100 80GB"')
        return
    gap = f.reserved_high - f.highest
    if not f.fits or f.device <= TIGHT * f.capacity or gap < GAP * f.highest:
        yield ok(f"reserved up to {size(f.reserved_high)}, allocated {size(f.highest)}")
        return
    saves = f.reserved_high - f.reserved_expandable
    over = f.device - f.capacity
    helps = saves >= SAVES * gap
    limit = f"{size(over)} more than" if over > 0 else "close to"
    after = f"; with expandable segments {size(f.reserved_expandable)}"
    yield warn(
        f"reserved may reach {size(f.reserved_high)} where tensors take {size(f.highest)}: with the overhead "
        f"{size(f.device)}, {limit} the GPU's {size(f.capacity)}{after}",
        f"reserved and overhead below {TIGHT:.0%} of the GPU",
        fix=Fix(
            f"Let segments grow (expandable_segments:True), which saves {size(saves)} of it",
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )
        if helps
        else Fix(
            "Expandable segments save little of it here: batches of one shape, or a smaller peak "
            "(fsdp-doctor dryrun … --advise), leave more room"
        ),
        confidence=Confidence.MEDIUM,
    )
