"""The meter without a GPU: fake tensors under the tracker; phases are marks among its events."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .. import runtime, used
from ..casting import Autocast
from ..choices import Choices
from ..kernels import Kernels
from . import cuda_api, devices, host, sharded, translation
from .notes import Notes
from .steps import Steps


class Replayed:
    """Events of what the GPU would allocate."""

    def __init__(self, job: dict[str, Any], notes: Notes) -> None:
        self._job, self._notes = job, notes
        self._gpu: dict[str, Any] = job["gpu"]
        self.events = cuda_api.Counted()
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.tracker = devices.DeviceTracker(self.events, Kernels(self._gpu), fake)

    def install(self, steps: Steps) -> None:
        """Make "cuda" of this machine."""
        tracker, notes = self.tracker, self._notes
        runtime.patch(tracker)
        cuda_api.install(tracker, notes, self._gpu, int(self._job["local_world_size"]))
        translation.install(tracker)
        sharded.install(tracker, notes)
        host.install(tracker, steps, notes)
        Choices(self._gpu).install()
        Autocast(None).install()
        _naming(tracker)
        tracker.where.install()

    def mark(self, moment: str) -> None:
        """A phase begins."""
        self.events.mark(moment)

    @contextmanager
    def active(self) -> Iterator[None]:
        """While the script runs."""
        self.events.mark("init")
        with self.tracker:
            yield

    def result(self, folder: str) -> dict[str, object]:
        """The events go to a file, their names into the answer."""
        self.events.write(os.path.join(folder, "events.bin"))
        return {**self.events.header(), "torch": str(torch.__version__), "rules": sorted(used.RULES)}


def _naming(tracker: devices.DeviceTracker) -> None:
    """Modules get their names when the first forward of their root begins."""
    known: set[int] = set()

    def before(module: torch.nn.Module, _args: object) -> None:
        if id(module) not in known:
            known.update(id(m) for m in module.modules())
            tracker.where.name(module)

    hooks: Any = torch.nn.modules.module
    hooks.register_module_forward_pre_hook(before)
