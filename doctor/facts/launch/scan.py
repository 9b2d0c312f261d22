"""Split a launcher's own options from what follows, by its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fsdp_doctor.tables.launchers import Grammar


@dataclass(slots=True)
class Scan:
    """Options by long name, the last value of each; `rest` begins with the first word that is no option."""

    values: dict[str, str] = field(default_factory=dict)
    repeated: dict[str, list[str]] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    rest: tuple[str, ...] = ()
    problems: list[str] = field(default_factory=list)

    def put(self, name: str, value: str) -> None:
        """Store a value; the last one counts."""
        self.values[name] = value
        self.repeated.setdefault(name, []).append(value)


def scan(words: Sequence[str], grammar: Grammar) -> Scan:
    """Read options until the first plain word or `--`. Never raises: what is wrong goes to `problems`."""
    out = Scan()
    i = 0
    while i < len(words):
        word = words[i]
        if word == "--":
            i += 1
            break
        if len(word) < 2 or not word.startswith("-"):
            break
        i += 1
        if word.startswith("--") or (grammar.single_dash and word[1:2] not in grammar.short):
            i += _long(word.lstrip("-"), words[i:], grammar, out)
        else:
            i += _short(word[1:], words[i:], grammar, out)
    out.rest = tuple(words[i:])
    return out


def _long(word: str, following: Sequence[str], grammar: Grammar, out: Scan) -> int:
    """Read one long option; returns how many further words it took."""
    written, equals, value = word.partition("=")
    name = resolve(written.replace("-", "_"), grammar)
    if name is None:
        if not grammar.open_ended:
            out.problems.append(f"{grammar.name} has no option --{written}")
            return 0
        name = written.replace("-", "_")
    elif name in grammar.flags:
        if equals:
            out.problems.append(f"--{written} of {grammar.name} takes no value")
        out.flags.add(name)
        return 0
    elif name in grammar.attached:
        out.put(name, value)
        return 0
    if equals:
        out.put(name, value)
        return 0
    if not following:
        out.problems.append(f"--{written} of {grammar.name} lacks its value")
        return 0
    out.put(name, following[0])
    return 1


def _short(letters: str, following: Sequence[str], grammar: Grammar, out: Scan) -> int:
    """Read a cluster of short options such as -lN2; returns how many further words it took."""
    for i, letter in enumerate(letters):
        name = grammar.short.get(letter)
        if name is None:
            out.problems.append(f"{grammar.name} has no option -{letter}")
            return 0
        glued = letters[i + 1 :]
        if name in grammar.flags:
            out.flags.add(name)
        elif name in grammar.attached or glued:
            out.put(name, glued.removeprefix("="))
            return 0
        elif following:
            out.put(name, following[0])
            return 1
        else:
            out.problems.append(f"-{letter} of {grammar.name} lacks its value")
    return 0


def resolve(name: str, grammar: Grammar) -> str | None:
    """The full name of an option, also from a unique prefix; None if there is none."""
    known = grammar.values | grammar.flags | grammar.attached
    if name in known:
        return name
    if not grammar.abbreviations or not name:
        return None
    starts = [k for k in known if k.startswith(name)]
    return starts[0] if len(starts) == 1 else None


def whole(text: str | None) -> int | None:
    """A plain integer, or None."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
