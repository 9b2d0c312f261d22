"""Where the weights of a recurrent layer lie: in one piece in cuDNN's order, or apart and copied.

On CUDA, torch moves the weights of an LSTM, GRU or RNN into one buffer when the module is moved, and again in
a forward that finds other tensors in their place, as those that FSDP has just gathered. It does so for the
dtypes in `torch.backends.cudnn.CUDNN_TENSOR_DTYPES` (bf16 is none), and never on CPU, so it is done here.
FSDP2 frees the buffers that it gathered into and not this one: it stays from the first forward on, and what
is gathered later does not reach it (WRP022).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from . import used


def install() -> None:
    """Let modules flatten the weights of fake tensors."""
    torch.nn.RNNBase.flatten_parameters = _flatten


def flattening(model: torch.nn.Module) -> Iterator[str]:
    """Paths of the recurrent layers whose forward lays their weights into one buffer on CUDA."""
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.RNNBase):
            method = getattr(module.flatten_parameters, "__func__", None)
            if method is torch.nn.RNNBase.flatten_parameters:
                yield path


def flat(weights: Sequence[Any]) -> bool:
    """Whether weights lie as `_flatten` has laid them."""
    ordered = _ordered(weights)
    starts = [0, *accumulate(int(w.numel()) for w in ordered)]
    storages = {w.untyped_storage()._cdata for w in ordered}
    return len(storages) == 1 and [w.storage_offset() for w in ordered] == starts[:-1]


def _ordered(weights: Sequence[Any]) -> list[Any]:
    """Matrices before biases."""
    return sorted(weights, key=lambda w: w.dim() < 2)


def _flatten(module: Any) -> None:
    weights = module._flat_weights
    if len(weights) != len(module._flat_weights_names) or not isinstance(weights[0], torch.Tensor):
        return
    kind, device = weights[0].dtype, weights[0].device
    if not all(_movable(w, kind) for w in weights) or len({w.data_ptr() for w in weights}) != len(weights):
        return
    used.note("flatten_parameters")
    with torch.no_grad():
        buffer, at = torch.zeros(sum(w.numel() for w in weights), dtype=kind, device=device), 0
        for w in _ordered(weights):
            w.data = buffer[at : at + w.numel()].view(w.shape)
            at += w.numel()


def _movable(weight: Any, dtype: Any) -> bool:
    fake = isinstance(weight, FakeTensor) and not isinstance(weight, DTensor) and weight.device.type != "meta"
    return fake and weight.dtype == dtype and dtype in torch.backends.cudnn.CUDNN_TENSOR_DTYPES
