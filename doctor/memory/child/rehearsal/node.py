"""The GPUs of the node that the job has, on a machine that has fewer of them.

Rank 0 works on cuda:0, which is here. A script that counts the others, or looks at them, is answered for the
node: as many as it has ranks, each like the one that is here. One that would work on another is refused.
Torch's own code sees what there is.
"""

from __future__ import annotations

from typing import Any

import torch

from .notes import Notes, Refusal, by_torch

LIKE_THE_FIRST = (
    "get_device_name", "get_device_capability", "get_device_properties", "mem_get_info", "synchronize",
    "utilization", "memory_usage", "temperature", "power_draw", "clock_rate",
)  # fmt: skip
"""Questions whose first argument is a device, and that one of its kind answers."""
OWN = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
    "memory_cached", "max_memory_cached",
)  # fmt: skip
"""What this process allocates on a GPU: nothing on another rank's."""
RESETS = ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_accumulated_memory_stats")


class Node:
    """GPUs `here` of the `wanted` that the ranks of one node have."""

    def __init__(self, notes: Notes, here: int, wanted: int) -> None:
        self._notes, self.here, self.wanted = notes, here, wanted

    def absent(self, device: Any) -> bool:
        """Whether a device argument names a GPU of the node that is not here."""
        if isinstance(device, str) and device.startswith("cuda:"):
            device = int(device[5:]) if device[5:].isdigit() else None
        index = device.index if isinstance(device, torch.device) else device
        return isinstance(index, int) and not isinstance(index, bool) and self.here <= index < self.wanted

    def install(self, cuda: Any) -> None:
        """Replace the questions in `torch.cuda`. Holds for the whole process."""
        for owner in (cuda, cuda.memory):
            for name in LIKE_THE_FIRST:
                self._replace(owner, name, lambda real, rest, more: real(0, *rest, **more))
            for name in OWN:
                self._replace(owner, name, lambda *_: 0)
            for name in RESETS:
                self._replace(owner, name, lambda *_: None)
        self._replace(cuda, "can_device_access_peer", lambda *_: True, second=True)
        self._own_device(cuda)
        self.count(cuda)

    def count(self, owner: Any) -> None:
        """Answer `device_count` of a module for the node; torch itself gets the truth."""
        real = owner.device_count

        def device_count() -> int:
            if by_torch():
                return int(real())
            self._told("device_count")
            return self.wanted

        owner.device_count = device_count

    def _replace(self, owner: Any, name: str, answer: Any, second: bool = False) -> None:
        real = getattr(owner, name, None)
        if real is None:
            return

        def asked(*args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else kwargs.get("device")
            if not self.absent(given) and not (second and self.absent(args[1] if len(args) > 1 else None)):
                return real(*args, **kwargs)
            self._told(name)
            return answer(real, args[1:], {k: v for k, v in kwargs.items() if k != "device"})

        setattr(owner, name, asked)

    def _told(self, name: str) -> None:
        self._notes.add(
            "handled",
            f"{name}: answered for a node with {self.wanted} GPUs, all like the {_some(self.here)} here",
        )

    def _own_device(self, cuda: Any) -> None:
        real = cuda.set_device

        def set_device(device: Any) -> None:
            if self.absent(device):
                raise Refusal("refused", f"set_device({device}): {self.missing()}")
            real(device)

        cuda.set_device = set_device

    def missing(self) -> str:
        """Why nothing can be put on one of the others."""
        return (
            f"this machine has {self.here} of the {self.wanted} GPUs of the job's node: a rehearsal is "
            "rank 0 with LOCAL_RANK 0, and works on cuda:0"
        )


def _some(here: int) -> str:
    return "one" if here == 1 else str(here)


def install(notes: Notes, wanted: int) -> Node | None:
    """Answer for a node of `wanted` GPUs; None where this machine has as many."""
    here = torch.cuda.device_count()
    if here >= wanted:
        return None
    node = Node(notes, here, wanted)
    node.install(torch.cuda)
    accelerator: Any = getattr(torch, "accelerator", None)
    if accelerator is not None and hasattr(accelerator, "device_count"):
        node.count(accelerator)
    return node
