"""What distances, grids and margins take, which torch puts together from several kernels inside one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .course import Course, nbytes


def euclidean(x: Any, y: Any, *_: Any, **__: Any) -> Course:
    """Rows with their squares and ones beside them, whose product is the result (Distance.cpp)."""
    course = Course()
    for t in (x, y):
        of_rows = nbytes(t) // max(1, int(t.shape[-1]))
        course.take(nbytes(t), of_rows).give(course.taken - 1).take(of_rows)  # powers, squares, ones
    squares, ones = (2, 5), (3, 6)
    both = [nbytes(t) // max(1, int(t.shape[-1])) * (int(t.shape[-1]) + 2) for t in (x, y)]
    course.take(nbytes(x), both[0]).give(ones[0], squares[0], 7)
    return course.take(both[1]).give(ones[1], squares[1]).results()


def cdist_backward(grad: Any, x: Any, y: Any, *_: Any, **__: Any) -> Course:
    """What each pair of rows adds to the gradient, before it is summed."""
    return Course().results().lend(nbytes(x) * int(y.shape[-2]))


def grid(theta: Any, size: Sequence[int], align_corners: bool = False, *_: Any) -> Course:
    """All places in homogeneous coordinates, from one range per dimension (AffineGridGenerator.cpp)."""
    n, _channels, *sides = (int(s) for s in size)
    item, places = int(theta.element_size()), n
    for side in sides:
        places *= side
    course = Course().take(places * (len(sides) + 1) * item)
    for side in reversed(sides):
        course.give(*course.hold(*[side * item] * (1 if align_corners else 3)))
    return course.results()


def margins(
    x: Any, target: Any, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = 1, *_: Any
) -> Sequence[int]:
    """The losses of the samples before they are reduced."""
    return (int(x.shape[0]) * int(x.element_size()),) if x.dim() == 2 and reduction else ()


RULES: dict[str, Callable[..., Sequence[int] | Course]] = {
    "_euclidean_dist": euclidean,
    "_cdist_backward": cdist_backward,
    "affine_grid_generator": grid,
    "multi_margin_loss": margins,
}
