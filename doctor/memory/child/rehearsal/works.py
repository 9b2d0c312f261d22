"""Works of a group that moves nothing: their futures and results hold the outputs, as NCCL's do.

The fake group's own futures hold None. What waits for a work is content with that; what reads one is not:
communication hooks, `async_op=True` with `get_future()`, and DDP's reducer (see `reducer`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import wraps
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce",
    "allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced",
    "all_gather_single", "all_gather_single_coalesced",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single", "reduce_scatter_single_coalesced",
    "gather", "scatter", "alltoall", "alltoall_base", "all_to_all_single", "recv",
)  # fmt: skip
"""Methods of a process group whose first argument is what they write; those that a torch has."""
STACKED = ("allgather",)
"""NCCL gathers into one block for all ranks, and its future holds that."""


class Works:
    """The outputs of works that somebody still holds."""

    def __init__(self) -> None:
        self._outputs: weakref.WeakKeyDictionary[Any, tuple[str, Any]] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Remember what each collective writes. Holds for the whole process."""
        group: Any = c10d.ProcessGroup
        for name in COLLECTIVES:
            if hasattr(group, name):
                setattr(group, name, self._remembering(name, getattr(group, name)))
        kinds = [c10d.Work, getattr(torch._C._distributed_c10d, "FakeWork", None)]
        for kind in kinds:
            for name, answer in (("get_future", self._future), ("result", self._result)):
                if kind is not None and name in vars(kind):
                    setattr(kind, name, answer(getattr(kind, name)))

    def _remembering(self, name: str, real: Any) -> Any:
        @wraps(real)
        def collective(group: Any, *args: Any, **kwargs: Any) -> Any:
            work = real(group, *args, **kwargs)
            if work is not None:
                self._outputs[work] = name, args[0] if args else next(iter(kwargs.values()), None)
            return work

        return collective

    def _value(self, work: Any) -> list[torch.Tensor] | None:
        name, outputs = self._outputs.get(work, ("", None))
        found = list(_tensors(outputs))
        if name in STACKED and len({t.shape for t in found}) == 1:
            return [torch.stack(found)]
        return found or None

    def _future(self, real: Any) -> Any:
        def get_future(work: Any) -> Any:
            value = self._value(work)
            return real(work) if value is None else done(value)

        return get_future

    def _result(self, real: Any) -> Any:
        def result(work: Any) -> Any:
            value = self._value(work)
            return real(work) if value is None else value

        return result


def done(value: Any) -> Any:
    """A future that is completed."""
    future: Any = torch.futures.Future()
    future.set_result(value)
    return future


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, (list, tuple)):
        for each in outputs:
            yield from _tensors(each)
