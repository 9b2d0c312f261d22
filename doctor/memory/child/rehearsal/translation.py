"""torch's own interface where it names devices: "cuda" on its way in, and what is read off a tensor.

Most of it reaches the tracker by itself. What is replaced here is decided before the dispatcher is asked, or
is Python's alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .. import values
from . import ordinals
from .devices import CUDA, GPU, DeviceTracker, fake_parameters, translated
from .notes import by_torch

APART = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
NUMBERED = (
    "empty", "zeros", "ones", "full", "rand", "randn", "randint", "arange", "linspace", "eye",
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
)  # fmt: skip


def install(tracker: DeviceTracker) -> None:
    """Translate devices. Holds for the whole process."""
    torch._C._set_only_lift_cpu_tensors(True)
    _moves()
    _constructors()
    _reading(tracker)
    fake_parameters(tracker)
    _default_device()
    _operands()
    _generators()


def _moves() -> None:
    to = torch.Tensor.to

    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        return to(self, *map(translated, args), **{k: translated(v) for k, v in kwargs.items()})

    def cuda(self: Any, device: object = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
        ordinals.named(device)
        more = {} if memory_format is None else {"memory_format": memory_format}
        return to(self, GPU, **more)

    nn: Any = torch._C._nn
    parse = nn._parse_to

    def parsed(*args: Any, **kwargs: Any) -> Any:
        """Of `Module.to`: a number is the accelerator that torch was built for."""
        return parse(*map(translated, args), **{k: translated(v) for k, v in kwargs.items()})

    nn._parse_to = parsed
    tensor: Any = torch.Tensor
    tensor.to, tensor.cuda = moved, cuda
    tensor.pin_memory = lambda self, *_, **__: self
    tensor.is_pinned = lambda self, *_, **__: False
    tensor.record_stream = lambda self, stream: None


def _constructors() -> None:
    """These copy Python values below the dispatcher, before it could see the device."""
    torch.utils._device._device_constructors()  # remembers torch's own, before any is replaced
    for name in ("tensor", "as_tensor", "asarray"):
        _after(torch, name)
    for name in NUMBERED:
        _numbered(torch, name)


def _numbered(owner: Any, name: str) -> None:
    """`device=0` is a number that torch gives to the accelerator it was built for."""
    make = getattr(owner, name)

    def made(*args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = translated(kwargs["device"])
        return make(*args, **kwargs)

    setattr(owner, name, made)
    known = torch.utils._device._device_constructors()
    if make in known:
        known.add(made)  # device contexts look functions up in this set, as torch's own names them


def _after(owner: Any, name: str) -> None:
    make = getattr(owner, name)

    def made(*args: Any, **kwargs: Any) -> Any:
        device = translated(kwargs.get("device"))
        if device is None and name != "asarray" and len(args) > 2:
            device, args = translated(args[2]), args[:2]
        if device is None and not (args and isinstance(args[0], torch.Tensor)):
            device = _default()
        if device is None or torch.device(device) != GPU:
            return make(*args, **kwargs)
        kwargs.pop("device", None)
        grad = kwargs.pop("requires_grad", False)
        with _without_default():
            found = make(*args, **kwargs)
        found = found.to(GPU)
        return found.requires_grad_() if grad else found

    setattr(owner, name, made)


def _default() -> Any:
    """The device that `with torch.device(…)` or set_default_device gives; None for the host."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    contexts = [m for m in _get_current_function_mode_stack() if isinstance(m, DeviceContext)]
    return contexts[-1].device if contexts else None


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
        if gpu and not other:
            return GPU, False
        try:
            return usual(func, flat_args)
        except RuntimeError as error:
            if gpu and other and "two different devices" in str(error):  # said as a GPU's kernels say it
                raise RuntimeError(APART) from error
            raise

    fake._find_common_device = staticmethod(common)


def _default_device() -> None:
    """`with torch.device("cuda")` and set_default_device add the device to every constructor."""
    import torch.utils._device as module

    context: Any = module.DeviceContext
    begin = context.__init__

    def init(self: Any, device: Any) -> None:
        begin(self, translated(torch.device(device)))

    context.__init__ = init


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
