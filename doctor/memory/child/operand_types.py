"""What CUDA's kernels ask of their operands' types, and shape-only forms let pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
INDEX = (torch.int32, torch.int64)


def _alike(args: Any) -> str:
    """Matrix products and what is scattered into a tensor: one type."""
    kinds = [t.dtype for t in args if isinstance(t, torch.Tensor)]
    if len(set(kinds)) < 2:
        return ""
    said = " and ".join(dict.fromkeys(_name(k) for k in kinds))
    return f"operands have the types {said}, and must have one: cast the input, or run under autocast"


def _source(args: Any) -> str:
    return _alike((args[0], args[3]))


def _put(args: Any) -> str:
    return _alike((args[0], args[2]))


def _targets(args: Any) -> str:
    kind = args[1].dtype
    return (
        ""
        if kind in (torch.int64, torch.uint8)
        else f"expected target dtype to be Long or Byte, but got {_name(kind)}"
    )


def _index(args: Any) -> str:
    kind = args[2].dtype
    return "" if kind in INDEX else f"expected an index of int32 or int64, but got {_name(kind)}"


def _floating(args: Any) -> str:
    kind = args[0].dtype
    return "" if kind.is_floating_point or kind.is_complex else f"not implemented for {_name(kind)}"


def _norm(args: Any) -> str:
    return _alike((args[0], *args[2:4]))


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


CHECKS: dict[Any, Callable[[Any], str]] = {
    aten.mm.default: _alike,
    aten.addmm.default: _alike,
    aten.mv.default: _alike,
    aten.addmv.default: _alike,
    aten.index_add.default: _source,
    aten.index_add_.default: _source,
    aten.index_put.default: _put,
    aten.index_put_.default: _put,
    aten.index_select.default: _index,
    aten.nll_loss_forward.default: _targets,
    aten.nll_loss2d_forward.default: _targets,
    aten.gelu.default: _floating,
    aten.silu.default: _floating,
    aten._softmax.default: _floating,
    aten._log_softmax.default: _floating,
    aten.native_layer_norm.default: _norm,
}
"""By operator: what is wrong with the arguments of a call, or ""."""
