"""What one FSDP step costs: compute, communication hidden behind it, communication that is not.

Per unit: forward 2 FLOPs per parameter and token plus attention, backward twice that plus what is
recomputed; an all-gather before each use, a reduce-scatter after each backward, with HYBRID_SHARD an
all-reduce between replicas. Unit i is gathered while unit i-1 computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

BAND = 0.10
"""Relative error seen on a platform whose efficiency was calibrated on a run of the same model size."""
WIDE_BAND = 0.20
"""The same across model sizes: larger matrices are multiplied more efficiently."""


class Timed(Protocol):
    """Seconds of a collective by the bytes of its whole array: a measured `Curve` or an assumed `Line`."""

    def seconds(self, size: float) -> float:
        """Seconds for `size` bytes."""
        ...


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One training step on one GPU. Every field is printed with the prediction."""

    units: tuple[float, ...]
    """Parameters of each FSDP unit, in the order of use."""
    tokens: float
    """Per GPU and microstep."""
    peak_flops: float
    """Of the GPU in the dtype of compute."""
    efficiency: float
    """Part of the peak that the model's matrix products reach alone."""
    shard_size: int
    replicas: int = 1
    param_bytes: float = 2
    reduce_bytes: float = 2
    recompute: float = 0.0
    """Part of the forward that the backward repeats: 0 none, about 0.3 selective, 1 full checkpointing."""
    reshard: bool = True
    """Whether parameters are freed after forward, so that backward gathers them again."""
    attention_flops: float = 0.0
    """Forward FLOPs of attention per token and unit: 4 x hidden size x sequence length."""
    microsteps: int = 1
    """Accumulated per optimizer step, with gradients reduced in the last one only."""
    optimizer_bytes: float = 0.0
    """Bytes that the optimizer reads and writes per parameter of the shard."""
    memory_gbps: float = 0.0
    """GB/s of the GPU's memory; 0 leaves the optimizer out."""
    data_seconds: float = 0.0
    """Time in which the loader produces one batch."""
    launch_seconds: float = 0.0
    """CPU time to launch one unit's forward kernels; a unit cannot be faster."""

    @property
    def parameters(self) -> float:
        """Of the whole model."""
        return sum(self.units)


@dataclass(frozen=True, slots=True)
class Transfers:
    """The collectives: gather and scatter over the shard's ranks, reduce between replicas."""

    all_gather: Timed
    reduce_scatter: Timed
    all_reduce: Timed | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Predicted seconds of one optimizer step and where they go."""

    seconds: float
    compute: float
    exposed: float
    """Communication during which nothing is computed."""
    hidden: float
    """Communication behind compute."""
    optimizer: float
    data: float
    """Waiting for the loader."""
    tokens_per_second: float
    """Per GPU."""
    mfu: float
    """Model FLOPs utilisation: 6 FLOPs per parameter and token, without recomputing."""

    @property
    def exposed_share(self) -> float:
        """Part of the step."""
        return self.exposed / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Hide:
    """Tokens per GPU and microstep from which communication hides behind compute."""

    forward: float
    backward: float

    @property
    def both(self) -> float:
        """The larger of the two."""
        return max(self.forward, self.backward)


def predict(inputs: StepInputs, transfers: Transfers) -> Step:
    """The step's time. Raises `ValueError` for inputs that describe no step."""
    _validate(inputs)
    rate = inputs.peak_flops * inputs.efficiency
    work = [
        max((2 * p + inputs.attention_flops) * inputs.tokens / rate, inputs.launch_seconds)
        for p in inputs.units
    ]
    back = [(2 + inputs.recompute) * f for f in work]
    gather = [_gather(inputs, transfers, p) for p in inputs.units]
    reduce = [_reduce(inputs, transfers, p) for p in inputs.units]
    none = [0.0] * len(work)
    last = _pass(work, back, gather, gather if inputs.reshard else none, reduce)
    earlier = _pass(work, back, gather if inputs.reshard else none, gather if inputs.reshard else none, none)
    seconds = last + (inputs.microsteps - 1) * earlier
    compute = inputs.microsteps * (sum(work) + sum(back))
    gathers = sum(gather) * (2 * inputs.microsteps if inputs.reshard else 1)
    exposed = seconds - compute
    optimizer = 0.0
    if inputs.memory_gbps > 0:
        shard = inputs.parameters / inputs.shard_size
        optimizer = inputs.optimizer_bytes * shard / (inputs.memory_gbps * 1e9)
    total = seconds + optimizer
    data = max(0.0, inputs.microsteps * inputs.data_seconds - total)
    whole = total + data
    tokens = inputs.tokens * inputs.microsteps
    return Step(
        seconds=whole,
        compute=compute,
        exposed=exposed,
        hidden=max(gathers + sum(reduce) - exposed, 0.0),
        optimizer=optimizer,
        data=data,
        tokens_per_second=tokens / whole,
        mfu=6 * inputs.parameters * tokens / (whole * inputs.peak_flops),
    )


def _validate(inputs: StepInputs) -> None:
    if not inputs.units or min(inputs.units) <= 0:
        raise ValueError("a step needs at least one unit, each with parameters")
    for name in ("tokens", "peak_flops", "efficiency", "shard_size", "replicas", "microsteps"):
        if getattr(inputs, name) <= 0:
            raise ValueError(f"{name} must be greater than 0")


def _gather(inputs: StepInputs, transfers: Transfers, parameters: float) -> float:
    size = inputs.param_bytes * parameters
    return transfers.all_gather.seconds(size) if inputs.shard_size > 1 else 0.0


def _reduce(inputs: StepInputs, transfers: Transfers, parameters: float) -> float:
    size = inputs.reduce_bytes * parameters
    seconds = transfers.reduce_scatter.seconds(size) if inputs.shard_size > 1 else 0.0
    if inputs.replicas > 1 and transfers.all_reduce is not None:
        seconds += transfers.all_reduce.seconds(size / inputs.shard_size)
    return seconds


def _pass(
    work: Sequence[float],
    back: Sequence[float],
    gather: Sequence[float],
    again: Sequence[float],
    reduce: Sequence[float],
) -> float:
    """One microstep. Gathers and reductions share the wire in backward, so that their times add."""
    forward = gather[0] + sum(work)
    forward += sum(max(0.0, gather[i] - work[i - 1]) for i in range(1, len(work)))
    backward = sum(back) + reduce[0]
    backward += sum(max(0.0, again[i - 1] + reduce[i] - back[i - 1]) for i in range(1, len(work)))
    return forward + backward


def hide_tokens(inputs: StepInputs, all_gather_gbps: float, reduce_scatter_gbps: float) -> Hide:
    """Tokens per GPU that hide the communication at these busbw (GB/s). The size of a unit cancels out."""
    rate = inputs.peak_flops * inputs.efficiency / 2
    gather = inputs.param_bytes / (all_gather_gbps * 1e9)
    scatter = inputs.reduce_bytes / (reduce_scatter_gbps * 1e9)
    again = gather if inputs.reshard else 0.0
    return Hide(gather * rate, (again + scatter) * rate / (2 + inputs.recompute))
