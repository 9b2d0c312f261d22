"""What is known of how CUDA runs an operator: one entry of the table."""

from __future__ import annotations

from dataclasses import dataclass

MEASURED, ASSUMED = "measured", "assumed"
NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Substitution:
    """Which kernel CUDA chooses for operators, and what it allocates that their shapes do not say."""

    operators: tuple[str, ...]
    """As torch's dispatcher names them; without `::` where it is a part of torch and no operator."""
    kernel: str
    """Which one CUDA chooses."""
    mark: str
    """`MEASURED`: met by what a GPU allocated; `ASSUMED`: read from sources, or met by some calls only."""
    evidence: str
    saves: str = NOTHING
    """What is kept for backward, besides inputs and results."""
    workspace: str = NOTHING
    """What is taken for the time of a call, or kept by a library's handle."""
    by_call: bool = False
    """The kernel and its workspace follow from shapes in a way that another call may show to be otherwise, so
    that `--calibrate` measures the calls of a job also where the rule was measured."""
    single: bool = True
    """Whether one call can be measured by itself; the rest shows in whole steps alone."""
    torch: str = "2.11"
    cudnn: str = ""
    """Of the measurement, where cuDNN takes part."""
    sm: tuple[int, ...] = (90,)
    """Architectures that the mark holds for. For others the entry is taken alike, as an assumption."""

    def stands(self, sm: int, cudnn: int | None = None) -> str:
        """The mark on an architecture, and with a cuDNN as its version number where it is known."""
        other = bool(self.cudnn) and cudnn is not None and release(cudnn) != self.cudnn
        return ASSUMED if other or sm not in self.sm else self.mark

    @property
    def seen(self) -> str:
        """Where it was measured, or "" where it never was."""
        if self.mark != MEASURED:
            return ""
        cudnn = f", cuDNN {self.cudnn}" if self.cudnn else ""
        return f"sm {', '.join(map(str, self.sm))}, torch {self.torch}{cudnn}"


def release(cudnn: int) -> str:
    """Major and minor of cuDNN's version number: 91900 is 9.19, 8902 is 8.9."""
    major = 10_000 if cudnn >= 90_000 else 1_000
    return f"{cudnn // major}.{cudnn % major // 100}"
