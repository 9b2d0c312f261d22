"""One step of an LSTM or a GRU as CUDA runs it: two products, then one kernel that keeps its gates.

On CPU a cell falls apart into operators over its gates; on CUDA backward needs both products and a workspace
of four or five values per unit (RNN.cpp, RNN.cu).
"""

from __future__ import annotations

from typing import Any

import torch


class FusedLSTMCell(torch.autograd.Function):  # type: ignore[misc]
    """`_thnn_fused_lstm_cell`."""

    @staticmethod
    def forward(ctx: Any, of_x: Any, of_h: Any, cx: Any, b_ih: Any, b_hh: Any) -> Any:
        """Gates of input and state; gives the next hidden and cell state."""
        ctx.set_materialize_grads(False)
        workspace = torch.empty_like(of_x)
        hy, cy = torch.empty_like(cx), torch.empty_like(cx)
        ctx.save_for_backward(of_x, of_h, cx, workspace, cy, b_ih, b_hh)
        return hy, cy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Both products have one gradient, and so have both biases."""
        _, _, cx, workspace, _, b_ih, _ = ctx.saved_tensors
        gates, of_c = torch.empty_like(workspace), torch.empty_like(cx)
        of_b = gates.sum(0) if b_ih is not None else None
        return gates, gates, of_c, of_b, of_b


class FusedGRUCell(torch.autograd.Function):  # type: ignore[misc]
    """`_thnn_fused_gru_cell`."""

    @staticmethod
    def forward(ctx: Any, of_x: Any, of_h: Any, hx: Any, b_ih: Any, b_hh: Any) -> Any:
        """Gates of input and state; gives the next hidden state."""
        workspace = hx.new_empty((hx.shape[0], 5 * hx.shape[1]))
        ctx.save_for_backward(of_x, of_h, hx, workspace, b_ih, b_hh)
        return torch.empty_like(hx)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Each product, the state and each bias have a gradient of their own."""
        of_x, of_h, hx, _, b_ih, _ = ctx.saved_tensors
        gates, of_gates, of_state = torch.empty_like(of_x), torch.empty_like(of_h), torch.empty_like(hx)
        both = (gates.sum(0), of_gates.sum(0)) if b_ih is not None else (None, None)
        return gates, of_gates, of_state, *both


def lstm_cell(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """The next hidden and cell state."""
    gates = torch.matmul(x, w_ih.t()), torch.matmul(hx[0], w_hh.t())
    return FusedLSTMCell.apply(*gates, hx[1], b_ih, b_hh)


def gru_cell(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """The next hidden state."""
    gates = torch.matmul(x, w_ih.t()), torch.matmul(hx, w_hh.t())
    return FusedGRUCell.apply(*gates, hx, b_ih, b_hh)
