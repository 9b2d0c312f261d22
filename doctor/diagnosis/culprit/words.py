"""The words of a conclusion while they are made."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fsdp_doctor.subjects.diagnosis import Remedy


@dataclass(frozen=True, slots=True)
class Words:
    """Title, reason, fixes and row of a conclusion."""

    title: str
    why: str
    fixes: tuple[Remedy, ...]
    row: str | None


def capital(text: str) -> str:
    """A sentence's first letter as a capital, unless its first word is a name from the program."""
    first = text.split(" ", 1)[0]
    return text if re.search(r"[._/=(\d]", first) else text[:1].upper() + text[1:]
