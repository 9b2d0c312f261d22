"""One forward of the unsharded model, of which only shapes matter: nothing is kept for a backward.

Meta tensors take the least time. A model that reads values of its batch, as transformers does for its masks,
runs on fakes instead, whose small integers have values.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch

from . import ctc, shortcuts
from .building import batch_of
from .calibrated import CalibratedChoices, CalibratedKernels, Calibration
from .events import Events
from .fakes import Fakes
from .ground import FakeGround
from .loading import Refused
from .runtime import patch
from .stepping import arguments
from .tracker import Tracker
from .values import Assumed

T = TypeVar("T")


class Order:
    """Notes which units one forward enters: a hook of torch on all modules, for good or within a `with`."""

    def __init__(self, units: dict[int, int]) -> None:
        self._units, self._roots = units, 0
        self.entered: list[int] = []

    def install(self) -> Any:
        """Returns torch's handle, whose `remove` ends it."""
        return torch.nn.modules.module.register_module_forward_pre_hook(self._enter)

    def __enter__(self) -> Order:
        """Begin to note."""
        self._handle = self.install()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._handle.remove()

    def _enter(self, module: torch.nn.Module, _args: object) -> None:
        i = self._units.get(id(module))
        if i is None or self._roots > 1 or torch._C._current_autograd_node() is not None:
            return
        self._roots += i == 0
        if self._roots < 2 and len(self.entered) < 100_000:
            self.entered.append(i)


class Uncounted(Tracker):
    """Knows values as a tracker does, and counts no memory."""

    def _allocate(self, *_: object) -> None:
        pass


def first_forward(
    model: torch.nn.Module,
    job: dict[str, Any],
    made_by: Any,
    watch: Callable[[], AbstractContextManager[T]],
    assumed: Assumed | None = None,
) -> T:
    """What `watch` saw of it. Raises what the model raises, and `Refused` for the batch.

    It changes torch for the whole process, and puts the model's meta tensors on fakes, where values are read.
    """
    try:
        with torch.no_grad(), torch.device("meta"), watch() as seen:
            given, named = arguments(model, batch_of(job, made_by, "meta"))
            model(*given, **named)
    except Refused:
        raise
    except Exception:  # the fakes say what is wrong, if it still is
        return _on_fakes(model, job, made_by, watch, assumed)
    return seen


def _on_fakes(
    model: torch.nn.Module,
    job: dict[str, Any],
    made_by: Any,
    watch: Callable[[], AbstractContextManager[T]],
    assumed: Assumed | None,
) -> T:
    gpu, calibration = job.get("gpu") or {}, Calibration(job)
    tracker = Uncounted(Events(), CalibratedKernels(gpu, calibration))
    tracker.assumed = assumed or tracker.assumed
    patch(tracker)
    ctc.install()
    shortcuts.take()
    CalibratedChoices(gpu, calibration).install()
    with Fakes(allow_non_fake_inputs=True), tracker:
        FakeGround(tracker).place_shards(model, on_host=False)
        given, named = arguments(model, batch_of(job, made_by, "cpu"))
        with watch() as seen:
            model(*given, **named)
    return seen
