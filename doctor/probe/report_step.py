"""A step's forecast as JSON values: what was asked, what comes out, and how far to trust it."""

from __future__ import annotations

from fsdp_doctor.codec import whole_json
from fsdp_doctor.probe.forecast import Job
from fsdp_doctor.subjects.step import Forecast, StepForecast


def step_data(step: StepForecast, job: Job) -> dict[str, object]:
    """Seconds, tokens, TFLOP/s (10^12), GB/s (10^9); shares of the step."""
    return {
        "communication": "hidden" if step.tokens >= step.hide else "exposed",
        "strategy": step.strategy,
        "reason": step.reason,
        "full_shard": _forecast(step.full),
        "hybrid_shard": None if step.hybrid is None else _forecast(step.hybrid),
        "hides_from_tokens": {
            "forward": round(step.hide_forward, 1),
            "backward": round(step.hide_backward, 1),
            "both": round(step.hide, 1),
        },
        "error_band": step.band,
        "assumptions": list(step.assumptions),
        "optimistic": step.optimistic,
        "rate": {
            "tflops": step.rate.flops / 1e12,
            "basis": step.rate.basis,
            "peak_tflops": None if step.rate.peak is None else step.rate.peak / 1e12,
        },
        "fabric": step.fabric,
        "inputs": {
            "units": step.units,
            "parameters": step.parameters,
            "world_size": step.world_size,
            "measured_ranks": step.measured_ranks,
            "nodes": step.nodes,
            "tokens": job.tokens,
            "accumulate": job.accumulate,
            "param_dtype": job.param_dtype,
            "reduce_dtype": job.reduce_dtype,
            "recompute": job.recompute,
            "reshard_after_forward": job.reshard,
            "attention": None if job.attention is None else list(job.attention),
            "gpu": job.gpu,
            "tflops": job.tflops,
            "between_gbps": job.between,
        },
        "text": list(step.lines),
    }


def _forecast(forecast: Forecast) -> object:
    return whole_json(forecast)
