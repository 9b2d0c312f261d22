"""What counts memory while a job runs on real tensors: CUDA's own allocator, or a count of storages.

Both are asked the same questions, so that all of a measurement but the calls of torch.cuda runs on a CPU too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from . import device_memory
from .events import Events
from .kernels import Kernels
from .storages import tensors
from .tracker import Tracker

ROUND = 512
"""Bytes to which a block is rounded."""
HISTORY = 1 << 20
"""Entries of CUDA's history that are kept."""


@dataclass(frozen=True)
class Entry:
    """One allocation or free, in program order."""

    freed: bool
    address: int
    size: int
    """Bytes as requested."""
    stream: int


class Meter(Protocol):
    """All bytes but those of `about` are over the base that was there when counting began."""

    device: str

    def start(self) -> None:
        """Warm up what libraries keep, and begin to count."""

    def allocated(self) -> int:
        """Bytes of living blocks."""

    def peak(self) -> int:
        """The most since the last `reset`."""

    def reserved(self) -> int:
        """The most that was reserved since the last `reset`, base included."""

    def reset(self) -> None:
        """Begin a new phase."""

    def position(self) -> int:
        """Allocations and frees so far."""

    def address(self, tensor: torch.Tensor) -> int:
        """What `Entry.address` is for a tensor's block."""

    def recorded(self) -> Any:
        """A context that yields a list, which holds the history when it is left."""

    def about(self) -> dict[str, Any]:
        """The device, the libraries' versions, and what the process takes of the device."""


class CudaMeter:
    """The caching allocator's counters, on the first visible GPU. Only run where there is one."""

    device = "cuda"

    def __init__(self) -> None:
        self._base = 0
        self._before = device_memory.used()

    def start(self) -> None:
        """See `Meter`. The calls are those after which the predictions' base is defined."""
        torch.cuda.set_device(0)
        torch.zeros(1, device="cuda")
        self._context = _outside()
        a = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        (a @ a).sum().backward()
        a.float() @ a.float()
        del a
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._base = torch.cuda.memory_allocated()
        self.reset()

    def allocated(self) -> int:
        """See `Meter`."""
        return int(torch.cuda.memory_allocated()) - self._base

    def peak(self) -> int:
        """See `Meter`."""
        return int(torch.cuda.max_memory_allocated()) - self._base

    def reserved(self) -> int:
        """See `Meter`."""
        return int(torch.cuda.max_memory_reserved())

    def reset(self) -> None:
        """See `Meter`."""
        torch.cuda.reset_peak_memory_stats()

    def position(self) -> int:
        """See `Meter`."""
        counts = torch.cuda.memory_stats_as_nested_dict()["allocation"]["all"]
        return int(counts["allocated"] + counts["freed"])

    def address(self, tensor: torch.Tensor) -> int:
        """See `Meter`."""
        return int(tensor.untyped_storage().data_ptr())

    @contextmanager
    def recorded(self) -> Iterator[list[Entry]]:
        """See `Meter`."""
        memory = torch.cuda.memory
        found: list[Entry] = []
        memory._record_memory_history("all", context=None, stacks="python", max_entries=HISTORY)
        try:
            yield found
            found += (
                Entry(e["action"] != "alloc", e["addr"], e["size"], e["stream"])
                for e in memory._snapshot()["device_traces"][0]
                if e["action"] in ("alloc", "free_requested")
            )
        finally:
            memory._record_memory_history(None)

    def about(self) -> dict[str, Any]:
        """See `Meter`."""
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        one = torch.cuda.get_device_properties(0)
        mine = str(getattr(one, "uuid", ""))
        after = device_memory.used()
        return {
            **versions(),
            "gpu": one.name,
            "sm": one.major * 10 + one.minor,
            "total_bytes": total,
            "free_bytes": free,
            "base_bytes": self._base,
            "context_bytes": self._context,
            "reserved_now_bytes": torch.cuda.memory_reserved(),
            "outside_bytes": _outside(),
            "nvml_before_bytes": device_memory.of(self._before, mine),
            "nvml_after_bytes": device_memory.of(after, mine),
        }


