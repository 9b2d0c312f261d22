"""Recurrent layers, which keep a copy of their weights for cuDNN."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.wrap._common import count, listed, module_of
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Row, fail, ok
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.unit_plan import Parameter, UnitPlan

FLATTENED = ("float16", "float32", "float64")
"""Dtypes of torch.backends.cudnn.CUDNN_TENSOR_DTYPES."""


@check("WRP022", Row.WRONG, needs=(UnitPlan,), tags=("wrap", "recurrent"))
def recurrent_layers(facts: Facts, options: Options) -> Iterator[Finding]:
    """A recurrent layer computes with the weights of its first forward.

    What: Looks for LSTM, GRU and RNN layers that train under FSDP2 in float32, float16 or float64.
    Why: On a GPU the first forward moves the gathered weights into one buffer for cuDNN. FSDP2 keeps its
        parameter objects and gathers into the buffers that it made for them, so that no later forward sees
        an update: the layer stands still while its optimizer goes on, without an error, and a checkpoint
        holds other weights than those that made the losses. The buffer is never freed either: the layer is
        whole on every rank. FSDP1 and DDP are not concerned, nor is bfloat16, which has no such buffer.
    Fix: Turn the buffer off on the layer before its first forward: `layer.flatten_parameters = lambda: None`.
        cuDNN then copies the weights in each call. Or gather in bfloat16.
    Sources: Seen on an H200 (torch 2.11) with LSTM, GRU and RNN; torch/nn/modules/rnn.py
        (_update_flat_weights, flatten_parameters); torch/distributed/fsdp/_fully_shard/_fsdp_param.py
        (init_unsharded_param returns early after the first all-gather);
        aten/src/ATen/native/cudnn/RNN.cpp (_cudnn_rnn_flatten_weight: set_data).
    """
    plan = facts[UnitPlan]
    if plan.api != "fsdp2":
        yield ok(f"{plan.api} gathers into other tensors in each forward")
        return
    of: dict[str, list[Parameter]] = {path: [] for path in plan.recurrent}
    for p in plan.parameters:
        for name in (p.name, *p.other_names):
            layer = of.get(name.rpartition(".")[0])
            if layer is not None and not p.ignored:
                layer.append(p)
    stale = {path: held for path, held in of.items() if _flattened(plan, held) and any(map(_trains, held))}
    if not stale:
        yield ok(
            f"{len(of)} recurrent layers, none of which trains in a dtype that cuDNN's buffer is made for"
            if of
            else "no recurrent layer"
        )
        return
    elements = sum(p.elements for held in stale.values() for p in held)
    first = next(iter(stale))
    dtype = plan.param_dtype or stale[first][0].dtype
    yield fail(
        f"{listed(p or 'the root' for p in stale)} ({count(elements)} parameters, gathered in {dtype}) "
        "computes with the weights of its first forward from then on",
        "each forward with the weights that were gathered for it",
        fix=Fix(
            "Turn off cuDNN's buffer before the first forward, in each recurrent layer: "
            f"{module_of(first + '.weight')}.flatten_parameters = lambda: None; or gather in bfloat16"
        ),
    )


def _flattened(plan: UnitPlan, held: list[Parameter]) -> bool:
    """Whether torch makes the buffer: all weights have one dtype that it makes it for."""
    kinds = {plan.param_dtype or p.dtype for p in held}
    return len(kinds) == 1 and kinds <= set(FLATTENED)


def _trains(p: Parameter) -> bool:
    return p.trainable
