"""What one FSDP step costs: compute, communication hidden behind it, communication that is not.

Per unit: forward 2 FLOPs per parameter and token plus attention, backward twice that plus what is
recomputed; an all-gather before each use, a reduce-scatter after each backward, with HYBRID_SHARD an
all-reduce between replicas. Unit i is gathered while unit i-1 computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

BAND = 0.10
"""Relative error seen on a platform whose efficiency was calibrated on a run of the same model size."""
WIDE_BAND = 0.20
"""The same across model sizes: larger matrices are multiplied more efficiently."""
MFU_GOOD, MFU_NORMAL, MFU_LOW = 0.45, 0.35, 0.15


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


def calibrated(inputs: StepInputs, transfers: Transfers, tokens_per_second: float) -> StepInputs:
    """The inputs with the efficiency at which the prediction meets a measured run."""

    def rate(efficiency: float) -> float:
        return predict(replace(inputs, efficiency=efficiency), transfers).tokens_per_second

    return replace(inputs, efficiency=_solve(rate, tokens_per_second, 1e-3, 1.0))


def implied_busbw(
    inputs: StepInputs, transfers: Callable[[float], Transfers], tokens_per_second: float
) -> float:
    """GB/s at which the prediction meets a measured run: what the fabric must have delivered."""

    def rate(gbps: float) -> float:
        return predict(inputs, transfers(gbps)).tokens_per_second

    return _solve(rate, tokens_per_second, 1e-3, 1e4)


def _solve(rising: Callable[[float], float], goal: float, low: float, high: float) -> float:
    """Where a rising function reaches `goal`, within the bounds, halving them geometrically."""
    for _ in range(80):
        middle = (low * high) ** 0.5
        if rising(middle) < goal:
            low = middle
        else:
            high = middle
    return high


@dataclass(frozen=True, slots=True)
class Choice:
    """FULL_SHARD over all ranks against HYBRID_SHARD within nodes."""

    full: Step
    hybrid: Step | None
    """None where the model's state does not fit into one node's GPUs."""
    strategy: str
    reason: str


def choose(
    inputs: StepInputs,
    full: Transfers,
    hybrid: Transfers,
    nodes: int,
    state_bytes: float,
    memory_bytes: float,
) -> Choice:
    """Which sharding is faster. `inputs` describe the full one; `state_bytes` are parameters, gradients and
    optimizer of the model, `memory_bytes` what one GPU has for them.
    """
    whole = predict(inputs, full)
    per_node = max(inputs.shard_size // max(nodes, 1), 1)
    if nodes < 2:
        return Choice(whole, None, "FULL_SHARD", "one node")
    if state_bytes / per_node > memory_bytes:
        need, room = state_bytes / per_node / 2**30, memory_bytes / 2**30
        return Choice(
            whole,
            None,
            "FULL_SHARD",
            f"a node's shard of {need:.0f} GiB per GPU does not fit into {room:.0f} GiB",
        )
    inside = predict(replace(inputs, shard_size=per_node, replicas=nodes), hybrid)
    gain = inside.tokens_per_second / whole.tokens_per_second - 1
    if gain > BAND:
        return Choice(whole, inside, "HYBRID_SHARD", f"{gain:+.0%}: the gathers stay inside the node")
    return Choice(
        whole, inside, "FULL_SHARD", f"HYBRID_SHARD would give {gain:+.0%}, within the model's error"
    )


def summary(inputs: StepInputs, step: Step, hide: Hide, *, band: float = WIDE_BAND) -> tuple[str, ...]:
    """The prediction in lines: the step, where it goes, when communication hides, and all inputs."""
    share = {
        "compute": step.compute,
        "exposed communication": step.exposed,
        "optimizer": step.optimizer,
        "data": step.data,
    }
    parts = ", ".join(f"{k} {v:.3g} s ({v / step.seconds:.0%})" for k, v in share.items() if v > 0)
    low, high = step.seconds * (1 - band), step.seconds * (1 + band)
    met = "hidden" if inputs.tokens >= hide.both else "not hidden"
    return (
        f"step {step.seconds:.3g} s (±{band:.0%}: {low:.3g} to {high:.3g}), "
        f"{step.tokens_per_second:.0f} tokens/s per GPU, MFU {step.mfu:.0%} ({mfu_words(step.mfu)})",
        parts,
        f"communication hides from {hide.forward:.0f} tokens per GPU in forward and {hide.backward:.0f} in "
        f"backward; at {inputs.tokens:.0f} it is {met} ({step.hidden:.3g} s behind compute)",
        f"inputs: {len(inputs.units)} units, {inputs.parameters / 1e9:.3g}B parameters, "
        f"{inputs.tokens:.0f} tokens per GPU and microstep x {inputs.microsteps}, "
        f"{inputs.peak_flops / 1e12:.0f} TFLOP/s x {inputs.efficiency:.2f}, "
        f"shard over {inputs.shard_size} ranks x {inputs.replicas}, "
        f"{inputs.param_bytes:g} bytes per parameter, {inputs.reduce_bytes:g} per gradient, "
        f"recompute {inputs.recompute:g}, reshard after forward {'yes' if inputs.reshard else 'no'}",
    )


def mfu_words(mfu: float) -> str:
    """How a utilisation compares with published runs."""
    if mfu >= MFU_GOOD:
        return "good"
    if mfu >= MFU_NORMAL:
        return "normal on H100"
    return "look for exposed communication" if mfu >= MFU_LOW else "something is broken"
