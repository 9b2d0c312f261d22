"""Resolve a path through symbolic links the way the kernel does, over any table of links."""

from __future__ import annotations

from collections.abc import Callable

MAX_LINKS = 40
"""Links followed on the way to one path, as the kernel does."""
MAX_NAME = 4096


def follow(path: str, link: Callable[[str], str | None]) -> str | None:
    """The path without links and without a leading slash; None where the links never end.

    `link` gives the text of the link at such a path, or None where there is none.
    """
    todo = path.split("/")[::-1]
    done: list[str] = []
    followed = 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del done[-1:]
            continue
        done.append(part)
        here = "/".join(done)
        target = link(here)
        if target is not None:
            followed += 1
            del done[0 if target.startswith("/") else -1 :]
            todo.extend(target.split("/")[::-1])
        if followed > MAX_LINKS or len(here) > MAX_NAME:
            return None
    return "/".join(done)
