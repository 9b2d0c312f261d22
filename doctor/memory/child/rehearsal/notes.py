"""What a rehearsal took for granted, and what the script asked for that was not done."""

from __future__ import annotations

import os
import sys
from typing import Any

MOST = 200
"""Entries of one kind; a script that writes a file per sample must not fill the answer."""
OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Refusal(BaseException):
    """The script uses what cannot be rehearsed. No `except Exception` in it takes this for its own."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text
        self.place = script_place()


class Notes:
    """Notes by kind, place and text, each with how often it came."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], int] = {}
        self._paths: dict[tuple[str, str], dict[str, Any]] = {}
        self._saved: set[str] = set()

    def add(self, kind: str, what: str, place: str | None = None) -> None:
        """`kind`: assumed (a value or a rule), handled (a call that did something else than in a job)."""
        key = (kind, script_place() if place is None else place, what)
        if key in self._found or len(self._found) < MOST:
            self._found[key] = self._found.get(key, 0) + 1

    def unwritten(self, path: str, how: str, size: int | None = None) -> None:
        """A path that the script would have changed; `size` in bytes where it is known."""
        if size is not None:
            self._saved.add(path)
        elif how == "file" and path in self._saved:
            return
        entry = self._paths.get((path, how))
        if entry is None:
            if len(self._paths) >= MOST:
                return
            entry = {"path": path, "how": how, "bytes": None, "place": script_place(), "times": 0}
            self._paths[path, how] = entry
        entry["times"] += 1
        if size is not None:
            entry["bytes"] = max(size, entry["bytes"] or 0)

    def listed(self, kind: str) -> list[dict[str, object]]:
        """The notes of one kind, in the order in which they first came."""
        return [
            {"place": place, "what": what, "times": n}
            for (k, place, what), n in self._found.items()
            if k == kind
        ]

    def paths(self) -> list[dict[str, Any]]:
        """What was not written."""
        return list(self._paths.values())


def library(file: str) -> bool:
    """Whether a file belongs to torch, to a training library, to the standard library or to this package."""
    if file.startswith((OWN, "<")):
        return True
    return "site-packages" in file or "dist-packages" in file or file.startswith(STDLIB)


STDLIB = os.path.dirname(os.__file__) + os.sep


def script_place() -> str:
    """File and line of the innermost frame that is the user's own; empty where there is none."""
    frame: Any = sys._getframe(1)
    while frame:
        if not library(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def by_torch(depth: int = 2) -> bool:
    """Whether the caller's caller is torch's own Python (or this package)."""
    file: str = sys._getframe(depth).f_code.co_filename
    return file.startswith((TORCH, OWN))


def _torch_folder() -> str:
    import torch

    return os.path.dirname(os.path.abspath(str(torch.__file__))) + os.sep


TORCH = _torch_folder()
