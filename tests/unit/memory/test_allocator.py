"""The caching allocator's block rules, on sizes whose blocks are known from a GPU."""

from __future__ import annotations

import random

import pytest

from fsdp_doctor.memory.allocator import MIB, Allocator


def counted(*sizes: int) -> tuple[int, int]:
    """Allocated and reserved after these requests on one stream."""
    allocator = Allocator()
    for size in sizes:
        allocator.allocate(size, 0)
    return allocator.counters.allocated, allocator.counters.reserved


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (43 * MIB, 44 * MIB, 44 * MIB),  # the rest of 1 MiB is not worth a split
        (41 * MIB - 512, 41 * MIB - 512, 42 * MIB),
    ],
)
def test_one_request(size: int, allocated: int, reserved: int) -> None:
    assert counted(size) == (allocated, reserved)


def test_small_requests_share_a_segment() -> None:
    assert counted(*[512] * 4096) == (2 * MIB, 2 * MIB)
    assert counted(*[512] * 4097)[1] == 4 * MIB


def test_best_fit_and_joining_of_neighbours() -> None:
    allocator = Allocator()
    blocks = [allocator.allocate(4 * MIB, 0) for _ in range(5)]
    assert allocator.counters.reserved == 20 * MIB
    for b in (blocks[1], blocks[2]):
        allocator.free(b)
    allocator.allocate(8 * MIB, 0)
    assert allocator.counters.reserved == 20 * MIB


def test_of_equal_free_blocks_the_one_of_the_later_segment_is_taken() -> None:
    """The driver's addresses fall from segment to segment, and the lowest of the best fits is taken."""
    allocator = Allocator()
    first, second, third = (allocator.allocate(n * MIB, 0) for n in (32, 30, 32))
    for block in (third, second, first):
        allocator.free(block)
    taken = allocator.allocate(32 * MIB, 0)
    assert taken.address == third.address < second.address < first.address


def test_within_a_segment_the_first_gap_of_a_size_is_taken() -> None:
    allocator = Allocator()
    blocks = [allocator.allocate(4 * MIB, 0) for _ in range(5)]
    for block in (blocks[3], blocks[1]):
        allocator.free(block)
    assert allocator.allocate(4 * MIB, 0).address == blocks[0].address + 4 * MIB


def test_joined_blocks_begin_where_the_first_of_them_began() -> None:
    allocator = Allocator()
    blocks = [allocator.allocate(4 * MIB, 0) for _ in range(5)]
    for block in (blocks[2], blocks[3], blocks[1]):
        allocator.free(block)
    assert allocator.allocate(12 * MIB, 0).address == blocks[0].address + 4 * MIB


def test_streams_do_not_share() -> None:
    allocator = Allocator()
    allocator.free(allocator.allocate(30 * MIB, 0))
    allocator.allocate(30 * MIB, 1)
    assert allocator.counters.reserved == 60 * MIB
    assert allocator.counters.allocated_peak == 30 * MIB


def test_expandable_segments_grow_and_leave_no_gap() -> None:
    plain, growing = Allocator(), Allocator(expandable=True)
    for allocator in (plain, growing):
        held = []
        for i in range(1, 30):
            held.append(allocator.allocate(i * 12 * MIB, 0))
            if i % 3 == 0:
                allocator.free(held.pop(0))
    assert growing.counters.allocated_peak <= plain.counters.allocated_peak
    assert growing.counters.reserved < plain.counters.reserved


@pytest.mark.parametrize("expandable", [False, True])
def test_books_balance_whatever_comes(expandable: bool) -> None:
    rng = random.Random(7)
    allocator, held = Allocator(expandable), []
    for _ in range(4000):
        if held and rng.random() < 0.5:
            allocator.free(held.pop(rng.randrange(len(held))))
        else:
            held.append(allocator.allocate(int(2 ** rng.uniform(3, 27)), rng.randrange(3)))
        assert allocator.counters.allocated == sum(b.size for b in held)
        assert allocator.counters.allocated <= allocator.counters.reserved
    for b in held:
        allocator.free(b)
    assert allocator.counters.allocated == 0
    free = sum(size for pool in allocator._pools.values() for size, _, _ in pool)
    assert free == allocator.counters.reserved
