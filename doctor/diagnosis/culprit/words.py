"""The words of a conclusion while they are made, and ranks in words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_doctor.subjects.diagnosis import Remedy


@dataclass(frozen=True, slots=True)
class Words:
    """Code, title, reason, fixes and row of a conclusion."""

    code: str
    title: str
    why: str
    fixes: tuple[Remedy, ...]
    row: str | None


def capital(text: str) -> str:
    """A sentence's first letter as a capital, unless its first word is a name from the program."""
    first = text.split(" ", 1)[0]
    return text if re.search(r"[._/=(\d]", first) else text[:1].upper() + text[1:]


def rank_words(ranks: Iterable[int], most: int = 8) -> str:
    """`rank 3`, `ranks 1, 2 and 5`, `ranks 0-7`."""
    numbers = sorted(set(ranks))
    if not numbers:
        return "no rank"
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"ranks {numbers[0]}-{numbers[-1]}"
    if len(numbers) > most:
        return f"ranks {', '.join(map(str, numbers[:most]))} and {len(numbers) - most} others"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
