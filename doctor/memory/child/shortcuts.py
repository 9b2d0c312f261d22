"""Work of torch's own that no event depends on: left out of a replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def take() -> None:
    """From here on, for the whole process."""
    _ranges()
    _chunks()


def _ranges() -> None:
    """Ranges for a profiler that does not run: two operators for every unit and every pass."""
    record = torch.autograd.profiler.record_function
    record.__enter__ = lambda range_: range_
    record.__exit__ = lambda range_, *_: None


def _chunks() -> None:
    """FSDP2 cuts each parameter for all ranks and takes one's own part, which is the first here."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param as module

    cut = getattr(module, "_chunk_with_empty", None)
    if cut is not None:
        module._chunk_with_empty = lambda tensor, ranks, dim: Parts(cut, tensor, ranks, dim)


class Parts:
    """The parts of a tensor as torch cuts it; all are made only where another than the first is asked for."""

    def __init__(self, cut: Any, tensor: torch.Tensor, ranks: int, dim: int) -> None:
        self._cut: Callable[[], Any] = lambda: cut(tensor, ranks, dim)
        self._tensor, self._ranks, self._dim = tensor, ranks, dim

    def __getitem__(self, rank: int) -> torch.Tensor:
        """The part of one rank."""
        length = self._tensor.shape[self._dim]
        if rank != 0 or not length:
            part: torch.Tensor = self._cut()[rank]
            return part
        return self._tensor.narrow(self._dim, 0, -(-length // self._ranks))

    def __len__(self) -> int:
        """How many ranks there are."""
        return self._ranks
