"""The commit of a working folder, read from git's files without running git."""

from __future__ import annotations

import posixpath
import re

from fsdp_doctor.facts.source import Source, text

COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?\Z")
DEPTH = 32
"""Folders above the working folder that are looked at."""
PACKED_LIMIT = 1 << 20


def code_version(source: Source, folder: str | None) -> str | None:
    """The commit that HEAD of the checkout around `folder` names; None outside a checkout."""
    git = _git_folder(source, folder)
    head = text(source, f"{git}/HEAD", 4096) if git else None
    if git is None or head is None:
        return None
    if COMMIT.match(head):
        return head
    name = head.removeprefix("ref:").strip()
    if not name.startswith("refs/") or ".." in name:
        return None
    common = text(source, f"{git}/commondir", 4096)
    shared = posixpath.normpath(posixpath.join(git, common)) if common else git
    loose = text(source, f"{git}/{name}", 256) or text(source, f"{shared}/{name}", 256)
    if loose and COMMIT.match(loose):
        return loose
    packed = text(source, f"{shared}/packed-refs", PACKED_LIMIT) or ""
    lines = (line.split() for line in packed.splitlines())
    return next((w[0] for w in lines if len(w) == 2 and w[1] == name and COMMIT.match(w[0])), None)


def _git_folder(source: Source, folder: str | None) -> str | None:
    """`.git` of the nearest checkout; in a worktree it is a file that names the folder."""
    if not folder or not folder.startswith("/"):
        return None
    here = posixpath.normpath(folder)
    for _ in range(DEPTH):
        git = posixpath.join(here, ".git")
        if source.exists(f"{git}/HEAD"):
            return git
        pointer = text(source, git, 4096)
        if pointer and pointer.startswith("gitdir:"):
            named = pointer.removeprefix("gitdir:").strip()
            return posixpath.normpath(posixpath.join(here, named))
        if here == "/":
            return None
        here = posixpath.dirname(here)
    return None
