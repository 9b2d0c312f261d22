"""What the steps of a job run on: fake tensors that stand for a GPU's, or the tensors of a device.

Sharding and stepping ask the ground for what differs between the two, and for nothing else, so that what is
predicted and what is measured cannot come to mean different programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from .data_parallel import DataParallel
from .offload import offload
from .shard_steps import of_shards
from .tracker import Tracker


class Ground(Protocol):
    """Where tensors live."""

    device: str
    """The type of torch's device: "cpu" or "cuda"."""
    pins: bool
    """Whether shards that are kept on the host are pinned."""

    def mark(self, moment: str) -> None:
        """A moment of the training loop begins."""

    def keep_on_host(self, api: str) -> None:
        """Parameters will live on the host between their uses."""

    def place_shards(self, model: nn.Module, on_host: bool) -> None:
        """Give the meta parameters of a model that FSDP2 has sharded memory."""

    def place_module(self, module: nn.Module) -> None:
        """Give one module's own meta parameters memory; FSDP1 asks for it."""

    def data_parallel(
        self, model: nn.Module, options: Mapping[str, Any], tie: Callable[[nn.Module], None]
    ) -> nn.Module:
        """A model on meta tensors under DistributedDataParallel with these arguments; it has `no_sync`.

        `tie` is called with it once it has memory.
        """

    def buffer(self, buffer: torch.Tensor) -> torch.Tensor:
        """The buffer of a module where the module runs."""

    def making_optimizer(self) -> AbstractContextManager[None]:
        """The optimizer is made inside; Adagrad makes its state at once."""

    def stepping(self, made: torch.optim.Optimizer) -> Any:
        """What steps in an optimizer's place: it has `step` and `zero_grad`."""

    def before_forward(self) -> None:
        """A microbatch begins."""


class FakeGround:
    """Fake CPU tensors under a tracker."""

    device, pins = "cpu", True

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._ddp: DataParallel | None = None

    def mark(self, moment: str) -> None:
        """See `Ground`."""
        self._tracker.events.mark(moment)

    def keep_on_host(self, api: str) -> None:
        """See `Ground`: fake tensors leave the copies between host and GPU out."""
        offload(self._tracker, api)

    def place_shards(self, model: nn.Module, on_host: bool) -> None:
        """See `Ground`."""
        tracker = self._tracker
        tracker.host = on_host
        if on_host:
            self.keep_on_host("fsdp2")
        model.to_empty(device="cpu")
        tracker.host = False

    def place_module(self, module: nn.Module) -> None:
        """See `Ground`."""
        module.to_empty(device="cpu", recurse=False)

    def data_parallel(
        self, model: nn.Module, options: Mapping[str, Any], tie: Callable[[nn.Module], None]
    ) -> nn.Module:
        """See `Ground`: the reducer is modelled, the model itself stays."""
        model.to_empty(device="cpu")
        tie(model)
        self._ddp = DataParallel(model, self._tracker, options)
        model.no_sync = self._ddp.no_sync
        return model

    def buffer(self, buffer: torch.Tensor) -> Any:
        """See `Ground`."""
        return torch.zeros(buffer.shape, dtype=buffer.dtype, device="cpu")

    @contextmanager
    def making_optimizer(self) -> Iterator[None]:
        """See `Ground`: what is made is named for what it is."""
        before, self._tracker.label = self._tracker.label, "optimizer: state"
        try:
            yield
        finally:
            self._tracker.label = before

    def stepping(self, made: torch.optim.Optimizer) -> Any:
        """See `Ground`: the same on the shards, at a fraction of the time."""
        return of_shards(made)

    def before_forward(self) -> None:
        """See `Ground`."""
        if self._ddp is not None:
            self._ddp.before_forward()
