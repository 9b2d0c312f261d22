"""Transfers between two ranks, one direction at a time, timed by the source until the target has answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import Device
    from .journal import Journal

WARMUP = 2


class Transfers:
    """The buffers of one rank and its side of every transfer."""

    def __init__(self, device: Device, rank: int, journal: Journal, size: int) -> None:
        torch = device.torch
        self._device, self._rank, self._journal, self._size = device, rank, journal, size
        self._payload = torch.ones(size, dtype=torch.uint8, device=device.device)
        self._answer = torch.ones(1, dtype=torch.uint8, device=device.device)

    def round(self, pairs: Sequence[tuple[int, int]], number: int, repeats: int) -> None:
        """The transfers of this rank in one round: both directions, one after the other."""
        mine = [p for p in pairs if self._rank in p]
        for one, two in mine:
            for source, target in ((one, two), (two, one)):
                self._direction(source, target, number, repeats, run=0, alone=False)

    def again(self, pair: tuple[int, int], repeats: int) -> None:
        """The transfers of one suspected pair, with nothing else in flight."""
        if self._rank in pair:
            for source, target in (pair, (pair[1], pair[0])):
                self._direction(source, target, 0, repeats, run=1, alone=True)

    def _direction(
        self, source: int, target: int, number: int, repeats: int, *, run: int, alone: bool
    ) -> None:
        import torch.distributed as dist

        def send() -> None:
            dist.send(self._payload, target)
            dist.recv(self._answer, target)

        def receive() -> None:
            dist.recv(self._payload, source)
            dist.send(self._answer, source)

        seconds: list[float] = []
        step = send if self._rank == source else receive
        for _ in range(WARMUP + repeats):
            self._journal.progress.enter()
            seconds.append(self._device.timed(step, f"transfer from rank {source} to rank {target}"))
            self._journal.progress.leave()
        if self._rank == source:
            entry = {"source": source, "target": target, "bytes": self._size, "seconds": seconds[WARMUP:]}
            self._journal.add("pairs", {**entry, "round": number, "run": run, "alone": alone})
