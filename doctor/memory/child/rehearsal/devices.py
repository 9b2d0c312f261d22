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

from .. import values
from ..events import Events
from ..kernels import Kernels
from ..tracker import Tracker, tensors
from .notes import by_torch

aten = torch.ops.aten
GPU = torch.device("cpu", 0)
"""Stands for cuda:0."""
CUDA = torch.device("cuda", 0)
HOST = torch.device("cpu")
LARGEST_HOST = 256 << 20
"""Bytes of a host tensor above which it is fake too: nobody waits for a table of random numbers."""
NUMBERED = (
    "empty", "zeros", "ones", "full", "rand", "randn", "randint", "arange", "linspace", "eye",
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
)  # fmt: skip
NEVER = frozenset((aten.isnan.default, aten.isinf.default))


def translated(value: Any) -> Any:
    """A device argument with `cpu:0` in place of any `cuda`."""
    if isinstance(value, torch.device):
        return GPU if value.type == "cuda" else value
    if isinstance(value, int) and not isinstance(value, bool):
        return GPU
    if isinstance(value, str) and value.split(":")[0] == "cuda":
        return GPU
    return value


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

    def _outputs(self, func: Any, operator: str, args: Any, kwargs: Any, out: Any, share: int | None) -> None:
        for tensor in tensors(out):
            if isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cpu":
                self.watch(tensor.untyped_storage(), operator, share, tensor.fake_device != GPU)
        if func in NEVER and isinstance(out, FakeTensor) and values.shadow(out) is None:
            with torch._C._DisableTorchDispatch():
                out._doctor_value = torch.zeros((), dtype=torch.bool).expand(out.shape)

    def _moved(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A real tensor on the GPU; torch would keep one of a single element where it was."""
        shape = torch.empty_like(tensor, dtype=dtype, device="meta")
        with self.fake:
            made = torch.empty_strided(shape.size(), shape.stride(), dtype=dtype, device=GPU)
        self.watch(made.untyped_storage(), "aten::_to_copy")
        if values._worth(tensor) and tensor.device.type == "cpu":
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                made._doctor_value = tensor.detach().to(dtype, copy=True)
        return made

    def faked(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake host tensor in place of a real one; small values are kept beside it."""
        with self.fake, self, torch.no_grad():
            made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
        if values._worth(tensor) and tensor.numel():
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


def install(tracker: DeviceTracker) -> None:
    """Translate devices. Holds for the whole process."""
    torch._C._set_only_lift_cpu_tensors(True)
    _moves()
    _constructors()
    _reading(tracker)
    _parameters(tracker)
    _default_device()
    _operands()
    _generators()


def _moves() -> None:
    to = torch.Tensor.to

    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        return to(self, *map(translated, args), **{k: translated(v) for k, v in kwargs.items()})

    def cuda(self: Any, device: object = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
        more = {} if memory_format is None else {"memory_format": memory_format}
        return to(self, GPU, **more)

    tensor: Any = torch.Tensor
    tensor.to, tensor.cuda = moved, cuda
    tensor.pin_memory = lambda self, *_, **__: self
    tensor.is_pinned = lambda self, *_, **__: False
    tensor.record_stream = lambda self, stream: None


def _constructors() -> None:
    """These copy Python values below the dispatcher, before it could see the device."""
    for name in ("tensor", "as_tensor", "asarray"):
        _after(torch, name)
    for name in NUMBERED:
        _numbered(torch, name)


def _numbered(owner: Any, name: str) -> None:
    """`device=0` is a number that torch gives to the accelerator it was built for."""
    make = getattr(owner, name)

    def made(*args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = GPU
        return make(*args, **kwargs)

    setattr(owner, name, made)


def _after(owner: Any, name: str) -> None:
    make = getattr(owner, name)

    def made(*args: Any, **kwargs: Any) -> Any:
        device = translated(kwargs.get("device"))
        if device is None and name != "asarray" and len(args) > 2:
            device, args = translated(args[2]), args[:2]
        if device is None and not (args and isinstance(args[0], torch.Tensor)):
            device = _defaults[-1] if _defaults else None
        if device is None or torch.device(device) != GPU:
            return make(*args, **kwargs)
        kwargs.pop("device", None)
        grad = kwargs.pop("requires_grad", False)
        with _without_default():
            found = make(*args, **kwargs)
        found = found.to(GPU)
        return found.requires_grad_() if grad else found

    setattr(owner, name, made)


_defaults: list[torch.device] = []


class _without_default:
    """No device context of the script's, for one call."""

    def __enter__(self) -> None:
        self._guard = torch._C.DisableTorchFunction()
        self._guard.__enter__()

    def __exit__(self, *error: object) -> None:
        self._guard.__exit__(*error)


def _generators() -> None:
    """A generator of the GPU is one of the host: what it draws is not looked at."""
    base: Any = torch.Generator

    class Kind(type(base)):  # type: ignore[misc]
        def __instancecheck__(cls, value: object) -> bool:
            return type.__instancecheck__(base, value)

    class Generator(base, metaclass=Kind):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            host = translated(torch.device(device)) == GPU
            return base.__new__(base, device="cpu" if host else device)

    module: Any = torch
    module.Generator = Generator


def _operands() -> None:
    """Scalars of the host may go with tensors on the GPU; ones of the GPU are no scalars of the host."""
    fake: Any = FakeTensor
    usual = fake._find_common_device

    def common(func: Any, flat_args: Any) -> Any:
        gpu = other = False
        for arg in flat_args:
            if isinstance(arg, fake):
                gpu = gpu or arg.fake_device == GPU
                other = other or (arg.fake_device != GPU and arg.dim() > 0)
        return (GPU, False) if gpu and not other else usual(func, flat_args)

    fake._find_common_device = staticmethod(common)


def _default_device() -> None:
    """`with torch.device("cuda")` and set_default_device add the device to every constructor."""
    import torch.utils._device as module

    module._device_constructors()  # remembers torch's own functions, before any is replaced here
    context: Any = module.DeviceContext
    begin, enter, leave = context.__init__, context.__enter__, context.__exit__

    def init(self: Any, device: Any) -> None:
        begin(self, translated(torch.device(device)))

    def entered(self: Any) -> Any:
        _defaults.append(self.device)
        return enter(self)

    def left(self: Any, *error: Any) -> Any:
        if _defaults:
            _defaults.pop()
        return leave(self, *error)

    context.__init__, context.__enter__, context.__exit__ = init, entered, left


def _reading(tracker: DeviceTracker) -> None:
    """What the script and its libraries see of a tensor; torch's own code sees `cpu:0`."""
    base: Any = torch._C.TensorBase
    tensor: Any = torch.Tensor
    fake: Any = FakeTensor
    raw = fake.device.fget

    def where(self: Any) -> Any:
        return raw(self) if isinstance(self, fake) else base.device.__get__(self)

    def device(self: Any) -> Any:
        found = where(self)
        return CUDA if found == GPU and not by_torch() else found

    def read_only(self: Any, value: Any) -> None:
        raise NotImplementedError("a tensor's device cannot be set")

    tensor.device = property(device)
    fake.device = property(device, read_only)
    tensor.is_cuda = property(lambda self: where(self) == GPU and not by_torch())
    tensor.is_cpu = property(lambda self: base.is_cpu.__get__(self) and (by_torch() or where(self) != GPU))
    tensor.get_device = lambda self: 0 if where(self) == GPU and not by_torch() else -1

    def set_data(self: Any, value: Any) -> None:
        base.data.__set__(self, value)
        if isinstance(value, fake):  # torch keeps the device of a fake tensor in Python, beside the data
            self.fake_device = value.fake_device
            self._doctor_value = values.shadow(value)

    fake.data = property(base.data.__get__, set_data)
    utilities: Any = torch.utils
    swap = utilities.swap_tensors

    def swapped(first: Any, second: Any) -> None:
        """Torch swaps fake parameters when a module moves; its memory of what it made holds them weakly."""
        tracker.fake.fake_tensor_converter.meta_converter.tensor_memo.clear()
        swap(first, second)

    utilities.swap_tensors = swapped


def _parameters(tracker: DeviceTracker) -> None:
    """Parameters are fake from the first: a model takes no host memory, and its values are not needed."""
    parameter: Any = torch.nn.Parameter
    new = parameter.__new__

    def made(cls: Any, data: Any = None, requires_grad: bool = True, *args: Any, **kwargs: Any) -> Any:
        if cls is parameter and real(data) and type(data) in (torch.Tensor, parameter):
            data = tracker.faked(data)
        return new(cls, data, requires_grad, *args, **kwargs)

    parameter.__new__ = staticmethod(made)


def fake_buffers(tracker: DeviceTracker, module: torch.nn.Module) -> None:
    """FSDP moves buffers by assigning their data, which needs one kind of tensor on both sides."""
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if real(buffer):
                part._buffers[name] = tracker.faked(buffer)
