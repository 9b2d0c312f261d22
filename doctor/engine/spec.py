"""The `@check` decorator: a pure function from facts to findings, with its docstring as documentation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from inspect import cleandoc

from fsdp_doctor.engine.options import Options
from fsdp_doctor.findings import Finding, Row
from fsdp_doctor.subjects.fact import Facts

Judge = Callable[[Facts, Options], Iterable[Finding]]
CODE = re.compile(r"[A-Z]{3}[0-9]{3}\Z")
HEADINGS = ("What", "Why", "Fix", "Sources")


class Cost(str, Enum):
    """The price of the facts a check needs: `INSTANT` files, `SECONDS` children, `MINUTES` measurements."""

    INSTANT = "instant"
    SECONDS = "seconds"
    MINUTES = "minutes"


class SpecError(ValueError):
    """A check is declared wrongly. The message names it and the rule."""


@dataclass(frozen=True, slots=True)
class Documentation:
    """The parts of a check's docstring, unwrapped."""

    title: str
    what: str
    why: str
    fix: str
    sources: str


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """One check with all that is declared about it."""

    code: str
    row: Row | None
    judge: Judge
    documentation: Documentation
    needs: tuple[type[object], ...]
    uses: tuple[type[object], ...] = ()
    tags: tuple[str, ...] = ()
    cost: Cost = Cost.INSTANT
    package: str = "fsdp-doctor"
    """The distribution that brought it."""

    @property
    def title(self) -> str:
        """The first line of the docstring."""
        return self.documentation.title

    @property
    def family(self) -> str:
        """The three letters of the code."""
        return self.code[:3]


def parse_documentation(name: str, text: str | None) -> Documentation:
    """Split a docstring into title and headed paragraphs. Raises `SpecError` where one is missing."""
    if not text:
        raise SpecError(f"check {name}: no docstring")
    title, _, body = cleandoc(text).partition("\n")
    parts: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in body.splitlines():
        head, colon, rest = line.partition(":")
        if colon and head in HEADINGS:
            current = parts.setdefault(head, [])
            current.append(rest.strip())
        elif current is not None:
            current.append(line.strip())
    missing = [h for h in HEADINGS if not " ".join(parts.get(h, ())).strip()]
    if missing:
        raise SpecError(f"check {name}: docstring lacks {', '.join(missing)}")
    unwrapped = {h: re.sub(r"\s+", " ", " ".join(lines)).strip() for h, lines in parts.items()}
    return Documentation(
        title.strip().rstrip("."), unwrapped["What"], unwrapped["Why"], unwrapped["Fix"], unwrapped["Sources"]
    )


def check(
    code: str,
    row: Row | None,
    *,
    needs: tuple[type[object], ...],
    uses: tuple[type[object], ...] = (),
    tags: tuple[str, ...] = (),
    cost: Cost = Cost.INSTANT,
) -> Callable[[Judge], CheckSpec]:
    """Declare a check.

    `needs` are subject types without which the runner reports a skip and does not call the function;
    `uses` are read with `facts.find` where they are there. The docstring holds a title line and the
    paragraphs `What:`, `Why:`, `Fix:` and `Sources:`. Raises `SpecError` when a rule is broken.
    """

    def declare(judge: Judge) -> CheckSpec:
        if not CODE.match(code):
            raise SpecError(f"check {code}: a code is three capital letters and three digits")
        if not needs:
            raise SpecError(f"check {code}: needs names no fact")
        documentation = parse_documentation(code, judge.__doc__)
        return CheckSpec(code, row, judge, documentation, needs, uses, tags, cost)

    return declare
