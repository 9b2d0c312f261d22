"""The device of a rank, CPU or GPU: which one it is, how time is taken on it, and how waiting is bounded."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    import torch

    from .journal import Progress

POLL = 0.0002
HOLD_CYCLES = 400_000
"""Of the GPU's clock: some 0.2 ms."""


class Lost(RuntimeError):
    """A collective did not end in time: a partner is gone, stopped or late."""


class Cpu:
    """A rank on CPU cores. Operations end when they return."""

    kind = "cpu"

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.device = torch.device("cpu")
        torch.set_num_threads(1)

    def about(self) -> dict[str, object]:
        """Fields of the rank's measurement."""
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        nodes = {_node_of_core(c) for c in cores or ()}
        return {
            "cores": None if cores is None else len(cores),
            "numa": nodes.pop() if len(nodes) == 1 else None,
        }

    def sync(self, what: str) -> None:
        """Wait for everything that was asked for."""

    def timed(self, step: Callable[[], object], what: str) -> float:
        """Seconds of one step."""
        began = time.perf_counter()
        step()
        return time.perf_counter() - began

    def series(
        self,
        step: Callable[[], object],
        count: int,
        progress: Progress,
        before: Callable[[], object] | None,
        what: str,
    ) -> tuple[list[float], list[float]]:
        """Seconds of each of `count` steps, and of the pauses between them; `before` each, if given."""
        spent, pauses = [], []
        left = None
        clock = time.perf_counter
        for _ in range(count):
            if before is not None:
                before()
            progress.enter()
            began = clock()
            step()
            ended = clock()
            progress.leave()
            spent.append(ended - began)
            if left is not None:
                pauses.append(began - left)
            left = ended
        return spent, pauses


class Cuda:
    """A rank on a GPU. Times are those of the device; no wait is without end."""

    kind = "cuda"

    def __init__(self, index: int, seconds: float) -> None:
        import torch

        self.torch = torch
        self.index, self._seconds = index, seconds
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(index)

    def about(self) -> dict[str, object]:
        """Fields of the rank's measurement."""
        told = self.torch.cuda.get_device_properties(self.index)
        found: dict[str, object] = {"gpu": self.index, "gpu_name": told.name}
        uuid = getattr(told, "uuid", None)
        if uuid is not None:
            found["gpu_uuid"] = str(uuid) if str(uuid).startswith("GPU-") else "GPU-" + str(uuid)
        if hasattr(told, "pci_bus_id"):
            bdf = f"{told.pci_domain_id:04x}:{told.pci_bus_id:02x}:{told.pci_device_id:02x}.0"
            found.update(bdf=bdf, numa=_number(f"/sys/bus/pci/devices/{bdf}/numa_node"))
        if hasattr(os, "sched_getaffinity"):
            found["cores"] = len(os.sched_getaffinity(0))
        return found

    def _event(self) -> torch.cuda.Event:
        return self.torch.cuda.Event(enable_timing=True)

    def _hold(self) -> None:
        """Keep the device busy while the host asks for the step, so that the host's time is not in it."""
        if hasattr(self.torch.cuda, "_sleep"):
            self.torch.cuda._sleep(HOLD_CYCLES)

    def _await(self, event: torch.cuda.Event, what: str) -> None:
        # The backend's own watchdog would end the process without a word of why.
        until = time.monotonic() + self._seconds
        while not event.query():
            if time.monotonic() > until:
                raise Lost(f"{what} timed out after {self._seconds:.0f} s")
            time.sleep(POLL)

    def sync(self, what: str) -> None:
        """Wait for everything that was asked for. Raises `Lost`."""
        event = self._event()
        event.record()
        self._await(event, what)

    def timed(self, step: Callable[[], object], what: str) -> float:
        """Seconds of one step on the device. Raises `Lost`."""
        began, ended = self._event(), self._event()
        began.record()
        step()
        ended.record()
        self._await(ended, what)
        seconds: float = began.elapsed_time(ended) / 1e3
        return seconds

    def series(
        self,
        step: Callable[[], object],
        count: int,
        progress: Progress,
        before: Callable[[], object] | None,
        what: str,
    ) -> tuple[list[float], list[float]]:
        """As `Cpu.series`. A pause is what the device waits for the host. Raises `Lost`."""
        events = [(self._event(), self._event()) for _ in range(count)]
        for began, ended in events:
            if before is not None:
                before()
                self._hold()
            progress.enter()
            began.record()
            step()
            ended.record()
            progress.leave()
        self._await(events[-1][1], what)
        spent = [a.elapsed_time(b) / 1e3 for a, b in events]
        pauses = [a[1].elapsed_time(b[0]) / 1e3 for a, b in zip(events, events[1:])]  # noqa: B905, RUF007 - 3.8 has neither
        return spent, pauses


Device = Union[Cpu, Cuda]


def choose(backend: str, local_rank: int, devices: list[object] | None, seconds: float) -> Device:
    """The device of a local rank. `devices` are CUDA indices or UUIDs by local rank. Raises RuntimeError."""
    if backend != "nccl":
        return Cpu()
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU (torch.cuda.is_available() is false)")
    wanted: object = local_rank if devices is None else devices[local_rank]
    count = torch.cuda.device_count()
    if isinstance(wanted, str):
        uuids = [_uuid(i) for i in range(count)]
        if _plain(wanted) not in uuids:
            raise RuntimeError(f"torch does not see the GPU {wanted}")
        wanted = uuids.index(_plain(wanted))
    if not isinstance(wanted, int) or not 0 <= wanted < count:
        raise RuntimeError(f"local rank {local_rank} has no GPU: torch sees {count}")
    return Cuda(wanted, seconds)


def _uuid(index: int) -> str:
    import torch

    return _plain(str(getattr(torch.cuda.get_device_properties(index), "uuid", "")))


def _plain(uuid: str) -> str:
    return uuid.lower().replace("gpu-", "")


def _node_of_core(core: int) -> int | None:
    try:
        names = os.listdir(f"/sys/devices/system/cpu/cpu{core}")
    except OSError:
        return None
    found = [int(n[4:]) for n in names if re.match(r"node\d+$", n)]
    return found[0] if found else None


def _number(path: str) -> int | None:
    try:
        with open(path) as file:
            value = int(file.read())
    except (OSError, ValueError):
        return None
    return value if value >= 0 else None
