"""The step model read backwards: which efficiency or which fabric a measured run must have had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fsdp_doctor.probe.step_model import StepInputs, Transfers, predict


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
