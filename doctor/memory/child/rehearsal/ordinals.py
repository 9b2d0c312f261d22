"""GPUs that a script names by number: rank 0 has LOCAL_RANK 0 and works on cuda:0, whatever a line says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .notes import Notes, by_torch

_listening: list[Callable[[int], None]] = []


def listen(notes: Notes) -> None:
    """Keep the lines that name another GPU. Holds for the whole process."""
    _listening[:] = [lambda index: notes.add("elsewhere", f"cuda:{index}")]


def named(device: Any) -> None:
    """Look at a device that a script works on: an object of torch's, a name or a number."""
    index = number(device)
    if index:
        for tell in _listening:
            tell(index)


def number(device: Any) -> int | None:
    """The number of a GPU; None for what names none."""
    if isinstance(device, torch.device):
        return device.index if device.type == "cuda" else None
    if isinstance(device, str) and device.startswith("cuda:"):
        return int(device[5:]) if device[5:].isdigit() else None
    return device if isinstance(device, int) and not isinstance(device, bool) else None


def install(cuda: Any) -> None:
    """What selects a GPU in `torch.cuda` selects the one of rank 0."""

    def set_device(device: Any) -> None:
        named(device)

    def exchange(device: Any) -> int:
        if not by_torch(3):
            named(device)
        return 0

    cuda.set_device = set_device
    cuda._exchange_device = exchange
    cuda._maybe_exchange_device = lambda *_: 0
