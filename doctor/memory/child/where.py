"""Whose work an allocation is: the module that runs, and the name of a buffer of FSDP's."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any

import torch

from .events import Events


class Where:
    """Which module runs: in forward by its hooks, in backward by the sequence number of the autograd node."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._names: dict[int, str] = {}
        self._stack: list[int] = [0]
        self._starts: list[int] = [0]
        self._owners: list[int] = [0]

    def name(self, root: torch.nn.Module) -> None:
        """Learn the modules of a model; wrappers' own parts of the names are left out."""
        for path, module in root.named_modules(remove_duplicate=True):
            parts = (
                p for p in path.split(".") if p not in ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")
            )
            self._names[id(module)] = ".".join(parts)

    def install(self) -> None:
        """Follow every module's forward."""
        hooks = torch.nn.modules.module
        hooks.register_module_forward_pre_hook(self._enter)
        hooks.register_module_forward_hook(self._leave, always_call=True)

    def _enter(self, module: torch.nn.Module, _args: object) -> None:
        known = self._names.get(id(module))
        self._stack.append(self._stack[-1] if known is None else self._events.modules.number(known))
        self._note()

    def _leave(self, _module: torch.nn.Module, _args: object, _out: object) -> None:
        if len(self._stack) > 1:
            self._stack.pop()
        self._note()

    def _note(self) -> None:
        at = torch._C._autograd._get_sequence_nr()
        if self._starts[-1] == at:
            self._owners[-1] = self._stack[-1]
        else:
            self._starts.append(at)
            self._owners.append(self._stack[-1])

    def now(self) -> int:
        """The number of the running module's name; 0 where there is none."""
        if len(self._stack) > 1:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return 0
        return self._owners[bisect.bisect_right(self._starts, node._sequence_nr()) - 1]

    def words(self) -> str:
        """The running module's name."""
        return self._events.modules.texts()[self.now()]


class Labelled:
    """Something that names allocations by their purpose while functions of FSDP run."""

    label: str | None = None
    """What allocations are called while it is set, in place of the operator's name."""

    def labelled(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        """A function whose allocations bear a name."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            before, self.label = self.label, label
            try:
                return function(*args, **kwargs)
            finally:
                self.label = before

        return wrapped
