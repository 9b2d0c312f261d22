"""Conditions that only guard: where one answer leads to an exception, a job that trains gives the other."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import sys
from typing import Any

OWN = __file__.rsplit("/", 1)[0]
PARTS = (
    "_compile",
    "_dynamo",
    "_ops",
    "_prims_common",
    "_refs",
    "_subclasses",
    "_tensor",
    "overrides",
    "utils",
)
BETWEEN = tuple(f"/torch/{part}{end}" for part in PARTS for end in ("/", ".py"))
"""Frames of torch that lie between a condition and its operator."""


def unraised() -> bool | None:
    """The answer with which nothing is raised, to the condition being asked; None where either will do."""
    frame: Any = sys._getframe(1)
    while frame:
        name = frame.f_code.co_filename
        if not name.startswith(OWN) and not any(part in name for part in BETWEEN):
            break
        frame = frame.f_back
    if frame is None:
        return None
    line, column = _place(frame)
    guards = _guards(name)
    asked = [g for g in guards if _within((line, column), g[0])] or [
        g for g in guards if _within((line, None), g[0])
    ]
    answers = {None if _straight(test) is None else wanted is _straight(test) for test, wanted in asked}
    return answers.pop() if len(answers) == 1 else None


def inside(file: str) -> bool:
    """Whether a function of the file is among the nearest callers."""
    frame: Any = sys._getframe(2)
    for _ in range(14):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith(file):
            return True
        frame = frame.f_back
    return False


def _place(frame: Any) -> tuple[int, int | None]:
    """Line of what a frame is at, and from Python 3.11 on its column."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is not None:
        line, _, column, _ = next(itertools.islice(positions(), frame.f_lasti // 2, None))
        if line is not None and column is not None:
            return line, column
    return frame.f_lineno, None


def _within(place: tuple[int, int | None], node: ast.expr) -> bool:
    line, column = place
    last = node.end_lineno or node.lineno
    if column is None:
        return node.lineno <= line <= last
    return (node.lineno, node.col_offset) <= (line, column) < (last, node.end_col_offset or 0)


@functools.lru_cache(maxsize=256)
def _guards(name: str) -> tuple[tuple[ast.expr, bool], ...]:
    """Tests of a file with the outcome behind which nothing is raised."""
    try:
        tree = ast.parse("".join(linecache.getlines(name)))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found: list[tuple[ast.expr, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            found.append((node.test, True))
        elif isinstance(node, ast.If):
            if isinstance(node.body[-1], ast.Raise):
                found.append((node.test, False))
            elif node.orelse and isinstance(node.orelse[-1], ast.Raise):
                found.append((node.test, True))
    return tuple(found)


def _straight(test: ast.expr) -> bool | None:
    """Whether a true part makes the test true; None where its parts disagree."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _straight(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = {_straight(v) for v in test.values}
        return parts.pop() if len(parts) == 1 else None
    return True
