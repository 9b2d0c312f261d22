"""The CUDA caching allocator's block rules, over sizes in program order.

Per stream there is a pool of small blocks (up to 1 MiB, from segments of 2 MiB) and one of large blocks
(from segments of 20 MiB below 10 MiB, else of the size rounded up to 2 MiB). The best fit is taken (of
several, the one at the lowest address) and split where the rest is worth it; freed neighbours are joined.
What torch counts as allocated is the block, not what was asked for. With expandable segments each pool is
one segment that grows by pages of 2 or 20 MiB.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

MIB = 1 << 20
ROUND = 512
SMALL = MIB
"""Requests up to here come from the small pool."""
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
MIDDLE = 10 * MIB
"""Requests below this get a segment of LARGE_SEGMENT; from here on segments are rounded to LARGE_ROUND."""
LARGE_ROUND = 2 * MIB


class Block:
    """A piece of a segment."""

    __slots__ = ("address", "following", "free", "previous", "size", "stream_small")

    def __init__(self, size: int, stream_small: int, address: int) -> None:
        self.size, self.stream_small, self.address = size, stream_small, address
        self.previous: Block | None = None
        self.following: Block | None = None
        self.free = False

    @property
    def stream(self) -> int:
        """The stream that it was allocated for."""
        return self.stream_small >> 1


@dataclass(slots=True)
class Counters:
    """What `torch.cuda.memory_allocated`, `memory_reserved` and their peaks say."""

    allocated: int = 0
    allocated_peak: int = 0
    reserved: int = 0
    reserved_peak: int = 0


class Allocator:
    """One GPU's allocator with default settings, or with expandable segments."""

    def __init__(self, expandable: bool = False) -> None:
        self.counters = Counters()
        self._expandable = expandable
        self._pools: dict[int, list[tuple[int, int, Block]]] = {}
        """Free blocks by size and address."""
        self._tails: dict[int, Block] = {}
        self._lowest = 0
        """The address of the last segment: the driver hands them out downwards."""

    def allocate(self, size: int, stream: int) -> Block:
        """A block for `size` bytes on a stream."""
        wanted = max(ROUND, -(-size // ROUND) * ROUND)
        small = wanted <= SMALL
        key = stream * 2 + small
        pool = self._pools.setdefault(key, [])
        at = bisect.bisect_left(pool, (wanted,))
        block = self._take(pool, at) if at < len(pool) else self._segment(wanted, small, key)
        rest = block.size - wanted
        if (rest >= ROUND) if (small or self._expandable) else (rest > SMALL):
            self._split(block, wanted, rest)
        counters = self.counters
        counters.allocated += block.size
        if counters.allocated > counters.allocated_peak:
            counters.allocated_peak = counters.allocated
        return block

    def count_freed(self, block: Block) -> None:
        """The block no longer counts as allocated."""
        self.counters.allocated -= block.size

    def reuse(self, block: Block) -> None:
        """The block may be handed out again: join it with free neighbours."""
        before, after = block.previous, block.following
        if before is not None and before.free:
            self._remove(before)
            block.size += before.size
            block.address = before.address
            block.previous = before.previous
            if before.previous is not None:
                before.previous.following = block
            if self._tails.get(block.stream_small) is before:
                self._tails[block.stream_small] = block
        if after is not None and after.free:
            self._remove(after)
            block.size += after.size
            block.following = after.following
            if after.following is not None:
                after.following.previous = block
            if self._tails.get(block.stream_small) is after:
                self._tails[block.stream_small] = block
        self._insert(block)

    def free(self, block: Block) -> None:
        """Give a block back at once."""
        self.count_freed(block)
        self.reuse(block)

    def _segment(self, wanted: int, small: bool, key: int) -> Block:
        if self._expandable:
            return self._grow(wanted, small, key)
        if small:
            size = SMALL_SEGMENT
        elif wanted < MIDDLE:
            size = LARGE_SEGMENT
        else:
            size = -(-wanted // LARGE_ROUND) * LARGE_ROUND
        self._reserve(size)
        self._lowest -= size
        return Block(size, key, self._lowest)

    def _grow(self, wanted: int, small: bool, key: int) -> Block:
        """Map more pages behind the pool's last block, which is used too where it is free."""
        page = SMALL_SEGMENT if small else LARGE_SEGMENT
        tail = self._tails.get(key)
        have = tail.size if tail is not None and tail.free else 0
        size = -(-(wanted - have) // page) * page
        self._reserve(size)
        if tail is not None and tail.free:
            self._remove(tail)
            tail.size += size
            tail.free = False
            return tail
        block = Block(size, key, 0 if tail is None else tail.address + tail.size)
        block.previous = tail
        if tail is not None:
            tail.following = block
        self._tails[key] = block
        return block

    def _reserve(self, size: int) -> None:
        self.counters.reserved += size
        self.counters.reserved_peak = max(self.counters.reserved_peak, self.counters.reserved)

    def _split(self, block: Block, wanted: int, rest: int) -> None:
        remainder = Block(rest, block.stream_small, block.address + wanted)
        remainder.previous, remainder.following = block, block.following
        if block.following is not None:
            block.following.previous = remainder
        block.following, block.size = remainder, wanted
        if self._tails.get(block.stream_small) is block:
            self._tails[block.stream_small] = remainder
        self._insert(remainder)

    def _insert(self, block: Block) -> None:
        block.free = True
        bisect.insort(self._pools[block.stream_small], (block.size, block.address, block))

    def _remove(self, block: Block) -> None:
        pool = self._pools[block.stream_small]
        del pool[bisect.bisect_left(pool, (block.size, block.address))]
        block.free = False

    def _take(self, pool: list[tuple[int, int, Block]], at: int) -> Block:
        block = pool.pop(at)[2]
        block.free = False
        return block
