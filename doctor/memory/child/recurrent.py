"""LSTM, GRU and plain recurrent layers as cuDNN runs them: one operator over all steps and layers.

On CPU they fall apart into cells. cuDNN keeps a reserve for backward (the gates of every step and layer), and
takes a workspace in forward and twice in backward. Weights that do not lie in one piece in cuDNN's order are
copied into one (`recurrent_weights`). Reserve and workspace follow from the layout: calls measured on an H200
with cuDNN 9.19 in three dtypes are met to the byte (`recurrent_shape`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import recurrent_weights
from .recurrent_shape import Shape, on_chip

OPERATORS = {
    "lstm": torch.ops.aten.lstm.input,
    "gru": torch.ops.aten.gru.input,
    "rnn": torch.ops.aten.rnn_tanh.input,
}
"""The calls under whose names measurements are kept."""
STATE_PER_PROCESSOR = 49152
"""Bytes of cuDNN's random numbers for the dropout between layers."""


def _space(size: int) -> Any:
    return torch.empty(size, dtype=torch.uint8)


class Recurrent(torch.autograd.Function):  # type: ignore[misc]
    """`_cudnn_rnn`: what it allocates, in its order."""

    @staticmethod
    def forward(ctx: Any, shape: Any, flat: Any, x: Any, hx: Any, cx: Any, *params: Any) -> Any:
        """Steps first. Gives the output and the last hidden state, for an LSTM the last cell state too."""
        straight = x.contiguous()
        out = x.new_empty((*x.shape[:-1], int(hx.shape[-1]) * shape.directions))  # or projected
        last = [torch.empty_like(h) for h in (hx, cx) if h is not None]
        pieces = params[0].detach() if flat else x.new_empty(shape.weights)
        space = _space(shape.workspace())
        reserve = _space(shape.reserve())
        del space, straight
        ctx.shape = shape
        ctx.save_for_backward(x, hx, cx, out, reserve, pieces, *params)
        return (out, *last)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients of the input and the states, then of the weights, which share one tensor."""
        x, hx, cx, out, _reserve, _pieces, *params = ctx.saved_tensors
        shape = ctx.shape
        unused = [torch.zeros_like(h) for h, g in zip((hx, cx), grads[1:]) if h is not None and g is None]  # noqa: B905
        straight = x.contiguous()
        go = grads[0].contiguous() if grads[0] is not None else torch.zeros_like(out)
        of_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        of_h = [torch.empty_like(h) for h in (hx, cx) if h is not None]
        space = _space(shape.workspace(True))
        del space, go, straight
        straight = x.contiguous()
        of_w = x.new_empty(shape.weights)
        space = _space(shape.workspace(True))
        del space, straight, unused
        found, at = [], 0
        for p in params:
            found.append(of_w[at : at + p.numel()].view(p.shape))
            at += p.numel()
        return None, None, of_x, of_h[0], of_h[1] if cx is not None else None, *found


class Recurrence:
    """The operators for one GPU. `find` has the measured entry of a call, where there is one."""

    def __init__(self, sm: int, processors: int) -> None:
        self._gpu = {"sm": sm, "processors": processors}
        self._random: Any = None
        self.find: Callable[[Any, Any, Any, bool], dict[str, Any] | None] | None = None

    def kernels(self) -> dict[str, Any]:
        """By operator."""
        found: dict[str, Any] = {}
        for name, kind in (("lstm", "lstm"), ("gru", "gru"), ("rnn_tanh", "rnn"), ("rnn_relu", "rnn")):
            found[f"{name}.input"] = self._padded(kind)
            found[f"{name}.data"] = self._packed(kind)
        return found

    def _padded(self, kind: str) -> Any:
        def run(
            x: Any,
            hx: Any,
            params: Any,
            biases: Any,
            layers: Any,
            dropout: Any,
            train: Any,
            both: Any,
            batch_first: Any,
        ) -> Any:
            out, *last = self._run(
                kind,
                x.transpose(0, 1) if batch_first else x,
                hx,
                params,
                layers,
                dropout if train else 0.0,
                both,
            )
            return (out.transpose(0, 1) if batch_first else out, *last)

        return run

    def _packed(self, kind: str) -> Any:
        def run(
            data: Any,
            _sizes: Any,
            hx: Any,
            params: Any,
            biases: Any,
            layers: Any,
            dropout: Any,
            train: Any,
            both: Any,
        ) -> Any:
            return self._run(kind, data, hx, params, layers, dropout if train else 0.0, both, False)

        return run

    def _run(
        self,
        kind: str,
        x: Any,
        hx: Any,
        params: Any,
        layers: int,
        dropout: float,
        both: bool,
        padded: bool = True,
    ) -> Any:
        states = list(hx) if kind == "lstm" else [hx, None]
        flat = recurrent_weights.flat(params)
        if torch.is_autocast_enabled("cpu"):
            low = torch.get_autocast_dtype("cpu")
            x, states = x.to(low), [s if s is None else s.to(low) for s in states]
            if any(p.dtype != low for p in params):
                params, flat = [p.to(low) for p in params], True  # cast into one piece
        if dropout and layers > 1 and self._random is None:
            self._random = _space(self._gpu["processors"] * STATE_PER_PROCESSOR)
        measured = self._measured(kind, x, states, params, layers, dropout, both) if padded else None
        cell = states[1] if kind == "lstm" else states[0]  # which a projection leaves as wide as the gates
        projected = cell.shape[-1] != states[0].shape[-1]
        chip = on_chip(kind, x, cell, layers, both, padded and not projected, self._gpu)
        shape = Shape(kind, x, cell, params, layers, both, dropout, measured, chip)
        return Recurrent.apply(shape, flat, x, *states, *params)

    def _measured(
        self, kind: str, x: Any, states: Any, params: Any, layers: int, dropout: float, both: bool
    ) -> tuple[int, int, int] | None:
        """Reserve and workspaces of a call, as `calibrating` writes them."""
        if self.find is None:
            return None
        of, func = (states if kind == "lstm" else states[0]), OPERATORS[kind]
        biases = any(p.dim() == 1 for p in params)
        entry = self.find(
            func, (x, of, list(params), biases, layers, float(dropout), True, bool(both), False), {}, True
        )
        if entry is None or len(entry["during"]) != 2:
            return None
        forward, backward = entry["during"]
        return int(entry["kept"]), int(forward), int(backward)
