"""What the measured fabric means for a job: its step's forecast from units, tokens and a FLOP rate."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

from fsdp_doctor.probe.stats import finite
from fsdp_doctor.probe.step_choice import choose
from fsdp_doctor.probe.step_fabric import JobFabric, job_fabric
from fsdp_doctor.probe.step_model import (
    BAND,
    WIDE_BAND,
    Hide,
    Step,
    StepInputs,
    Timed,
    Transfers,
    hide_tokens,
    predict,
)
from fsdp_doctor.probe.step_words import summary
from fsdp_doctor.subjects.fabric import Fabric
from fsdp_doctor.subjects.fact import Unknown
from fsdp_doctor.subjects.probe import ProbeResult
from fsdp_doctor.subjects.step import Forecast, Rate, StepForecast
from fsdp_doctor.tables.compute_rates import PRODUCT_SHARE, STATE_BYTES, STATE_SHARE, compute_rate

FULL, HYBRID = "FULL_SHARD", "HYBRID_SHARD"
DTYPE_BYTES = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0}


@dataclass(frozen=True, slots=True)
class Job:
    """What is known of the job beyond the machine."""

    units: tuple[float, ...]
    """Parameters of each FSDP unit, in the order of use."""
    tokens: float
    """Per GPU and microstep."""
    world_size: int | None = None
    """None: the ranks that were measured."""
    param_dtype: str = "bfloat16"
    reduce_dtype: str = "bfloat16"
    recompute: float = 0.0
    reshard: bool = True
    accumulate: int = 1
    attention: tuple[int, int] | None = None
    """Hidden size and sequence length, for the FLOPs of attention."""
    gpu: str | None = None
    """The product that the job runs on, where it is not the measured one."""
    tflops: float | None = None
    """TFLOP/s per GPU that the model's compute reaches alone, where that is known."""
    between: float | None = None
    """GB/s (busbw) of a ring between nodes, where that is known and was not measured."""


def forecast(job: Job, result: ProbeResult, fabric: Fabric, memory: int | None) -> StepForecast | Unknown:
    """The job's step over the measured fabric, or why nothing can be said. `memory`: bytes of one GPU."""
    rate = _rate(job, result)
    if isinstance(rate, Unknown):
        return rate
    world = job.world_size or result.world_size
    found = job_fabric(result, fabric.figures, world, job.between)
    if isinstance(found, str):
        return Unknown(
            f"no forecast of a step: {found}", "probe with two or more ranks, and their collectives"
        )
    inputs = _inputs(job, rate, world)
    band = BAND if job.tflops is not None else WIDE_BAND
    step, hide = predict(inputs, found.full), _hide(inputs, found.full)
    hybrid, strategy, reason = _choice(inputs, found, memory)
    whole = _forecast(FULL, inputs, found.full, rate, band)
    return StepForecast(
        world_size=world,
        measured_ranks=result.world_size,
        nodes=found.nodes,
        tokens=job.tokens,
        parameters=inputs.parameters,
        units=len(job.units),
        param_dtype=job.param_dtype,
        reduce_dtype=job.reduce_dtype,
        rate=rate,
        fabric=found.words,
        full=whole,
        hybrid=None
        if hybrid is None or found.hybrid is None
        else _forecast(HYBRID, hybrid, found.hybrid, rate, band),
        strategy=strategy,
        reason=reason,
        hide_forward=hide.forward,
        hide_backward=hide.backward,
        band=band,
        assumptions=found.assumptions,
        optimistic=found.optimistic,
        on_cpu=result.device != "cuda",
        lines=_lines(inputs, step, hide, band, rate),
    )


def _rate(job: Job, result: ProbeResult) -> Rate | Unknown:
    """Given, else of the product that was named, else measured, else of the product that was measured."""
    names = [r.gpu_name for r in result.ranks if r.gpu_name]
    product = compute_rate(job.gpu or (names[0] if names else None))
    peak = product.tflops * 1e12 if product else None
    if job.tflops is not None:
        flops = job.tflops * 1e12
        return Rate(flops, "given by --tflops", peak if peak is not None and flops <= peak else None)
    enable = "give --tflops: what the model's compute reaches on one GPU"
    on_gpu = job.gpu is not None or result.device == "cuda"
    if on_gpu and job.param_dtype == "float32":
        return Unknown("no forecast of a step: GPUs' rates in float32 depend on TF32", enable)
    products = None if job.gpu is not None else _measured_products(result)
    if products is not None:
        where = "bfloat16" if result.device == "cuda" else "float32, on CPU ranks"
        share = min(PRODUCT_SHARE * products, peak or math.inf)
        said = f"{PRODUCT_SHARE:.2f} of the {products / 1e12:.3g} TFLOP/s of the probe's matrix products"
        return Rate(share, f"{said} ({where})", peak)
    if product is None:
        named = job.gpu or (names[0] if names else None)
        why = f"there is no FLOP rate of {named!r}" if named else "no FLOP rate was measured"
        return Unknown(f"no forecast of a step: {why}", enable)
    basis = "in published runs" if product.fitted else "assumed"
    said = f"{product.efficiency:.2f} ({basis}) of the {product.tflops:.4g} TFLOP/s of its data sheet"
    return Rate(product.efficiency * product.tflops * 1e12, said, peak)


