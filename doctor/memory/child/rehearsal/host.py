"""What the host asks of fake tensors: values for logs, arrays, formats; and loaders that pin nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .. import values
from ..tracker import Tracker
from .notes import Notes, script_place
from .steps import EVALUATED, Steps

ADDRESS_BITS = 40
ON_HOST = 1 << 62
"""Addresses of fakes that are not on the GPU."""


class Assumed(values.Assumed):
    """Values that were assumed, by the line of the script that led to them."""

    def note(self, operator: str, what: str) -> None:
        """Remember one."""
        key = (script_place() or values.where(), f"{operator}: {what}")
        self._found[key] = self._found.get(key, 0) + 1


def install(tracker: Tracker, steps: Steps, notes: Notes) -> None:
    """Replace the readers of values. Holds for the whole process."""
    tracker.assumed = Assumed()
    _values(tracker)
    _copies()
    _formats()
    loaders(steps, notes, pin=False)


def _values(tracker: Tracker) -> None:
    fake: Any = FakeTensor

    def computed(self: Any, what: str) -> Any:
        """The tensor's values, or ones."""
        found = values.shadow(self)
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            if found is not None:
                return found.detach()
            tracker.assumed.note(what, f"ones of {str(self.dtype).removeprefix('torch.')}")
            return torch.ones(tuple(self.shape), dtype=self.dtype)

    def numpy(self: Any, *_: Any, **__: Any) -> Any:
        found = computed(self, ".numpy()")
        with torch._C._DisableTorchDispatch():
            return found.numpy()

    def tolist(self: Any) -> Any:
        found = computed(self, ".tolist()")
        with torch._C._DisableTorchDispatch():
            return found.tolist()

    def data_ptr(self: Any) -> int:
        """An address of its own for every block, far enough apart: libraries find shared memory by them."""
        address = place(self.untyped_storage())
        return int(address + self.storage_offset() * self.element_size()) if address else 0

    def place(storage: Any) -> int:
        entry = tracker.live.get(storage._cdata)
        if not storage.size():
            return 0
        return (entry.block + 1) << ADDRESS_BITS if entry is not None else ON_HOST | int(storage._cdata)

    storages: Any = torch.UntypedStorage
    real_address = storages.data_ptr
    storages.data_ptr = lambda self: place(self) if self.device.type == "meta" else real_address(self)
    fake.numpy, fake.tolist, fake.data_ptr = numpy, tolist, data_ptr
    fake.__array__ = lambda self, dtype=None, **_: numpy(self) if dtype is None else numpy(self).astype(dtype)


def _copies() -> None:
    """Torch copies a tensor with all that hangs on it, its fake mode included."""
    fake: Any = FakeTensor

    def copied(self: Any, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("only leaf tensors can be copied by copy.deepcopy: detach it before")
        with torch.no_grad():
            made = self.detach().clone()
        made.requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            made._is_param = True
        if self.grad is not None:
            made.grad = copied(self.grad, memo)
        memo[id(self)] = made
        return made

    fake.__deepcopy__ = copied


def _formats() -> None:
    fake: Any = FakeTensor

    def formatted(self: Any, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 and spec else object.__format__(self, "")

    fake.__format__ = formatted


def loaders(steps: Steps, notes: Notes, *, pin: bool) -> None:
    """Tell when a batch is asked for. Host tensors are real: workers and samplers are the script's own."""
    import torch.utils.data.dataloader as module

    base: Any = module._BaseDataLoaderIter
    begin, following = base.__init__, base.__next__

    def init(self: Any, loader: Any) -> None:
        if not pin:
            loader.pin_memory = False
        self._doctor_counts = steps.counts
        begin(self, loader)

    def after(self: Any) -> Any:
        if steps.enough(self._doctor_counts):
            notes.add("handled", f"evaluation: ended after {EVALUATED} batches", "")
            raise StopIteration
        steps.loading()
        return following(self)

    base.__init__, base.__next__ = init, after
