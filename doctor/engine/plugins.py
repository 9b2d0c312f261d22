"""Where plug-ins come from: the entry-point group `fsdp_doctor.checks` of what is installed."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "fsdp_doctor.checks"


def plugin_points() -> tuple[EntryPoint, ...]:
    """All entry points of the group; nothing of theirs is imported.

    Most installations have none, and `importlib.metadata` takes longer to import than a report to be made.
    """
    if not _may_have_points():
        return ()
    from importlib import metadata

    return tuple(metadata.entry_points(group=GROUP))


def _may_have_points() -> bool:
    """Whether any distribution names the group; true also for places that only `importlib.metadata` knows."""
    finders = (f if isinstance(f, type) else type(f) for f in sys.meta_path)
    if any(hasattr(f, "find_distributions") and f.__name__ != "PathFinder" for f in finders):
        return True
    return any(_names_group(folder) for folder in dict.fromkeys(sys.path))


def _names_group(folder: str) -> bool:
    try:
        names = os.listdir(folder or ".")
    except NotADirectoryError:  # a zip
        return True
    except OSError:
        return False
    if folder.lower().endswith(".egg"):
        return True
    wanted = GROUP.encode()
    for name in names:
        if name.lower().endswith((".dist-info", ".egg-info")):
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                    if wanted in file.read():
                        return True
            except OSError:
                continue
    return False