def _measured_products(result: ProbeResult) -> float | None:
    """FLOP/s of the ranks' fixed work, the median rank's."""
    rates = [
        w.flops / statistics.median(walls)
        for r in result.ranks
        for w in r.work
        if w.run == 0 and w.flops and (walls := finite(w.wall_seconds)) and min(walls) > 0
    ]
    return statistics.median(rates) if rates else None


def _inputs(job: Job, rate: Rate, world: int) -> StepInputs:
    hidden, sequence = job.attention or (0, 0)
    return StepInputs(
        units=job.units,
        tokens=job.tokens,
        peak_flops=rate.peak or rate.flops,
        efficiency=rate.flops / (rate.peak or rate.flops),
        shard_size=world,
        param_bytes=DTYPE_BYTES[job.param_dtype],
        reduce_bytes=DTYPE_BYTES[job.reduce_dtype],
        recompute=job.recompute,
        reshard=job.reshard,
        attention_flops=4.0 * hidden * sequence,
        microsteps=job.accumulate,
    )


def _hide(inputs: StepInputs, transfers: Transfers) -> Hide:
    """From the time that all units' collectives take together, with their latencies."""
    if inputs.shard_size < 2:
        return Hide(0.0, 0.0)

    def rate(timed: Timed, width: float) -> float:
        return width * inputs.parameters / sum(timed.seconds(width * p) for p in inputs.units) / 1e9

    found = hide_tokens(
        inputs,
        rate(transfers.all_gather, inputs.param_bytes),
        rate(transfers.reduce_scatter, inputs.reduce_bytes),
    )
    # What attention computes beside the parameters' products hides bytes as well.
    extra = 1 + inputs.attention_flops * len(inputs.units) / (2 * inputs.parameters)
    return Hide(found.forward / extra, found.backward / extra)


def _choice(inputs: StepInputs, found: JobFabric, memory: int | None) -> tuple[StepInputs | None, str, str]:
    """The hybrid's inputs where it can be compared, the faster strategy, and why."""
    if found.nodes < 2:
        return None, FULL, "the job has one node"
    if found.hybrid is None:
        why = "is not known" if found.optimistic else "and inside a node was not measured apart"
        return None, FULL, f"{HYBRID} was not compared: what the way between nodes gives {why}"
    room = math.inf if memory is None else STATE_SHARE * memory
    choice = choose(inputs, found.full, found.hybrid, found.nodes, STATE_BYTES * inputs.parameters, room)
    if choice.hybrid is None:
        return None, FULL, choice.reason
    per_node = inputs.shard_size // found.nodes
    fits = "" if memory is not None else f", if {STATE_BYTES:.0f} bytes per parameter fit into a node's GPUs"
    shaped = replace(inputs, shard_size=per_node, replicas=found.nodes)
    return shaped, choice.strategy, choice.reason + fits


def _forecast(strategy: str, inputs: StepInputs, transfers: Transfers, rate: Rate, band: float) -> Forecast:
    step = predict(inputs, transfers)
    slow, fast = (
        predict(replace(inputs, efficiency=inputs.efficiency * part), transfers).exposed_share
        for part in (1 - band, 1 + band)
    )
    return Forecast(
        strategy=strategy,
        seconds=step.seconds,
        low=step.seconds * (1 - band),
        high=step.seconds * (1 + band),
        compute=step.compute,
        exposed=max(step.exposed, 0.0),
        hidden=step.hidden,
        exposed_share=max(step.exposed_share, 0.0),
        exposed_low=max(slow, 0.0),
        exposed_high=max(fast, 0.0),
        tokens_per_second=step.tokens_per_second,
        mfu=None if rate.peak is None else step.mfu,
    )


def _lines(inputs: StepInputs, step: Step, hide: Hide, band: float, rate: Rate) -> tuple[str, ...]:
    return summary(inputs, step, hide, band=band, rate=rate.basis, peak_known=rate.peak is not None)
