"""Bytes of the reserve and the workspaces of one call of cuDNN's recurrent layers, by its layout.

Calls measured on an H200 with cuDNN 9.19 are met to the byte; what is assumed beyond them stands at
`Shape._gradients` and at `SMALL`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
KEPT = {"lstm": 5, "gru": 6, "rnn": 1}
"""Values that the reserve holds for each unit and step of a layer."""
PER_LAYER = 8 << 20
"""Bytes of the workspace for each layer and direction, whatever its sizes."""
SMALL = 384
"""Hidden units up to which a plain layer keeps its weights on chip: seen at 256, not at 512."""


class Shape:
    """Sizes of one call. `measured` are its reserve and its workspaces forward and backward, where known."""

    def __init__(
        self,
        kind: str,
        x: Any,
        hx: Any,
        params: Any,
        layers: int,
        both: bool,
        dropout: float,
        measured: tuple[int, int, int] | None = None,
        persistent: bool = False,
    ) -> None:
        self.measured, self.persistent = measured, persistent
        self.kind, self.layers, self.directions, self.dropout = kind, layers, 2 if both else 1, dropout
        self.item = int(x.element_size())
        self.hidden, self.batch = int(hx.shape[-1]), int(hx.shape[-2])
        self.rows = int(x.numel()) // int(x.shape[-1])
        self.one = self.rows * self.hidden * self.item
        """The output of one direction."""
        self.wide = self.one * self.directions
        self.narrow = int(x.numel()) * self.item
        """The input."""
        self.cell = self.batch * self.hidden * self.item
        self.weights = sum(int(p.numel()) for p in params)
        self.matrices = sum(int(p.numel()) for p in params if p.dim() > 1)

    def reserve(self) -> int:
        """Bytes kept for backward."""
        if self.measured:
            return self.measured[0]
        gaps = self.layers - 1
        masks = gaps * self.rows * self.hidden * self.directions**2 // 8 if self.dropout else 0
        return (KEPT[self.kind] * self.layers + gaps) * self.wide + masks + 256

    def workspace(self, backward: bool = False) -> int:
        """Bytes for the time of a call: the weights, cuBLAS's space, the larger of two phases' buffers."""
        if self.measured:
            return self.measured[1 + backward]
        fixed = self.layers * self.directions * PER_LAYER + 256 + 8 * self.batch
        return self.matrices * self.item + fixed + max(self._steps(), self._gradients())

    def _steps(self) -> int:
        """The phase over the steps: gates of one layer at a time, its input and its output."""
        lstm, gates, cells = self.kind == "lstm", GATES[self.kind], self.layers * self.cell
        if self.persistent:
            return (5 * gates + 1) * self.one + self.narrow + (8 if lstm else 5) * cells
        if self.directions == 2:
            return 2 * (gates + 3) * self.one + self.narrow + (24 if lstm else 14) * cells
        copies = bool(self.dropout and self.layers > 1)
        return (gates + 1 + copies) * self.one + self.narrow + (10 if lstm else 5) * cells

    def _gradients(self) -> int:
        """The phase over the layers: inputs and outputs both ways.

        The cells' part is a line through two and three layers where there is one direction.
        """
        single, wider = self.layers == 1, max(self.one, self.narrow)
        on_chip = (8 + GATES[self.kind]) * self.one if self.persistent else 0
        if self.directions == 2:
            size = (6 if single else 8) * self.one + 2 * self.narrow + 4 * wider
            cells = 14 * self.layers
        else:
            size = (3 if single else 2) * self.one + 2 * self.narrow + wider
            cells = 5 + self.persistent if single else 8 + 13 * self.layers
        if self.kind == "lstm":
            cells += 6 * self.layers * self.directions
        return size + on_chip + cells * self.cell


def persistent(
    kind: str, x: Any, hx: Any, layers: int, both: bool, padded: bool, gpu: Mapping[str, Any]
) -> bool:
    """Whether the weights stay on chip over all steps, by torch's choice in RNN.cpp or by cuDNN's own."""
    hidden, batch, wide = int(hx.shape[-1]), int(hx.shape[-2]), int(x.shape[-1])
    if layers > 1:
        return False
    if kind == "rnn" and hidden <= SMALL:
        return True
    able = gpu["sm"] >= 80 and gpu["sm"] % 10 != 6 and gpu["processors"] >= 98
    if x.dtype != torch.float16 or not padded or both or kind == "gru" or not able:
        return False
    if hidden > 1024 or hidden % 128 or wide % 128 or batch % 8 or batch > 128:
        return False
    return kind == "lstm" or batch < 96 or hidden < 896
