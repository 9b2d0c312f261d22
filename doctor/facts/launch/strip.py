"""Take away what stands in front of a launcher: assignments, env, wrappers, environment managers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from fsdp_doctor.tables.launchers import RUNNERS, WRAPPERS, WRAPPERS_WITH_OPERAND

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)\Z", re.DOTALL)
SHELLS = {"sh", "bash", "zsh", "dash"}
SHELL_SYNTAX = set(";|&<>()`$\n")


def strip(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Split `A=1 env B=2 nohup torchrun …` into its assignments and the command itself."""
    environment: dict[str, str] = {}
    rest = tuple(words)
    while rest:
        shorter = _assignments(rest, environment)
        shorter = _wrapper(shorter, environment)
        if shorter == rest:
            break
        rest = shorter
    return environment, rest


def _assignments(words: tuple[str, ...], environment: dict[str, str]) -> tuple[str, ...]:
    i = 0
    while i < len(words) and (match := ASSIGNMENT.match(words[i])):
        environment[match[1]] = match[2]
        i += 1
    return words[i:]


def _wrapper(words: tuple[str, ...], environment: dict[str, str]) -> tuple[str, ...]:
    """Drop one wrapper, if there is one."""
    if not words:
        return words
    name = PurePosixPath(words[0]).name
    if name == "env":
        return _assignments(_options(words[1:], frozenset({"-u", "-C", "-S"})), environment)
    if name in WRAPPERS:
        return _options(words[1:], WRAPPERS[name])
    if name in WRAPPERS_WITH_OPERAND:
        return _options(words[1:], WRAPPERS_WITH_OPERAND[name])[1:]
    for runner, valued in RUNNERS.items():
        if (name, *words[1:2]) == runner:
            return _options(words[2:], valued)
    if name in SHELLS:
        return _shell(words)
    return words


def _options(words: tuple[str, ...], valued: frozenset[str]) -> tuple[str, ...]:
    i = 0
    while i < len(words) and words[i].startswith("-"):
        if words[i] == "--":
            return words[i + 1 :]
        i += 2 if words[i] in valued else 1
    return words[i:]


def _shell(words: tuple[str, ...]) -> tuple[str, ...]:
    """`bash -c "torchrun …"` of one simple command; anything with shell syntax is left as it is."""
    for i, word in enumerate(words[1:], 1):
        if re.fullmatch(r"-[a-z]*c[a-z]*", word) and i + 1 < len(words):
            script = words[i + 1]
            if SHELL_SYNTAX & set(script):
                return words
            try:
                return tuple(shlex.split(script))
            except ValueError:
                return words
        if not word.startswith("-"):
            break
    return words
