"""The answers of torch.cuda on a machine that has no GPU, for the GPU that the job is meant for."""

from __future__ import annotations

import types
from typing import Any

import torch

from ..events import Events
from ..tracker import Tracker
from . import ordinals
from .devices import CUDA
from .notes import Notes, Refusal, by_torch

ROUND = 512
"""Bytes to which the caching allocator rounds."""


class Counted(Events):
    """Events that also know what is allocated now, for scripts that ask."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._sizes: dict[int, int] = {}

    def allocate(self, size: int, stream: int, operator: str, module: int, host: bool = False) -> int:
        """As `Events.allocate`."""
        block = super().allocate(size, stream, operator, module, host)
        if not host:
            rounded = self._sizes[block] = -(-size // ROUND) * ROUND
            self.now += rounded
            self.most = max(self.most, self.now)
        return block

    def free(self, block: int, host: bool = False) -> None:
        """As `Events.free`."""
        super().free(block, host)
        self.now -= self._sizes.pop(block, 0)


class Stream(torch.cpu.Stream):  # type: ignore[misc]
    """torch.cuda.Stream: the order of what is asked of it is all that a rehearsal needs."""

    def __init__(self, device: object = None, priority: int = 0, **_: object) -> None:
        super().__init__()
        self.priority, self.device, self.device_index, self.cuda_stream = priority, CUDA, 0, 0

    def wait_stream(self, stream: object) -> None:
        """Nothing has to wait."""

    def wait_event(self, event: object) -> None:
        """Nothing has to wait."""

    def query(self) -> bool:
        """All is done."""
        return True


def install(tracker: Tracker, notes: Notes, gpu: dict[str, Any], count: int) -> None:
    """Replace what asks the driver. `gpu`: name, bytes, sm, processors; `count` GPUs of one host."""
    events = tracker.events
    assert isinstance(events, Counted)
    cuda: Any = torch.cuda
    capability = divmod(int(gpu["sm"]), 10)
    total = int(gpu["bytes"])
    name = str(gpu["name"])
    properties = types.SimpleNamespace(
        name=name,
        total_memory=total,
        major=capability[0],
        minor=capability[1],
        multi_processor_count=int(gpu.get("processors", 132)),
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName="",
        uuid="",
        L2_cache_size=50 << 20,
        max_threads_per_multi_processor=2048,
        warp_size=32,
    )
    constant: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": count,
        "_device_count_nvml": count,
        "current_device": 0,
        "is_bf16_supported": capability[0] >= 8,
        "is_tf32_supported": capability[0] >= 8,
        "get_device_name": name,
        "get_device_capability": capability,
        "get_device_properties": properties,
        "get_arch_list": [f"sm_{gpu['sm']}"],
        "can_device_access_peer": True,
        "is_current_stream_capturing": False,
        "utilization": 0,
        "memory_usage": 0,
        "temperature": 0,
        "power_draw": 0,
        "memory_summary": "",
        "memory_snapshot": [],
        "list_gpu_processes": "",
        "initial_seed": 0,
        "get_sync_debug_mode": 0,
    }
    for key, value in constant.items():
        setattr(cuda, key, _returning(value))
    for key in (
        "init",
        "_lazy_init",
        "_lazy_call",
        "empty_cache",
        "ipc_collect",
        "reset_accumulated_memory_stats",
        "manual_seed",
        "manual_seed_all",
        "seed",
        "seed_all",
        "set_rng_state",
        "set_rng_state_all",
        "set_per_process_memory_fraction",
        "set_sync_debug_mode",
        "set_stream",
        "_sleep",
    ):
        setattr(cuda, key, _returning(None))
    ordinals.install(cuda)
    ordinals.listen(notes)
    cuda.synchronize = lambda *_, **__: tracker.waited(len(events))
    cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.get_rng_state_all = lambda *_, **__: [torch.get_rng_state()] * count
    cuda.memory._record_memory_history = _returning(None)
    cuda.memory._dump_snapshot = lambda path="dump_snapshot.pickle", *_: notes.unwritten(
        str(path), "snapshot"
    )
    _memory(cuda, events, total)
    _streams(cuda)
    _refused(cuda)
    _accelerator(count)
    if torch.version.cuda is None:
        version: Any = torch.version
        version.cuda = "12.8"
    nccl: Any = cuda.nccl
    nccl.version = _returning((2, 27, 3))
    for key in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(cuda.nvtx, key, _returning(0))


def _returning(value: Any) -> Any:
    return lambda *_, **__: value


def _memory(cuda: Any, events: Counted, total: int) -> None:
    def statistics(*_: object, **__: object) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": events.now,
            "allocated_bytes.all.peak": events.most,
            "active_bytes.all.current": events.now,
            "active_bytes.all.peak": events.most,
            "reserved_bytes.all.current": events.now,
            "reserved_bytes.all.peak": events.most,
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    def reset(*_: object, **__: object) -> None:
        events.most = events.now

    for owner in (cuda, cuda.memory):
        owner.memory_allocated = owner.memory_reserved = owner.memory_cached = lambda *_, **__: events.now
        owner.max_memory_allocated = owner.max_memory_reserved = lambda *_, **__: events.most
        owner.max_memory_cached = owner.max_memory_reserved
        owner.reset_peak_memory_stats = owner.reset_max_memory_allocated = reset
        owner.memory_stats = owner.memory_stats_as_nested_dict = statistics
        owner.mem_get_info = lambda *_, **__: (max(0, total - events.now), total)
        owner.empty_cache = _returning(None)


def _streams(cuda: Any) -> None:
    class Event(torch.cpu.Event):  # type: ignore[misc]  # the rehearsal's own by now
        """torch.cuda.Event; a time between two of them is assumed to be 1 ms."""

        def __init__(self, *_: object, **__: object) -> None:
            super().__init__()

        def elapsed_time(self, _: object) -> float:
            return 1.0

        def query(self) -> bool:
            return True

        def wait(self, stream: object = None) -> None:
            pass

    default = torch.cpu.current_stream()
    cuda.Stream, cuda.Event = Stream, Event
    cuda.stream = torch.cpu.stream
    cuda.current_stream = lambda *_, **__: _as_stream(torch.cpu.current_stream())
    cuda.default_stream = lambda *_, **__: _as_stream(default)


def _as_stream(stream: Any) -> Any:
    """A stream of torch's own with the methods that are asked of one of CUDA's."""
    if not hasattr(stream, "query"):
        stream.query, stream.cuda_stream, stream.device = _returning(True), 0, CUDA
    return stream


class _Graph:
    """torch.cuda.CUDAGraph and torch.cuda.graph: types in annotations, refused where one is made."""

    def __init__(self, *_: object, **__: object) -> None:
        raise Refusal("refused", "CUDA graphs are not rehearsed without a GPU: leave the capture out")


def _refused(cuda: Any) -> None:
    cuda.CUDAGraph = cuda.graph = cuda.make_graphed_callables = _Graph


def _accelerator(count: int) -> None:
    module: Any = getattr(torch, "accelerator", None)
    if module is None:
        return
    current = module.current_accelerator

    def accelerator(*args: Any, **kwargs: Any) -> Any:
        return current(*args, **kwargs) if by_torch() else torch.device("cuda")

    module.current_accelerator = accelerator
    for name, value in (("is_available", True), ("device_count", count), ("current_device_index", 0)):
        setattr(module, name, _returning(value))
    for name in ("set_device_index", "set_device_idx"):
        setattr(module, name, ordinals.named)
    for name in ("synchronize", "empty_cache", "set_stream"):
        setattr(module, name, _returning(None))
