"""A predicted step in words: where it goes, when communication hides, and every input."""

from __future__ import annotations

from fsdp_doctor.probe.step_model import WIDE_BAND, Hide, Step, StepInputs

MFU_GOOD, MFU_NORMAL, MFU_LOW = 0.45, 0.35, 0.15


def summary(
    inputs: StepInputs,
    step: Step,
    hide: Hide,
    *,
    band: float = WIDE_BAND,
    rate: str = "",
    peak_known: bool = True,
) -> tuple[str, ...]:
    """The prediction in lines: the step, where it goes, when communication hides, and all inputs.

    `rate` says where the FLOP rate comes from. Without a known peak there is no utilisation to name.
    """
    share = {
        "compute": step.compute,
        "exposed communication": step.exposed,
        "optimizer": step.optimizer,
        "data": step.data,
    }
    parts = ", ".join(f"{k} {v:.3g} s ({v / step.seconds:.0%})" for k, v in share.items() if v > 0)
    low, high = step.seconds * (1 - band), step.seconds * (1 + band)
    met = "hidden" if inputs.tokens >= hide.both else "not hidden"
    flops = f"{inputs.peak_flops / 1e12:.4g} TFLOP/s x {inputs.efficiency:.2f}" if peak_known else ""
    reached = f"{inputs.peak_flops * inputs.efficiency / 1e12:.3g} TFLOP/s"
    return (
        f"step {step.seconds:.3g} s (±{band:.0%}: {low:.3g} to {high:.3g}), "
        f"{step.tokens_per_second:.0f} tokens/s per GPU"
        + (f", MFU {step.mfu:.0%} ({mfu_words(step.mfu)})" if peak_known else ""),
        parts,
        f"communication hides from {hide.forward:.0f} tokens per GPU in forward and {hide.backward:.0f} in "
        f"backward; at {inputs.tokens:.0f} it is {met} ({step.hidden:.3g} s behind compute)",
        f"inputs: {len(inputs.units)} units, {parameters_words(inputs.parameters)} parameters, "
        f"{inputs.tokens:.0f} tokens per GPU and microstep x {inputs.microsteps}, "
        f"{flops or reached}{f' ({rate})' if rate else ''}, "
        f"shard over {inputs.shard_size} ranks x {inputs.replicas}, "
        f"{inputs.param_bytes:g} bytes per parameter, {inputs.reduce_bytes:g} per gradient, "
        f"recompute {inputs.recompute:g}, reshard after forward {'yes' if inputs.reshard else 'no'}",
    )


def parameters_words(count: float) -> str:
    """Such as 8.03B or 262M."""
    for scale, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= scale:
            return f"{count / scale:.3g}{letter}"
    return f"{count:.0f}"


def mfu_words(mfu: float) -> str:
    """How a utilisation compares with published runs."""
    if mfu >= MFU_GOOD:
        return "good"
    if mfu >= MFU_NORMAL:
        return "normal on H100"
    return "look for exposed communication" if mfu >= MFU_LOW else "something is broken"
