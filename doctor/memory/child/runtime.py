"""What in torch's own Python differs between CUDA and the fake CPU that stands for it."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import backward_streams, outside
from .tracker import Tracker
from .where import Labelled


def patch(tracker: Tracker, offload: bool = False) -> None:
    """Mend the differences. They hold for the whole process."""
    if not offload:
        _foreach()  # what is on the host is stepped by a loop over the parameters
    _addresses()
    _streams(tracker)
    backward_streams.follow()
    _propagation(tracker)
    label_buffers(tracker)
    outside.made_there(tracker)
    _no_tracing()
    tracker.waiting.follow_draws()


def _no_tracing() -> None:
    """Transformers takes a fake tensor for one that is traced, and then builds masks in vain."""
    module = sys.modules.get("transformers.utils.import_utils")
    if module is not None and hasattr(module, "is_fake_tensor"):
        setattr(module, "is_fake_tensor", lambda _: False)  # noqa: B010 - a module of another package


def _foreach() -> None:
    """Optimizers take the multi-tensor way by default on CUDA."""
    import torch.optim.optimizer as optimizer
    import torch.utils._foreach_utils as utils

    kinds = [*utils._get_foreach_kernels_supported_devices(), "cpu"]
    for module in (utils, optimizer):
        module._get_foreach_kernels_supported_devices = lambda: kinds
        module._foreach_supported_types.append(FakeTensor)


def _addresses() -> None:
    """FSDP1 tells by addresses whether a unit is gathered; those of fakes are all 0."""
    import torch.distributed.fsdp._flat_param as flat_param
    import torch.distributed.utils as utils

    def data_ptr(t: Any) -> int:
        storage = t.untyped_storage()
        return storage._cdata + t.storage_offset() * t.element_size() if storage.size() else 0

    def allocated(t: Any) -> bool:
        return bool(t.untyped_storage().size() > 0)

    FakeTensor.data_ptr = data_ptr
    for module in (utils, flat_param):
        if hasattr(module, "_data_ptr_allocated"):
            module._data_ptr_allocated = allocated


def _streams(tracker: Tracker) -> None:
    """record_stream and events decide when a freed block may be used again."""
    import torch.distributed.fsdp._common_utils as common
    import torch.distributed.fsdp._flat_param as flat_param
    import torch.distributed.fsdp._runtime_utils as runtime

    for module in (common, runtime, flat_param):
        if hasattr(module, "_no_dispatch_record_stream"):
            module._no_dispatch_record_stream = tracker.used_by

    class Event(torch.cpu.Event):  # type: ignore[misc]
        at = stream = 0

        def record(self, stream: object = None) -> Event:
            self.at, self.stream = len(tracker.events), tracker.number_of(stream)
            return self

        def synchronize(self) -> None:
            tracker.waited(self.at, self.stream)

    def synchronize(stream: object) -> None:
        tracker.waited(len(tracker.events), tracker.number_of(stream))

    torch.cpu.Event, torch.cpu.Stream.synchronize = Event, synchronize


def _propagation(tracker: Tracker) -> None:
    """DTensor finds shardings with tensors of the global shape, which are no memory."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    for name in (
        "_propagate_tensor_meta",
        "_propagate_tensor_meta_non_cached",
        "_propagate_tensor_meta_cached",
    ):
        if hasattr(ShardingPropagator, name):
            setattr(ShardingPropagator, name, tracker.pausing(getattr(ShardingPropagator, name)))


def label_buffers(noted: Labelled) -> None:
    """Name the buffers of FSDP for what they are."""
    import torch.distributed.fsdp._flat_param as flat_param
    import torch.distributed.fsdp._runtime_utils as runtime
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    for owner, name, label in (
        (FSDPParamGroup, "unshard", "fsdp: all-gather"),
        (FSDPParamGroup, "wait_for_unshard", "fsdp: unsharded parameters"),
        (FSDPParamGroup, "post_backward", "fsdp: reduce-scatter"),
        (flat_param.FlatParamHandle, "pre_unshard", "fsdp: low-precision shard"),
        (flat_param.FlatParamHandle, "unshard", "fsdp: unsharded parameters"),
        (runtime, "_reduce_grad", "fsdp: reduce-scatter"),
    ):
        if hasattr(owner, name):
            setattr(owner, name, noted.labelled(getattr(owner, name), label))
