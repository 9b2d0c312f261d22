"""What Fourier transforms, linear algebra and scattering by a mask take for the time of one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .course import Course, copied, nbytes

SMALL = 32
"""Rows of a matrix up to which cuBLAS solves a batch at once."""


def real_from_complex(x: Any, *_: Any, **__: Any) -> Sequence[int]:
    """A copy of the input, which cuFFT overwrites."""
    return (nbytes(x),)


def transform(x: Any, dims: Any, *_: Any, **__: Any) -> Sequence[int]:
    """A copy with the transformed dimensions last, where they are not."""
    last = {d % x.dim() for d in dims} if x.dim() else set()
    return () if not last or x.dim() - 1 in last else (nbytes(x),)


def inverse(a: Any, *_: Any, **__: Any) -> Sequence[int]:
    """The factors, and the unit matrix where matrices are large."""
    return (nbytes(a),) if a.shape[-1] <= SMALL else (nbytes(a), nbytes(a))


def solved(a: Any, *_: Any, **__: Any) -> Sequence[int]:
    """A copy, which the solver overwrites, where matrices are large."""
    return () if a.shape[-1] <= SMALL else (nbytes(a),)


def singular(a: Any, *_: Any, **__: Any) -> Sequence[int]:
    """A copy, and for one matrix cuSOLVER's workspace of two more."""
    one = a.dim() < 3 or int(a.shape[:-2].numel()) == 1
    return (nbytes(a), 2 * nbytes(a)) if one else (nbytes(a),)


def scattered(x: Any, mask: Any, *_: Any, **__: Any) -> Sequence[int]:
    """Where in the source each element comes from, as an int64 for each; the mask itself if it was spread."""
    spread = mask.shape != x.shape or not mask.is_contiguous()
    return (8 * int(x.numel()), int(x.numel()) if spread else 0)


def rolled(x: Any, _shifts: Any, dims: Any = (), *_: Any) -> Course:
    """One dimension after the other, each into a tensor of its own; the first from a contiguous copy."""
    course, size = Course(), nbytes(x)
    copy = course.hold(copied(x))
    turns = max(1, len(dims))
    for _turn in range(turns - 1):
        course.take(size).give(*copy)
        copy = [course.taken]
    return course.results().give(*copy)


RULES: dict[str, Callable[..., Sequence[int] | Course]] = {
    "roll": rolled,
    "_fft_c2r": real_from_complex,
    "_fft_r2c": transform,
    "_fft_c2c": transform,
    "linalg_inv_ex": inverse,
    "_linalg_solve_ex": solved,
    "_linalg_svd": singular,
    "masked_scatter": scattered,
    "masked_scatter_": scattered,
}
