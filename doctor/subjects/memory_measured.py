"""What a GPU's allocator counted for a configuration, beside what was predicted. Bytes throughout."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredMoment:
    """One phase of one step."""

    step: int
    phase: str
    predicted_peak: int
    measured_peak: int
    predicted_after: int
    measured_after: int
    reserved: int
    """The most that was reserved during the phase, base included."""


@dataclass(frozen=True, slots=True)
class OperatorBytes:
    """What one operator's blocks hold at the peak."""

    operator: str
    predicted: int
    measured: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Modules of one place in the model whose blocks at the peak differ."""

    module: str
    """Numbers of layers as "*"; "" for what no module's forward made."""
    predicted: int
    measured: int
    operators: tuple[OperatorBytes, ...]
    """Those that differ, the largest difference first."""


@dataclass(frozen=True, slots=True)
class MeasuredOom:
    """The GPU was too small. None where the message does not say it."""

    phase: str
    stage: str
    text: str
    requested: int | None = None
    total: int | None = None
    free: int | None = None
    allocated: int | None = None
    unallocated: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The measuring process on its GPU; a process group that moves no byte has no NCCL buffers."""

    gpu: str
    sm: int
    total: int
    base: int
    """Blocks of the allocator that libraries keep (cuBLAS workspaces); not in any figure of a moment."""
    context: int
    """Outside the allocator when the CUDA context had been made; other processes' memory is in it."""
    outside: int
    """Outside the allocator at the end."""
    reserved: int
    """By the allocator at the end."""
    nvml_before: int | None
    nvml_after: int | None
    """In use on the GPU before the context was made and at the end; None where NVML did not answer."""

    @property
    def taken(self) -> int | None:
        """What the process took of the GPU besides what its allocator reserved, as NVML counts."""
        if self.nvml_before is None or self.nvml_after is None:
            return None
        return self.nvml_after - self.nvml_before - self.reserved


@dataclass(frozen=True, slots=True)
class MemoryMeasurement:
    """One measured job."""

    torch: str
    cuda: str | None
    cudnn: int | None
    device: DeviceUse
    moments: tuple[MeasuredMoment, ...]
    predicted: int
    """The peak of all steps."""
    measured: int
    """The same as measured, until memory ran out where it did."""
    reserved: int
    oom: MeasuredOom | None = None
    differences: tuple[Difference, ...] = ()
    untraced: str = ""
    """Why no step was traced; "" where one was."""

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one; None where memory ran out before the end."""
        return None if self.oom is not None or not self.measured else self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class GpuAtHand:
    """The first GPU that torch sees, before anything is measured."""

    gpu: str
    sm: int
    total: int
    free: int
    torch: str
    cuda: str | None
    cudnn: int | None
