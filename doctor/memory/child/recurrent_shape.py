"""Bytes of the reserve and the workspaces of one call of cuDNN's recurrent layers, by its layout.

Calls measured on an H200 with cuDNN 9.19 are met to the byte; what is assumed beyond them stands at
`Shape._gradients` and at `on_chip`.
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
SMALL = {"rnn": (384, 256), "lstm": (192, 128), "gru": (192, 128)}
"""Hidden units up to which a layer's weights stay on chip, forward and backward."""
ON_CHIP = {"rnn": 9, "lstm": 12, "gru": 14}
"""Outputs of one direction that the phase over the layers then takes more."""


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
        persistent: tuple[bool, bool] = (False, False),
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
        chip = self.persistent[backward]
        return self.matrices * self.item + fixed + max(self._steps(chip), self._gradients(chip))

    def _steps(self, chip: bool) -> int:
        """The phase over the steps: gates of one layer at a time, its input and its output."""
        lstm, gates, cells = self.kind == "lstm", GATES[self.kind], self.layers * self.cell
        more = 4 * gates * self.one if chip else 0
        if self.directions == 2:
            held = (18 if chip else 24) if lstm else 14
            return 2 * (gates + 3) * self.one + more + self.narrow + held * cells
        if chip:
            return (gates + 1) * self.one + more + self.narrow + (8 if lstm else 5) * cells
        copies = bool(self.dropout and self.layers > 1)
        return (gates + 1 + copies) * self.one + self.narrow + (10 if lstm else 5) * cells

    def _gradients(self, chip: bool) -> int:
        """The phase over the layers: inputs and outputs both ways.

        The cells' part is a line through two to eight layers where there is one direction; with a batch of 48
        it is less steep.
        """
        single, wider = self.layers == 1, max(self.one, self.narrow)
        more = ON_CHIP[self.kind] + 2 * (not single and self.directions == 1) if chip else 0
        if self.directions == 2:
            size = (6 if single else 8) * self.one + 2 * self.narrow + 4 * wider
            cells = 14 * self.layers
        else:
            size = (3 if single else 2) * self.one + 2 * self.narrow + wider
            cells = 6 * self.layers if chip else 5 if single else 8 + 13 * self.layers
        if self.kind == "lstm":
            cells += 6 * self.layers * self.directions
        return size + more * self.one + cells * self.cell


def on_chip(
    kind: str, x: Any, hx: Any, layers: int, both: bool, padded: bool, gpu: Mapping[str, Any]
) -> tuple[bool, bool]:
    """Whether the weights stay on chip over all steps, forward and backward, by torch's choice (RNN.cpp).

    Small layers do so in fp16 and plain ones in fp32 too, as was seen; the others in fp32 are taken alike.
    """
    hidden, batch, wide = int(hx.shape[-1]), int(hx.shape[-2]), int(x.shape[-1])
    able = gpu["sm"] >= 80 and gpu["sm"] % 10 != 6 and gpu["processors"] >= 98
    if not padded or x.dtype == torch.bfloat16:
        return False, False
    forward, backward = (hidden <= most for most in SMALL[kind])
    if not able or x.dtype != torch.float16 or layers > 1 or both or kind == "gru":
        return forward, backward
    fits = hidden <= 1024 and not hidden % 128 and not wide % 128 and not batch % 8 and batch <= 128
    static = fits and (kind == "lstm" or batch < 96 or hidden < 896)
    return forward or static, backward or static
