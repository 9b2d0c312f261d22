"""Notes when storages come to life and die: a dispatch mode above the fake tensors.

A CUDA program asks its allocator for a block when a storage is made and gives it back when the last tensor
on it goes. On fake tensors the same Python and the same autograd engine run, so that storages live exactly
as long. What differs is mended here: sums of gradients that the engine makes in place only for plain tensors,
memory that kernels take for the time of one call, and tensors that stay on the host.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from . import outside, values
from .course import FIRST_RESULT, RESULTS
from .engine_sums import in_place
from .events import Events
from .kernels import Kernels
from .order import in_order
from .storages import Storages, tensors
from .waiting import Waiting

aten = torch.ops.aten
prim_device = torch.ops.prim.device.default
OWN = __file__.rsplit("/", 1)[0]
FREE_OPS = frozenset(("profiler", "prim"))


class Tracker(Storages, TorchDispatchMode):  # type: ignore[misc]
    """The dispatch mode over the account of storages."""

    def __init__(self, events: Events, kernels: Kernels) -> None:
        TorchDispatchMode.__init__(self)
        Storages.__init__(self, events)
        self.kernels = kernels
        self.assumed = values.Assumed()
        self.waiting = Waiting()
        self.seen: dict[str, int] = {}
        self.running: Any = None
        self.failed_in = ""
        self.steps = False
        """Whether the training loop runs: what a batch is made of is looked at once it is there."""
        self._pending: tuple[weakref.ref[Any], int, int] | None = None

    # ------------------------------------------------------------------------------------ dispatch
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and note what it makes."""
        if func is prim_device and type(args[0]) is FakeTensor:
            return args[0].fake_device
        for kind in types:
            if issubclass(kind, DTensor):
                return NotImplemented
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        if self.steps and "device" in kwargs:
            self._placed(kwargs["device"])
        if self._pending is not None:
            self._settle()
        self.running = func
        in_backward = torch._C._current_graph_task_id() != -1
        share, operand = None, None
        if in_backward:
            self._handed_over(args)
        if in_place(func, in_backward):
            share, operand = self._left_operand(args)
        for size, name in self.kernels.workspaces(func, args, in_backward):
            self.keep(size, name)
        answer = values.intercept(self, func, args, kwargs)
        if answer is not None:
            if not isinstance(answer, values.Arguments):
                return answer.value
            args, kwargs = answer.args, answer.kwargs
        operator = func._schema.name if hasattr(func, "_schema") else str(func)
        outside.listed(self, func, args)
        try:
            out = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException):
            found = values.rescued(self, func, args, kwargs)
            if found is None:
                self.failed_in = self.where.words()
                raise
            return found.value
        except Exception:
            self.failed_in = self.where.words()  # the hooks leave the module before the exception is caught
            raise
        self._allocate(func, operator, args, kwargs, out, share)
        if share is not None and operand is not None:
            self._pending = (operand.ref, id(operand), out.untyped_storage()._cdata)
        values.follow(func, args, kwargs, out)
        return out

    def _placed(self, device: Any) -> None:
        """Refuse another device: autograd would end the process over a tensor of one that is not there."""
        if device is not None and device.type not in ("cpu", "meta"):
            self.failed_in = self.where.words()
            raise RuntimeError(f"a tensor is put on {device}")

    def _allocate(
        self, func: Any, operator: str, args: Any, kwargs: Any, out: Any, share: int | None
    ) -> None:
        """What the call takes, in its order: results and what it gives back."""
        larger: Mapping[int, int] = {}
        if out is not None:
            larger = {
                t.untyped_storage()._cdata: size for t, size in self.kernels.results(func, args, kwargs, out)
            }

        def results(n: int | None) -> None:
            if out is not None:
                chosen = in_order(func, out) if n is None else out[n]
                self._outputs(func, operator, args, kwargs, chosen, share, larger)

        steps = self.kernels.course(func, args, kwargs) or (RESULTS,)
        self._walk((*outside.moved(self, func, args, out), *steps), operator, results)

    def _walk(self, steps: Iterable[int], operator: str, results: Callable[[int | None], None]) -> None:
        """The steps of a `Course`; what is left at its end goes as in C++, the last block first.

        `results` allocates the n-th result, or all for None.
        """
        taken: list[int] = []
        for step in steps:
            if step > 0:
                taken.append(self._new(step, operator + " (workspace)"))
            elif step == RESULTS:
                results(None)
            elif step < FIRST_RESULT // 2:
                results(step - FIRST_RESULT)
            else:
                self._drop(taken[-step - 1])
                taken[-step - 1] = -1
        for block in reversed(taken):
            self._drop(block)

    def during(self, sizes: Iterable[int], operator: str) -> None:
        """Blocks that a call takes beside its results and gives back."""
        self._walk((size for size in sizes if size), operator, lambda _: None)

    def _outputs(
        self,
        func: Any,
        operator: str,
        args: Any,
        kwargs: Any,
        out: Any,
        share: int | None,
        larger: Mapping[int, int],
    ) -> None:
        made_on_host = self._made_on_host(func, args, kwargs)
        for tensor in tensors(out):
            host = self._lies_on_host(tensor, made_on_host)
            if host is not None:
                storage = tensor.untyped_storage()
                self.watch(storage, operator, share, host, larger.get(storage._cdata))

    def _made_on_host(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether a call makes host tensors, as far as the call tells."""
        if func is aten.lift_fresh.default:  # torch.tensor(literal), such as AdamW's counters of steps
            return True
        if self.host:
            return True
        first = args[0] if args else None
        if outside.reckoned(func, first):
            return True
        if not self.any_host and not (isinstance(first, torch.Tensor) and outside.number(self, first)):
            return False
        inputs = list(tensors((args, kwargs)))
        return bool(inputs) and all(self.is_host(t) or outside.number(self, t) for t in inputs)

    def _lies_on_host(self, tensor: Any, made_on_host: bool) -> bool | None:
        """Where a result lies; None where it is no memory of its own."""
        return made_on_host if tensor.device.type == "cpu" and not isinstance(tensor, DTensor) else None

    def _left_operand(self, args: Any) -> tuple[int | None, Any]:
        """The block that the engine would add into, if this is one of its sums of gradients.

        It does so where nobody else holds the left operand, but not for a subclass of Tensor as ours.
        """
        left = args[0]
        entry = self.live.get(left.untyped_storage()._cdata)
        if left._is_view():
            return None, None
        if entry is not None and entry.block >= 0 and left.numel() * left.element_size() == entry.size:
            return entry.block, entry
        return None, None

    def _settle(self) -> None:
        """A left operand that outlived its sum was held by somebody: the sum has memory of its own."""
        assert self._pending is not None
        ref, identity, made = self._pending
        self._pending = None
        storage = ref()
        result = self.live.get(made)
        if storage is None or result is None:
            return
        entry = self.live.get(storage._cdata)
        if entry is not None and id(entry) == identity and entry.block == result.block:
            self._drop(result.block)
            result.block = self._new(result.size, "aten::add")

    # ------------------------------------------------------------------------------------- helpers
    @contextmanager
    def pause(self) -> Iterator[None]:
        """Nothing that is made inside counts, such as tensors that only carry shapes."""
        self.paused += 1
        try:
            yield
        finally:
            self.paused -= 1

    def pausing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function under `pause`."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.pause():
                return function(*args, **kwargs)

        return wrapped
