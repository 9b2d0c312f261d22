"""All checks: the built-in ones and those of the entry-point group `fsdp_doctor.checks`."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from fsdp_doctor.engine.plugins import GROUP, plugin_points
from fsdp_doctor.engine.spec import CheckSpec

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "BrokenPlugin", "Registry", "merge", "registry", "specs_below", "specs_of"]

BUILT_IN = "fsdp-doctor"
IMPORT_SECONDS = 10.0
"""Time for the import of one plug-in: one that hangs must not take the other checks along."""


@dataclass(frozen=True, slots=True)
class BrokenPlugin:
    """A plug-in that could not be used, and why; it becomes an `error` result."""

    package: str
    reason: str


@dataclass(frozen=True, slots=True)
class Registry:
    """Checks by code in code order, and the plug-ins that brought none of theirs."""

    checks: tuple[CheckSpec, ...]
    broken: tuple[BrokenPlugin, ...] = ()

    def get(self, code: str) -> CheckSpec | None:
        """The check of one code."""
        return next((c for c in self.checks if c.code == code), None)

    @property
    def plugins(self) -> tuple[str, ...]:
        """Distributions other than this one that brought checks."""
        return tuple(sorted({c.package for c in self.checks} - {BUILT_IN}))


def specs_of(module: ModuleType) -> tuple[CheckSpec, ...]:
    """The checks that a module declares at top level."""
    return tuple(v for v in vars(module).values() if isinstance(v, CheckSpec))


def specs_below(package: ModuleType) -> tuple[CheckSpec, ...]:
    """The checks of a package and every module below it."""
    found = list(specs_of(package))
    for info in pkgutil.walk_packages(getattr(package, "__path__", ()), package.__name__ + "."):
        found += specs_of(importlib.import_module(info.name))
    return tuple({s.code: s for s in found}.values())


def merge(built_in: Iterable[CheckSpec], plugins: Iterable[tuple[str, Iterable[CheckSpec]]]) -> Registry:
    """Add plug-ins to the built-in checks. A plug-in may add a code and never replace one."""
    owner = {s.code: s for s in built_in}
    broken: list[BrokenPlugin] = []
    for package, specs in plugins:
        for spec in specs:
            first = owner.get(spec.code)
            if first is not None:
                broken.append(
                    BrokenPlugin(package, f"{spec.code} is brought by both {first.package} and {package}")
                )
            else:
                owner[spec.code] = replace(spec, package=package)
    return Registry(tuple(sorted(owner.values(), key=lambda s: s.code)), tuple(broken))


def _imported(point: EntryPoint) -> object:
    """What an entry point names. Raises what its import raises; `TimeoutError` where that does not end."""
    found: list[object] = []
    errors: list[BaseException] = []

    def load() -> None:
        try:
            found.append(point.load())
        except BaseException as error:  # handed to the thread that waits
            errors.append(error)

    thread = threading.Thread(target=load, name="plug-in", daemon=True)
    with contextlib.redirect_stdout(sys.stderr):  # the report alone goes to standard output
        thread.start()
        thread.join(IMPORT_SECONDS)
    if errors:
        raise errors[0]
    if not found:
        raise TimeoutError(f"its import has not ended after {IMPORT_SECONDS:.0f} s")
    return found[0]


def _load(point: EntryPoint) -> tuple[str, Iterable[CheckSpec]]:
    package = point.dist.name if point.dist else point.value
    loaded = _imported(point)
    if isinstance(loaded, CheckSpec):
        return package, (loaded,)
    if isinstance(loaded, ModuleType):
        return package, specs_below(loaded)
    raise TypeError(f"{point.value} is neither a module nor a check")


@cache
def registry() -> Registry:
    """Every check that this installation has. Plug-ins are imported here, once."""
    built_in = specs_below(importlib.import_module("fsdp_doctor.checks"))
    plugins: list[tuple[str, Iterable[CheckSpec]]] = []
    broken: list[BrokenPlugin] = []
    for point in sorted(plugin_points(), key=lambda p: (p.value, p.name)):
        try:
            plugins.append(_load(point))
        except (Exception, SystemExit) as error:  # an import may raise anything, and must not end the tool
            package = point.dist.name if point.dist else point.value
            broken.append(BrokenPlugin(package, f"{type(error).__name__}: {error}"))
    merged = merge(built_in, plugins)
    return Registry(merged.checks, (*broken, *merged.broken))
