"""Starts one replay or rehearsal: `python -B start.py JOB.json [MODULE]`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

NAME = "fsdp_doctor_memory_child"


def load(name: str) -> object:
    """A module of this folder, by its short name."""
    folder = os.path.dirname(os.path.abspath(__file__))
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        assert spec is not None and spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[NAME] = package
        spec.loader.exec_module(package)
        # A module of the training that is called like one of these must be found, not these.
        # Python resolves links in the script's folder, so that the same folder has two names.
        own = os.path.realpath(folder)
        sys.path[:] = [p for p in sys.path if os.path.realpath(p or ".") != own]
    return importlib.import_module(NAME + "." + name)


if __name__ == "__main__":
    load(sys.argv[2] if len(sys.argv) > 2 else "main").main(sys.argv[1])  # type: ignore[attr-defined]
