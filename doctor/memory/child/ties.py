"""Tied parameters that stay one when a model on meta tensors is given memory.

`Module.to_empty` makes a parameter anew in each module that has it, and so parts what is tied; a script that
builds its model with memory keeps it tied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Ties:
    """The places that share a parameter, as they were on meta tensors; none where ties are not `kept`."""

    def __init__(self, model: nn.Module, *, kept: bool) -> None:
        self._shared: dict[tuple[int, str], int] = {}
        """Module and name to the number of what is shared there."""
        self._made: dict[int, Any] = {}
        self._modules: list[nn.Module] = (
            list(model.modules()) if kept else []
        )  # kept, so that no id is given twice
        places: dict[int, list[tuple[int, str]]] = {}
        for module in self._modules:
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    places.setdefault(id(parameter), []).append((id(module), name))
        for number, found in enumerate(p for p in places.values() if len(p) > 1):
            self._shared.update(dict.fromkeys(found, number))

    def restore(self, module: nn.Module) -> None:
        """Share a module's own parameters with those that were made before; it has just been given memory."""
        for name in module._parameters:
            number = self._shared.get((id(module), name))
            if number is not None:
                module._parameters[name] = self._made.setdefault(number, module._parameters[name])

    def whole(self, model: nn.Module) -> None:
        """The same for all modules of a model."""
        for module in model.modules():
            self.restore(module)

    def after(self, place: Callable[[nn.Module], None]) -> Callable[[nn.Module], None]:
        """What gives a module memory, and restores what is tied in it."""

        def placed(module: nn.Module) -> None:
            place(module)
            self.restore(module)

        return placed
