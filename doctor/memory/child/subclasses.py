"""Tensor subclasses of the user's in an error: what they are made of cannot be followed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any

NAMED = (
    re.compile(r"tensor subclass <class '(?!torch\.)(?:[\w.<>]+\.)?(\w+)'>"),
    re.compile(r"Creating a Parameter from an instance of type (\w+)"),
)
"""How torch names them where none of their own code fails."""
PLAIN = ("Tensor", "Parameter", "FakeTensor", "DTensor")


def failed(error: BaseException, said: str) -> str:
    """The subclass whose own operators an error comes from; "" for any other. `said` is the error's text."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return ""
    for first in _firsts(error.__traceback__):
        kind = first if isinstance(first, type) else type(first)
        if issubclass(kind, torch.Tensor) and _own(kind, torch):
            return kind.__name__
    for pattern in NAMED:
        found = next((n for n in pattern.findall(said) if n not in PLAIN), "")
        if found:
            return str(found)
    return ""


def _firsts(traceback: TracebackType | None) -> Iterator[object]:
    """The first argument of each function in a traceback: `self` or `cls` of a method."""
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_argcount:
            yield frame.f_locals.get(frame.f_code.co_varnames[0])
        traceback = traceback.tb_next


def _own(kind: Any, torch: Any) -> bool:
    """Whether a class decides about its operators by itself, and is not torch's."""
    if kind.__module__.partition(".")[0] == "torch":
        return False
    usual = (torch.Tensor.__torch_dispatch__, torch.nn.Parameter.__torch_dispatch__)
    return kind.__torch_dispatch__ not in usual
