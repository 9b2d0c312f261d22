"""Two devices on a machine without a GPU: host tensors are real, those on "cuda" are fake.

Torch tells `cpu` from `cpu:0` wherever it compares devices (moves, mixed operands, FSDP's checks), and runs
the same kernels and the same autograd queue for both. `cpu:0` therefore stands for the GPU: `cuda` is
translated on its way in, and what the script and its libraries read off a tensor is translated back. Tensors
on it are fake; on the host everything is computed, so that loaders, samplers and counters do what they do in
the job.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.distributed.utils import _to_kwargs

from .. import values
from ..events import Events
from ..kernels import Kernels
from ..tracker import Tracker
from . import ordinals

aten = torch.ops.aten
GPU = torch.device("cpu", 0)
"""Stands for cuda:0."""
CUDA = torch.device("cuda", 0)
HOST = torch.device("cpu")
LARGEST_HOST = 256 << 20
"""Bytes of a host tensor above which it is fake too: nobody waits for a table of random numbers."""


def translated(value: Any) -> Any:
    """A device argument with `cpu:0` in place of any `cuda`."""
    ordinals.named(value)
    if isinstance(value, torch.device):
        return GPU if value.type == "cuda" else value
    if isinstance(value, int) and not isinstance(value, bool):
        return GPU
    if isinstance(value, str) and value.split(":")[0] == "cuda":
        return GPU
    return value


def on_gpu(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """What a root module is called with, moved to the GPU as DDP and FSDP move it."""
    moved, named = _to_kwargs(args, kwargs, GPU, False)
    return moved[0], named[0]


class DeviceTracker(Tracker):
    """The tracker of a script: what is on the GPU is fake and counted, what is on the host is real."""

    def __init__(self, events: Events, kernels: Kernels, fake: FakeTensorMode) -> None:
        super().__init__(events, kernels)
        self.fake = fake

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Decide by the device and the operands whether an operator is run or only followed."""
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and device.type == "cuda":
            ordinals.named(device)
            kwargs = {**kwargs, "device": GPU}
            device = GPU
        if any(issubclass(kind, FakeTensor) for kind in types):
            if func is aten._to_copy.default and device == HOST:
                copied = _known_copy(func, args[0], kwargs)
                if copied is not None:
                    return copied
            return super().__torch_dispatch__(func, types, args, kwargs)
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if device == GPU:
            if func is aten._to_copy.default:
                return self._moved(args[0], kwargs.get("dtype") or args[0].dtype)
            with self.fake:
                return super().__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **kwargs)

    def _made_on_host(self, func: Any, args: Any, kwargs: Any) -> bool:
        return False

    def _lies_on_host(self, tensor: Any, made_on_host: bool) -> bool | None:
        fake = isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cpu"
        return bool(tensor.fake_device != GPU) if fake else None

    def _moved(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A real tensor on the GPU; torch would keep one of a single element where it was."""
        shape = torch.empty_like(tensor, dtype=dtype, device="meta")
        with self.fake:
            made = torch.empty_strided(shape.size(), shape.stride(), dtype=dtype, device=GPU)
        self.watch(made.untyped_storage(), "aten::_to_copy")
        if values.worth(tensor) and tensor.device.type == "cpu":
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                made._doctor_value = tensor.detach().to(dtype, copy=True)
        return made

    def faked(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake host tensor in place of a real one; small values are kept beside it."""
        with self.fake, self, torch.no_grad():
            made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
        if values.worth(tensor) and tensor.numel():
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                made._doctor_value = tensor.detach().clone()
        return made


def _known_copy(func: Any, tensor: Any, kwargs: Any) -> Any:
    """A real tensor on the host where the values of one on the GPU are known; None where they are not."""
    found = values.shadow(tensor)
    if found is None or (tensor.requires_grad and torch.is_grad_enabled()):
        return None
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        return func(found, **kwargs)


def real(tensor: Any) -> bool:
    """Whether a tensor is a plain one on the host."""
    return (
        isinstance(tensor, torch.Tensor)
        and not isinstance(tensor, (FakeTensor, DTensor))
        and tensor.device.type == "cpu"
    )


def fake_buffers(tracker: DeviceTracker, module: torch.nn.Module) -> None:
    """FSDP moves buffers by assigning their data, which needs one kind of tensor on both sides."""
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if real(buffer):
                part._buffers[name] = tracker.faked(buffer)


def fake_parameters(tracker: DeviceTracker) -> None:
    """Parameters are fake from the first: a model takes no host memory, and its values are not needed."""
    parameter: Any = torch.nn.Parameter
    new = parameter.__new__

    def made(cls: Any, data: Any = None, requires_grad: bool = True, *args: Any, **kwargs: Any) -> Any:
        if cls is parameter and real(data) and type(data) in (torch.Tensor, parameter):
            data = tracker.faked(data)
        return new(cls, data, requires_grad, *args, **kwargs)

    parameter.__new__ = staticmethod(made)
