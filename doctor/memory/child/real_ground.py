"""Tensors of a device, and what the meter says of each moment of the training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .meters import Meter
from .tracing import Tracing

SPREAD = 0.02
"""Standard deviation of the parameters' values, which serve to keep the arithmetic finite."""


class RealGround:
    """See `ground.Ground`. `phases` has one entry per moment."""

    def __init__(self, meter: Meter) -> None:
        self.device = meter.device
        self.pins = meter.device != "cpu"
        self.phases: list[dict[str, Any]] = []
        self.tracing: Tracing | None = None
        self.meter = meter
        self._open: dict[str, Any] | None = None

    def mark(self, moment: str) -> None:
        """The phase that ends is noted; reading counters needs no synchronization."""
        self.close()
        self.meter.reset()
        self._open = {"name": moment, "before": self.meter.allocated()}
        if self.tracing is not None:
            self.tracing.mark(moment)

    def close(self) -> None:
        """End the running phase, also where it ended in an exception."""
        if self._open is not None:
            meter = self.meter
            seen = {"peak": meter.peak(), "after": meter.allocated(), "reserved": meter.reserved()}
            self.phases.append({**self._open, **seen})
            self._open = None

    def about(self) -> dict[str, Any]:
        """What the meter says of the device."""
        return self.meter.about()

    @property
    def moment(self) -> str:
        """The phase that runs, or the one that was noted last."""
        if self._open is not None:
            return str(self._open["name"])
        return str(self.phases[-1]["name"]) if self.phases else ""

    def keep_on_host(self, api: str) -> None:
        """See `Ground`: FSDP itself moves what it is told to."""

    def place_shards(self, model: nn.Module, on_host: bool) -> None:
        """See `Ground`."""
        model.to_empty(device="cpu" if on_host else self.device)
        _fill(model, recurse=True)

    def place_module(self, module: nn.Module) -> None:
        """See `Ground`."""
        module.to_empty(device=self.device, recurse=False)
        _fill(module, recurse=False)

    def data_parallel(
        self, model: nn.Module, options: Mapping[str, Any], tie: Callable[[nn.Module], None]
    ) -> nn.Module:
        """See `Ground`: the real reducer, in a group of one rank, since its ranks compare shapes."""
        model.to_empty(device=self.device)
        tie(model)
        _fill(model, recurse=True)
        for buffer in model.buffers():
            buffer.zero_()
        backend = "gloo" if self.device == "cpu" else "nccl"
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        return nn.parallel.DistributedDataParallel(
            model, device_ids=[0] if self.device != "cpu" else None, **options
        )

    def buffer(self, buffer: torch.Tensor) -> Any:
        """See `Ground`."""
        if buffer.device.type == self.device:
            return buffer.zero_()
        return torch.zeros_like(buffer, device=self.device)

    def making_optimizer(self) -> AbstractContextManager[None]:
        """See `Ground`: nothing is named."""
        return nullcontext()

    def stepping(self, made: torch.optim.Optimizer) -> Any:
        """See `Ground`: the optimizer itself."""
        return made

    def before_forward(self) -> None:
        """See `Ground`: nothing that torch does not do itself."""


def _fill(module: nn.Module, recurse: bool) -> None:
    for parameter in module.parameters(recurse=recurse):
        values: Any = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if values.is_floating_point() and values.numel():
            with torch.no_grad():
                values.normal_(std=SPREAD)
