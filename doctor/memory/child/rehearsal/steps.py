"""Where the script is: phases and optimizer steps, told by hooks; and the end after enough of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.optim import optimizer as optimizers

BETWEEN = ("init", "batch", "after optimizer", "evaluation")
"""Phases outside of a step's own work."""

EVALUATED = 2
"""Batches after which an evaluation is cut short."""


class Meter(Protocol):
    """Whoever measures."""

    def mark(self, moment: str) -> None:
        """A phase begins."""


class Steps:
    """Counts optimizer steps and names phases.

    `wanted` steps are run to their ends: the one after them is cut short when its forward begins, so that
    zero_grad and what the script does between two steps are seen too.
    """

    def __init__(self, meter: Meter, wanted: int, finish: Callable[[str], None]) -> None:
        self._meter, self._wanted, self._finish = meter, wanted, finish
        self._taken: dict[int, int] = {}
        self._optimizers: dict[int, Any] = {}
        self._depth = 0
        self._in_backward = self._stepping = False
        self.phase = "init"
        self.step = 0
        self.backwards = self.forwards = self.evaluations = 0
        self.paused = 0
        """Steps inside are no training steps: dcp initialises optimizer states by one."""

    def install(self) -> None:
        """Hooks for the whole process."""
        hooks: Any = torch.nn.modules.module
        hooks.register_module_forward_pre_hook(self._enter)
        hooks.register_module_forward_hook(self._leave, always_call=True)
        optimizers.register_optimizer_step_pre_hook(self._before)
        optimizers.register_optimizer_step_post_hook(self._after)
        autograd: Any = torch.autograd
        real = autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            return self._backward(real, args, kwargs)

        autograd.backward = backward

    @property
    def done(self) -> int:
        """Whole steps: those that every optimizer has taken."""
        return min(self._taken.values(), default=0)

    def classes(self) -> list[str]:
        """The optimizers that stepped, by class, with their settings that bear on memory."""
        found: dict[str, None] = {}
        for o in self._optimizers.values():
            flags = [f for f in ("fused", "foreach") if o.defaults.get(f)]
            found[type(o).__name__ + (f" ({', '.join(flags)})" if flags else "")] = None
        return list(found)

    def loading(self) -> None:
        """A loader gives the next batch."""
        if self.phase in BETWEEN:
            self._closing()
            self._mark("batch")

    def _mark(self, phase: str) -> None:
        if phase != self.phase:
            self.phase = phase
            self._meter.mark(phase)

    def _closing(self) -> None:
        if self._taken and self.done >= self._wanted:
            self._finish("steps")

    def _enter(self, _module: object, _args: object) -> None:
        if not self._depth and not self._in_backward and not self.paused:
            self.forwards += 1
            if not torch.is_grad_enabled():
                self._evaluating()
            elif self.phase in BETWEEN:
                self._closing()
                if self.done >= self.step:  # with several optimizers a step ends with the last of them
                    self.step += 1
                    self._meter.mark(f"step {self.step}")
            if torch.is_grad_enabled():
                self._mark("forward")
        self._depth += 1

    def _evaluating(self) -> None:
        """A forward that keeps nothing for a backward."""
        self.evaluations += 1
        if self.phase in BETWEEN:
            self._closing()
            self._mark("evaluation")

    def enough(self, seen: tuple[int, int]) -> bool:
        """Whether an evaluation has had its batches: `seen` is what `counts` said when its loader began."""
        return self.backwards == seen[1] and self.evaluations - seen[0] >= EVALUATED

    @property
    def counts(self) -> tuple[int, int]:
        """Evaluations and backwards so far."""
        return self.evaluations, self.backwards

    def _leave(self, _module: object, _args: object, _out: object) -> None:
        self._depth = max(0, self._depth - 1)

    def _backward(self, real: Any, args: Any, kwargs: Any) -> Any:
        if self._in_backward or self.paused:
            return real(*args, **kwargs)
        self.backwards += 1
        self._in_backward = True
        self._mark("backward")
        try:
            return real(*args, **kwargs)
        finally:
            self._in_backward = False
            # Lightning runs forward and backward in a closure of the optimizer's step.
            self._mark("optimizer" if self._stepping else "after backward")

    def _before(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        if self.paused:
            return
        self._optimizers[id(optimizer)] = optimizer
        if not self._in_backward:
            self._stepping = True
            if self.phase not in BETWEEN:
                self._mark("optimizer")

    def _after(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        if self.paused:
            return
        self._taken[id(optimizer)] = self._taken.get(id(optimizer), 0) + 1
        if not self._in_backward:
            self._stepping = False
            self._mark("after optimizer")
