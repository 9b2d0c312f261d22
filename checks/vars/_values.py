"""How NCCL and torch read the text of a variable."""

from __future__ import annotations

import re

from fsdp_doctor.engine.variables import Setting, Settings
from fsdp_doctor.findings import Fix, Subject
from fsdp_doctor.tables import nccl_variables as table


def leading_number(text: str) -> int | None:
    """What strtoll makes of a text: the integer in front, None where there is none (NCCL then takes 0)."""
    match = re.match(r"\s*([+-]?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,18}))", text)
    if match is None:
        return None
    digits = match.group(1)
    octal = re.fullmatch(r"([+-]?)0([0-7]+)", digits)
    if octal:
        return int(octal.group(1) + octal.group(2), 8)
    try:
        return int(digits, 0)
    except ValueError:
        return 0


def switched_on(variables: Settings, name: str) -> Setting | None:
    """A switch of NCCL that is set to a number other than 0."""
    setting = variables.get(name)
    return setting if setting is not None and leading_number(setting.value) not in (None, 0) else None


def switched_off(variables: Settings, name: str) -> Setting | None:
    """A switch of NCCL that is set to 0 (or to a word, which NCCL reads as 0)."""
    setting = variables.get(name)
    return (
        setting
        if setting is not None and setting.value and (leading_number(setting.value) or 0) == 0
        else None
    )


def says(setting: Setting) -> str:
    """Such as "NCCL_P2P_DISABLE=1 (in /etc/nccl.conf)", cut where the value is long."""
    value = setting.value if len(setting.value) <= 120 else setting.value[:117] + "..."
    return f"{setting.name}={value}{setting.where}"


def about(setting: Setting) -> Subject:
    """The subject of a finding about one variable."""
    return Subject(variable=setting.name, path=setting.source if setting.source.startswith("/") else None)


def unset(setting: Setting, text: str | None = None) -> Fix:
    """Remove the variable from wherever it is set."""
    if setting.source.startswith("/"):
        return Fix(text or f"Remove the line {setting.name}= from {setting.source}")
    return Fix(text or f"Unset {setting.name}", f"unset {setting.name}")


def provider_profile(variables: Settings) -> str | None:
    """A variable of a cloud's network profile, which prescribes tuning; None where there is none."""
    return next((n for n in sorted(variables.items) if n.startswith(table.TUNED_BY_PROVIDER)), None)