def versions() -> dict[str, Any]:
    """Of the libraries that choose kernels."""
    try:
        cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    except RuntimeError:  # another cuDNN is found than torch was built with
        cudnn = None
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": cudnn}


def _outside() -> int:
    """Bytes of the device that no allocator of this process has reserved; other processes' are among them."""
    free, total = torch.cuda.mem_get_info()
    return int(total - free - torch.cuda.memory_reserved())


class CountingMeter(Tracker):
    """Storages of CPU tensors, with the same rules for when one lives that a replay has. No allocator."""

    device = "cpu"

    def __init__(self, limit: int | None = None) -> None:
        super().__init__(Events(), Kernels({}))
        self._limit = limit
        self._now = self._top = 0
        self._sizes: dict[int, int] = {}
        self._entries: list[Entry] | None = None
        self._count = 0

    def start(self) -> None:
        """See `Meter`."""
        self.__enter__()

    def allocated(self) -> int:
        """See `Meter`."""
        return self._now

    def peak(self) -> int:
        """See `Meter`."""
        return self._top

    def reserved(self) -> int:
        """See `Meter`: a count of storages reserves nothing else."""
        return self._top

    def reset(self) -> None:
        """See `Meter`."""
        self._top = self._now

    def position(self) -> int:
        """See `Meter`."""
        return self._count

    def address(self, tensor: torch.Tensor) -> int:
        """See `Meter`."""
        entry = self.live.get(tensor.untyped_storage()._cdata)
        return entry.block + 1 if entry is not None else 0

    @contextmanager
    def recorded(self) -> Iterator[list[Entry]]:
        """See `Meter`."""
        found: list[Entry] = []
        self._entries = found
        try:
            yield found
        finally:
            self._entries = None

    def about(self) -> dict[str, Any]:
        """See `Meter`."""
        return {**versions(), "gpu": "", "sm": 0, "base_bytes": 0}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and count what it makes."""
        for kind in types:
            if issubclass(kind, DTensor):
                return NotImplemented
        out = func(*args, **(kwargs or {}))
        if not self.paused:
            for tensor in tensors(out):
                if tensor.device.type == "cpu" and not isinstance(tensor, (DTensor, FakeTensor)):
                    self.watch(tensor.untyped_storage(), str(func))
        return out

    def _new(self, size: int, operator: str, host: bool = False) -> int:
        block = super()._new(size, operator, host)
        if block < 0:
            return block
        rounded = -(-size // ROUND) * ROUND
        if self._limit is not None and self._now + rounded > self._limit:
            self._out_of_memory(size)
        self._sizes[block] = size
        self._now += rounded
        self._top = max(self._top, self._now)
        self._note(Entry(False, block + 1, size, 0))
        return block

    def _drop(self, block: int, host: bool = False) -> None:
        super()._drop(block, host)
        if block in self._sizes and block not in self.refs:
            size = self._sizes.pop(block)
            self._now -= -(-size // ROUND) * ROUND
            self._note(Entry(True, block + 1, size, 0))

    def _note(self, entry: Entry) -> None:
        self._count += 1
        if self._entries is not None:
            self._entries.append(entry)

    def _out_of_memory(self, size: int) -> None:
        assert self._limit is not None
        mib = 1 << 20
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {size / mib:.2f} MiB. GPU 0 has a total capacity of "
            f"{self._limit / mib:.2f} MiB of which {(self._limit - self._now) / mib:.2f} MiB is free. Of the "
            f"allocated memory {self._now / mib:.2f} MiB is allocated by PyTorch, and 0 bytes is reserved by "
            "PyTorch but unallocated."
        )


def meter(asked: dict[str, Any]) -> Any:
    """The meter that a job asks for."""
    if asked.get("meter") == "counting":
        return CountingMeter(asked.get("limit_bytes"))
    return CudaMeter()
