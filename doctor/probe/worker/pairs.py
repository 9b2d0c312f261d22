"""Transfers between two ranks, one direction at a time, timed by the source until the target has answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .device import Device
    from .journal import Journal

WARMUP = 2
PASSES = {"cpu": 3, "cuda": 1}
"""How often all rounds run: what disturbs shared cores for a moment must not hit all times of a pair."""


class Transfers:
    """The buffers of one rank and its side of every transfer."""

    def __init__(self, device: Device, rank: int, journal: Journal, size: int) -> None:
        torch = device.torch
        self._device, self._rank, self._journal, self._size = device, rank, journal, size
        self._payload = torch.ones(size, dtype=torch.uint8, device=device.device)
        self._answer = torch.ones(1, dtype=torch.uint8, device=device.device)
        self.passes = PASSES[device.kind]
        self._met: set[tuple[int, int]] = set()
        self._times: dict[tuple[int, int], list[float]] = {}

    def exchange(self, pairs: Sequence[tuple[int, int]], repeats: int) -> None:
        """The transfers of this rank among these pairs: both directions, one after the other."""
        for one, two in [p for p in pairs if self._rank in p]:
            for source, target in ((one, two), (two, one)):
                found = self._direction(source, target, repeats)
                if self._rank == source:
                    self._times.setdefault((source, target), []).extend(found)

    def write(self, rounds: Sequence[Sequence[tuple[int, int]]], *, run: int, alone: bool) -> None:
        """Journal what was timed since; `rounds` tell in which round each pair was."""
        place = {tuple(sorted(p)): i for i, planned in enumerate(rounds) for p in planned}
        for (source, target), seconds in self._times.items():
            entry = {"source": source, "target": target, "bytes": self._size, "seconds": seconds}
            number = place.get(tuple(sorted((source, target))), 0)
            self._journal.add("pairs", {**entry, "round": number, "run": run, "alone": alone})
        self._times = {}

    def _direction(self, source: int, target: int, repeats: int) -> list[float]:
        import torch.distributed as dist

        def send() -> None:
            dist.send(self._payload, target)
            dist.recv(self._answer, target)

        def receive() -> None:
            dist.recv(self._payload, source)
            dist.send(self._answer, source)

        step = send if self._rank == source else receive
        seconds = []
        warmup = 1 if (source, target) in self._met else WARMUP
        self._met.add((source, target))
        for _ in range(warmup + repeats):
            self._journal.progress.enter()
            seconds.append(self._device.timed(step, f"transfer from rank {source} to rank {target}"))
            self._journal.progress.leave()
        return seconds[warmup:]
