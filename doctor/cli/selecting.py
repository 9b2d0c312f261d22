"""Which checks run, from the command line and the configuration."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, timezone

import click

from fsdp_doctor.cli.common import Settings
from fsdp_doctor.engine.options import Profile
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.runner import PLUGIN_CODE
from fsdp_doctor.engine.select import Selection, UnknownCode, selection
from fsdp_doctor.engine.spec import CheckSpec, Cost
from fsdp_doctor.engine.suppress import Suppression


def chosen(settings: Settings) -> Selection:
    """The selection that was asked for. Raises `click.UsageError` for a code that no check has."""
    ignore = tuple(p for v in settings.ignore for p in v.split(",") if p.strip().upper() != PLUGIN_CODE)
    try:
        return selection(settings.select, ignore, registry().checks)
    except UnknownCode as error:
        prefixes = [p.strip().upper() for v in (*settings.select, *ignore) for p in v.split(",")]
        raise click.UsageError(f"{error}{_closest(prefixes)}") from None


def _closest(prefixes: Iterable[str]) -> str:
    import difflib

    codes = [c.code for c in registry().checks]
    for prefix in prefixes:
        if prefix and not any(c.startswith(prefix) for c in codes):
            close = difflib.get_close_matches(prefix, [*codes, *{c[:3] for c in codes}], 1, 0.5)
            return f" (nearest: {close[0]})" if close else ""
    return ""


def chosen_checks(settings: Settings, profile: Profile) -> tuple[CheckSpec, ...]:
    """The selected checks that the profile has time for. Raises `click.UsageError` where none is left."""
    wanted = chosen(settings)
    checks = tuple(c for c in registry().checks if wanted.includes(c.code))
    if not checks and registry().checks:
        raise click.UsageError("--select and --ignore leave no check to run")
    return checks if profile is Profile.DEEP else tuple(c for c in checks if c.cost is not Cost.MINUTES)


def known_suppressions(settings: Settings) -> tuple[Suppression, ...]:
    """The configured suppressions. Raises `click.UsageError` for a code that no check has."""
    for rule in settings.config.suppressions:
        if not any(c.code.startswith(rule.code) for c in registry().checks):
            raise click.UsageError(
                f"configuration: {settings.config.file}: suppress.code {rule.code!r} is the code of no "
                f"check{_closest([rule.code])}; see `fsdp-doctor list`"
            )
    return settings.config.suppressions


def expired_suppressions(settings: Settings, today: date | None = None) -> tuple[str, ...]:
    """A line for each configured suppression that has ended, so that its results are no surprise."""
    day = today or datetime.now(timezone.utc).date()
    return tuple(
        f"the suppression of {s.code} ({s.reason}) ended on {s.until}: its results count again"
        for s in settings.config.suppressions
        if s.until is not None and s.until < day
    )
