"""What a rank does alone: the same matrix products on every rank, copies between host memory and its GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .load import waited

if TYPE_CHECKING:
    from .device import Device
    from .journal import Journal

CPU_SIDE, CPU_PRODUCTS = 256, 80
"""Some 30 ms: longer than the slices of time in which a rank may lose its core."""
GPU_SIDE, GPU_PRODUCTS = 4096, 8
WARMUP = 3
SECONDS, LEAST = 1.5, 5
"""Time for all repeats of the fixed work, and repeats that are made in any case."""
COPIES = 8


def work(
    device: Device, repeats: int, journal: Journal, barrier: Callable[[], None], run: int, dtype: str
) -> None:
    """Time the fixed work, all ranks at once, without communication in it."""
    torch = device.torch
    on_gpu = device.kind == "cuda"
    side, products = (GPU_SIDE, GPU_PRODUCTS) if on_gpu else (CPU_SIDE, CPU_PRODUCTS)
    left = torch.ones(side, side, device=device.device, dtype=getattr(torch, dtype) if on_gpu else None)
    out = torch.empty_like(left)

    def step() -> None:
        for _ in range(products):
            torch.mm(left, left, out=out)

    for _ in range(WARMUP):
        step()
    wall: list[float] = []
    cpu: list[float] = []
    queued: list[float] = []
    # Not before each repeat: a rank that loses its core would begin it when it has just got the core back.
    barrier()
    until = time.monotonic() + SECONDS
    for number in range(repeats):
        if number >= LEAST and time.monotonic() > until:
            break
        before, began = waited(), time.thread_time()
        wall.append(device.timed(step, "matrix products"))
        cpu.append(time.thread_time() - began)
        after = waited()
        if before is not None and after is not None:
            queued.append(after - before)
    entry: dict[str, Any] = {
        "wall_seconds": wall,
        "cpu_seconds": [] if on_gpu else cpu,
        "waited_seconds": [] if on_gpu else queued,
        "flops": float(2 * side**3 * products),
        "device": device.kind,
        "run": run,
    }
    journal.add("work", entry)


class Copies:
    """Pinned host memory and memory of the GPU, of the largest size that is copied."""

    def __init__(self, device: Device, sizes: list[int]) -> None:
        torch = device.torch
        self._device, self._sizes = device, sizes
        self._host = torch.empty(max(sizes), dtype=torch.uint8).pin_memory()
        self._gpu = torch.empty(max(sizes), dtype=torch.uint8, device=device.device)

    def run(self, journal: Journal, *, alone: bool, run: int) -> None:
        """Time the copies of every size in both directions."""
        for size in self._sizes:
            host, gpu = self._host[:size], self._gpu[:size]
            for direction, target, source in (("h2d", gpu, host), ("d2h", host, gpu)):
                seconds = [
                    self._device.timed(partial(target.copy_, source, non_blocking=True), "copy " + direction)
                    for _ in range(COPIES + 1)
                ]
                entry = {"direction": direction, "bytes": size, "seconds": seconds[1:], "alone": alone}
                journal.add("copies", {**entry, "run": run})
