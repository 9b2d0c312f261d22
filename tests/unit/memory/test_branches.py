"""Conditions that guard an exception are answered so that nothing is raised."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from fsdp_doctor.memory.child.branches import unraised

ASKED = """
class Asked:
    def __init__(self):
        self.answer = None
    def __bool__(self):
        self.answer = unraised()
        return bool(self.answer)
"""
"""A condition without a value, which asks as from a frame of torch's own."""
found = {"unraised": unraised}
exec(compile(ASKED, "/torch/_tensor.py", "exec"), found)
Asked: Any = found["Asked"]


def test_a_raise_is_not_reached() -> None:
    negative, good, other, either = Asked(), Asked(), Asked(), Asked()
    if negative:
        raise ValueError
    if not good:
        raise ValueError
    if isinstance(good, int):
        pass
    elif other:
        raise ValueError
    if either:
        pass
    assert (negative.answer, good.answer, other.answer, either.answer) == (False, True, False, None)


def test_an_assertion_holds() -> None:
    first, second, third = Asked(), Asked(), Asked()
    assert first
    assert not second
    if third:
        pass
    else:
        raise ValueError
    assert (first.answer, second.answer, third.answer) == (True, False, True)


def test_parts_that_disagree_are_left_open() -> None:
    one, two = Asked(), Asked()
    if one and not two:
        raise ValueError
    assert one.answer is None
