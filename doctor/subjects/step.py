"""What a probe's figures mean for one training step: the job that was described, and its forecast."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """FLOP/s of one GPU while nothing is communicated."""

    flops: float
    """What the model's compute reaches."""
    basis: str
    """Where that comes from, in words."""
    peak: float | None = None
    """The product's peak in FLOP/s; None where the product is not known."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """One optimizer step under one sharding. Seconds on one GPU."""

    strategy: str
    """FULL_SHARD or HYBRID_SHARD."""
    seconds: float
    low: float
    high: float
    """`seconds` within the model's error."""
    compute: float
    exposed: float
    """Communication during which nothing is computed."""
    hidden: float
    exposed_share: float
    exposed_low: float
    exposed_high: float
    """The share with compute slower and faster by the model's error."""
    tokens_per_second: float
    """Per GPU."""
    mfu: float | None
    """None where the GPU's peak is not known."""


@dataclass(frozen=True, slots=True)
class StepForecast:
    """A job's step over the measured fabric."""

    world_size: int
    measured_ranks: int
    nodes: int
    tokens: float
    """Per GPU and microstep."""
    parameters: float
    units: int
    param_dtype: str
    reduce_dtype: str
    rate: Rate
    fabric: str
    """The collectives that were used, in words."""
    full: Forecast
    hybrid: Forecast | None
    """None where there is one node, nothing is known of the way between nodes, or it does not fit."""
    strategy: str
    """The faster of the two."""
    reason: str
    """Why, in words."""
    hide_forward: float
    hide_backward: float
    """Tokens per GPU and microstep from which communication hides behind compute."""
    band: float
    """Relative error of the model."""
    assumptions: tuple[str, ...] = ()
    """Where the job goes beyond what was measured, in words."""
    optimistic: bool = False
    """The way between nodes was neither measured nor given: communication can only take longer than said."""
    on_cpu: bool = False
    """Measured over gloo on CPU ranks, which says nothing of a fabric between GPUs."""
    lines: tuple[str, ...] = ()
    """The forecast for people: step, where it goes, when communication hides, all inputs."""

    @property
    def hide(self) -> float:
        """The larger of the two."""
        return max(self.hide_forward, self.hide_backward)
