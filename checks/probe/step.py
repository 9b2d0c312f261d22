"""What the measured collectives mean for one training step."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.probe._common import evidence
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Confidence, Finding, Fix, Row, Subject, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.step import Forecast, StepForecast
from fsdp_doctor.tables.compute_rates import EXPOSED_WARN

HYBRID = "HYBRID_SHARD"


@check("PRB030", Row.SLOW, needs=(StepForecast,), tags=("probe", "step", "bandwidth"), cost=Cost.MINUTES)
def exposed(facts: Facts, options: Options) -> Iterator[Finding]:
    """Communication is not hidden behind compute.

    What: Predicts the step of the job that --units and --tokens describe from the measured all-gather and
        reduce-scatter and the GPU's FLOP rate, and compares the part in which nothing is computed with 15
        per cent.
    Why: FSDP gathers each unit while the one before computes. With too few tokens per GPU, or too slow a
        fabric, the GPUs wait for parameters in every layer of every step.
    Fix: More tokens per GPU (a larger batch rather than accumulation), HYBRID_SHARD within nodes, bfloat16
        gradients, a faster path between the ranks.
    Sources: the model's error against published runs of torchtitan and fms-fsdp is 2 to 8 per cent within
        one size of model and up to 20 per cent across sizes; those runs compute most of the time, so that
        exposed time itself is known less well.
    """
    step = facts[StepForecast]
    found, told = _found(step), evidence((*step.lines, *step.assumptions))
    if step.full.exposed_share >= EXPOSED_WARN:
        yield warn(
            found,
            f"less than {EXPOSED_WARN:.0%} of the step exposed; communication hides from "
            f"{step.hide:.0f} tokens per GPU",
            subject=Subject(),
            fix=_fix(step),
            confidence=_confidence(step),
            evidence=told,
        )
    elif step.optimistic:
        yield skip(
            f"{found}; over {step.nodes} nodes it can only be more: the way between them was not measured",
            enable="probe a job that spans nodes, or give --between GB/s",
        )
    else:
        yield ok(found)


def _found(step: StepForecast) -> str:
    full = step.full
    words = (
        f"step {full.seconds:.3g} s (±{step.band:.0%}), {full.exposed_share:.0%} of it exposed communication "
        f"({full.exposed_low:.0%} to {full.exposed_high:.0%}), with {step.tokens:.0f} tokens per GPU on "
        f"{step.world_size} ranks and {step.rate.flops / 1e12:.3g} TFLOP/s"
    )
    if step.world_size != step.measured_ranks:
        words += f", carried over from {step.measured_ranks} measured ranks"
    return words + (", on CPU ranks" if step.on_cpu else "")


def _confidence(step: StepForecast) -> Confidence:
    """High only where every rate within the model's error and the fabric as it was measured say the same."""
    if step.on_cpu or step.full.exposed_low < EXPOSED_WARN:
        return Confidence.LOW
    return Confidence.HIGH if step.world_size == step.measured_ranks else Confidence.MEDIUM


def _fix(step: StepForecast) -> Fix:
    advice = []
    if step.strategy == HYBRID and step.hybrid is not None:
        advice.append(f"Shard within nodes (HYBRID_SHARD): {_gain(step.full, step.hybrid)}")
    if step.tokens < step.hide:
        advice.append(
            f"Give each GPU {step.hide:.0f} tokens per microstep instead of {step.tokens:.0f}, by a larger "
            "batch rather than by accumulation"
        )
    if step.reduce_dtype == "float32" and step.param_dtype != "float32":
        advice.append("Reduce gradients in bfloat16, if the model trains well so")
    advice.append("Compare the measured bandwidth with what the links allow (PRB013, PRB014)")
    return Fix("; ".join(advice))


def _gain(full: Forecast, hybrid: Forecast) -> str:
    return f"{hybrid.tokens_per_second:.0f} instead of {full.tokens_per_second:.0f} tokens/s per GPU forecast"
