"""The user's code may end this process or copy it: what it does is named, and a copy does not go on."""

from __future__ import annotations

import os
import traceback
from typing import Any

leave = os._exit
"""Ends this process at once, whatever the user's code has been given in its place."""
_original = [os.getpid()]


def guard() -> None:
    """From here on `os._exit` is refused in this process, with the line that calls it; forks may leave."""
    _original[:] = [os.getpid()]

    def refuse(status: int = 0) -> Any:
        if os.getpid() not in _original:
            leave(status)
        from .loading import Refused, place_of

        raise Refused("ended", f"os._exit({status}) is called", place_of(traceback.extract_stack()))

    os._exit = refuse


def end_copy() -> None:
    """End a fork that comes back from the user's function as well: one process answers."""
    if os.getpid() not in _original:
        leave(0)
