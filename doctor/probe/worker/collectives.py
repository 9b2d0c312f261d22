"""Collectives in the tensor forms that FSDP2 uses: timed with and without a barrier, checked in place."""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .patterns import check_coded, check_sum, fill_coded, fill_summand

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from .device import Device
    from .journal import Journal

LARGE = 64 << 20
"""Bytes from which a plan's `iterations` count, and below which its `iterations_small`."""
FIRST = 2
"""Iterations after which it is known how many more fit into the time."""
BATCHES = 4
"""Iterations run in so many parts at least; after each of them the ranks may agree to stop."""
SHARE = 0.5
"""Of a size's seconds for either loop."""
CHECK_SHARE = 0.25
POISON = -1
GRAIN = 16
"""Bytes that every rank's part is a multiple of."""


def enough(values: list[float]) -> bool:
    """`fsdp_doctor.probe.stats.enough`, from its file."""
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "stats.py")
    spec = importlib.util.spec_from_file_location("fsdp_doctor_probe_stats", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    globals()["enough"] = module.enough
    answer: bool = module.enough(values)
    return answer


class Group:
    """Some or all ranks of the job, as one communicator."""

    def __init__(self, name: str, ranks: list[int], own: int, handle: dist.ProcessGroup) -> None:
        self.name, self.ranks, self.handle = name, ranks, handle
        self.position = ranks.index(own)
        self.size = len(ranks)


class Buffers:
    """Memory that all sizes and operations share: the whole array, and one part of at most `parts`."""

    def __init__(self, device: torch.device, dtype: torch.dtype, largest: int, parts: int) -> None:
        import torch

        self.item = torch.empty((), dtype=dtype).element_size()
        self.full = torch.empty(largest // self.item, dtype=dtype, device=device)
        self.part = torch.empty(largest // self.item // parts, dtype=dtype, device=device)

    def views(self, size: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The whole array of `size` bytes, and one rank's part of it."""
        count = size // self.item
        return self.full[:count], self.part[: count // ranks]


class Case:
    """One operation at one size in one group: `step` runs it, `fill` and `check` are its data."""

    def __init__(self, op: str, size: int, group: Group, buffers: Buffers) -> None:
        import torch.distributed as dist

        self.op, self.size, self.group = op, size, group
        self._full, self._part = buffers.views(size, group.size)
        self._whole = buffers.part[: size // buffers.item]
        self._dist = dist
        self.step: Callable[[], object] = getattr(self, "_" + op)()

    def _all_gather(self) -> Callable[[], object]:
        call = getattr(self._dist, "all_gather_single", None) or self._dist.all_gather_into_tensor
        full, part, handle = self._full, self._part, self.group.handle
        return lambda: call(full, part, group=handle)

    def _reduce_scatter(self) -> Callable[[], object]:
        call = getattr(self._dist, "reduce_scatter_single", None) or self._dist.reduce_scatter_tensor
        full, part, handle = self._full, self._part, self.group.handle
        return lambda: call(part, full, group=handle)

    def _all_reduce(self) -> Callable[[], object]:
        call, full, handle = self._dist.all_reduce, self._full, self.group.handle
        return lambda: call(full, group=handle)

    def _broadcast(self) -> Callable[[], object]:
        call, full, handle = self._dist.broadcast, self._full, self.group.handle
        root = self.group.ranks[0]
        return lambda: call(full, root, group=handle)

    def _all_to_all(self) -> Callable[[], object]:
        call, full, whole, handle = (
            self._dist.all_to_all_single,
            self._full,
            self._whole,
            self.group.handle,
        )
        return lambda: call(full, whole, group=handle)

    def _slices(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        length = tensor.numel() // self.group.size
        return [tensor[i * length : (i + 1) * length] for i in range(self.group.size)]

    def fill(self) -> None:
        """Inputs with data that name their place, outputs with what no input holds."""
        me, size = self.group.position, self.group.size
        if self.op == "all_gather":
            self._full.fill_(POISON)
            fill_coded(self._part, me)
        elif self.op == "reduce_scatter":
            self._part.fill_(POISON)
            fill_summand(self._full, me, size)
        elif self.op == "all_reduce":
            fill_summand(self._full, me, size)
        elif self.op == "broadcast":
            self._full.fill_(POISON)
            if me == 0:
                fill_coded(self._full, 0)
        else:
            self._full.fill_(POISON)
            for target, piece in enumerate(self._slices(self._whole)):
                fill_coded(piece, me * size + target)

    def check(self) -> tuple[list[int], str | None]:
        """Positions in the group whose data are wrong here, and the first wrong element in words."""
        me, size = self.group.position, self.group.size
        if self.op == "all_gather":
            said = [check_coded(p, i) for i, p in enumerate(self._slices(self._full))]
        elif self.op == "all_to_all":
            said = [check_coded(p, i * size + me) for i, p in enumerate(self._slices(self._full))]
        elif self.op == "broadcast":
            said = [check_coded(self._full, 0)]
        elif self.op == "reduce_scatter":
            # A wrong sum does not say whose summand was wrong: the slice is named by who holds it.
            said = [None] * size
            said[me] = check_sum(self._part, size, me * self._part.numel())
        else:
            length = self._full.numel() // size
            said = [check_sum(p, size, i * length) for i, p in enumerate(self._slices(self._full))]
        return [i for i, s in enumerate(said) if s is not None], next((s for s in said if s), None)


class Sweep:
    """Times cases and writes what they took."""

    def __init__(self, plan: dict[str, Any], device: Device, journal: Journal) -> None:
        self._plan, self._device, self._journal = plan, device, journal
        self._token: Any = None

    def barrier(self, group: Group) -> None:
        """All ranks of the group leave at about the same time."""
        import torch
        import torch.distributed as dist

        if self._device.kind == "cpu":
            dist.barrier(group=group.handle)
            return
        if self._token is None:
            self._token = torch.zeros(1, device=self._device.device)
        dist.all_reduce(self._token, group=group.handle)
        self._device.sync("barrier")

    def run(self, case: Case, seconds: float, run: int = 0) -> None:
        """Warm up, time, check and write one case; every rank of the job calls it, a group at a time."""
        what = f"{case.op} {_size_words(case.size)}"
        self._journal.stage("sweep", what + ("" if case.group.name == "world" else " in " + case.group.name))
        case.fill()
        progress = self._journal.progress
        for _ in range(self._plan["warmup"]):
            progress.enter()
            case.step()
            progress.leave()
        self._device.sync(what)
        most = self._plan["iterations" if case.size >= LARGE else "iterations_small"]
        behind, _ = self._loop(case, most, seconds, lambda: self.barrier(case.group), what)
        spent, pauses = self._loop(case, most, seconds, None, what)
        if case.op == "all_reduce":  # in place: the sums of many runs are no longer those of one
            case.fill()
            case.step()
            self._device.sync(what)
        bad, first = case.check()
        self._journal.add(
            "collectives",
            {
                "op": case.op,
                "bytes": case.size,
                "seconds": spent,
                "barrier_seconds": behind,
                "think_seconds": pauses,
                "group": case.group.name,
                "correct": not bad,
                "bad_slices": bad,
                "first_bad": first,
                "run": run,
            },
        )

    def _loop(
        self, case: Case, most: int, seconds: float, before: Callable[[], object] | None, what: str
    ) -> tuple[list[float], list[float]]:
        """Iterations until all agree that the median is known, that there are enough, or no time is left."""
        until = time.monotonic() + SHARE * seconds
        spent: list[float] = []
        pauses: list[float] = []
        batch = min(FIRST, most)
        while batch:
            found, between = self._device.series(case.step, batch, self._journal.progress, before, what)
            spent += found
            pauses += between
            batch = 0 if len(spent) >= most else self._next(case.group, spent, most, until)
        return spent, pauses

    def _next(self, group: Group, spent: list[float], most: int, until: float) -> int:
        """How many more, as the first rank of the group decides; told by the backend that is measured."""
        import torch
        import torch.distributed as dist

        told = torch.zeros(1, device=self._device.device)
        if group.position == 0:
            told[0] = float(self._wanted(spent, most, until))
        self._journal.progress.enter()
        dist.broadcast(told, group.ranks[0], group=group.handle)
        self._device.sync("broadcast")
        self._journal.progress.leave()
        return int(told.item())

    def _wanted(self, spent: list[float], most: int, until: float) -> int:
        left = until - time.monotonic()
        if left <= 0 or enough(spent):
            return 0
        fitting = left / max(statistics.median(spent), 1e-9) / 2
        return max(1, min(int(fitting), max(1, most // BATCHES), most - len(spent)))


def _size_words(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"
