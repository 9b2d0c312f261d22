"""What `--version` prints: this tool, its plug-ins and the dates of its data tables."""

from __future__ import annotations

import pkgutil
import platform
from importlib import import_module

import fsdp_doctor.tables
from fsdp_doctor import __version__
from fsdp_doctor.engine.plugins import plugin_points
from fsdp_doctor.report.escape import one_line


def plugins() -> tuple[tuple[str, str], ...]:
    """(distribution, version) of every plug-in; none of them is imported."""
    return tuple(sorted({(p.dist.name, p.dist.version) for p in plugin_points() if p.dist is not None}))


def tool() -> dict[str, str]:
    """The `tool` of a report."""
    told = {"name": "fsdp-doctor", "version": __version__, "python": platform.python_version()}
    brought = plugins()
    if brought:
        told["plugins"] = ", ".join(f"{name} {version}" for name, version in brought)
    return told


def table_dates() -> dict[str, str]:
    """Data table -> the date on which it was last compared with its sources."""
    dates = {}
    for module in pkgutil.iter_modules(fsdp_doctor.tables.__path__):
        checked = getattr(import_module(f"fsdp_doctor.tables.{module.name}"), "CHECKED_ON", None)
        if isinstance(checked, str):
            dates[module.name] = checked
    return dates


def version_text() -> str:
    """All of it as lines."""
    system = f"{platform.system()} {platform.machine()}"
    said = [f"fsdp-doctor {__version__} (Python {platform.python_version()}, {system})"]
    brought = plugins()
    said += [f"plug-in {one_line(name)} {one_line(version)}" for name, version in brought] or [
        "plug-ins: none"
    ]
    said += [f"table {name} checked on {day}" for name, day in table_dates().items()]
    return "\n".join(said) + "\n"
