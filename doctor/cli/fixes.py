"""`--fix`: the commands that would be run, and with `--yes` the running of those that are safe and yours."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from fsdp_doctor.findings import Owner, Result, Risk, Status
from fsdp_doctor.process import run

FIX_DEADLINE = 60.0
"""Seconds that one command gets."""
OUTPUT_LIMIT = 4000
_SHELL_ONLY = re.compile(r"[|&;<>()$`\n\r*?\[\]{}~#!]")
_ELEVATING = ("sudo", "su", "doas", "pkexec")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh", "busybox", "env", "xargs")
"""Programs that run what they are given as words, so that looking at the first word is not enough."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a fix and the words it comes to; `argv` is None where it is not run, and why."""

    code: str
    command: str
    risk: Risk
    owner: Owner
    argv: tuple[str, ...] | None
    why_not: str = ""


def plan(results: Iterable[Result]) -> tuple[Step, ...]:
    """The commands of all counted warnings and failures, each once."""
    steps: dict[str, Step] = {}
    for result in results:
        fix = result.fix
        if result.status in (Status.FAIL, Status.WARN) and result.suppressed is None and fix and fix.command:
            argv, why_not = _words(fix.command)
            if fix.owner is not Owner.YOU:
                argv, why_not = None, f"it is for the {fix.owner.value} to decide"
            if fix.risk is not Risk.SAFE:
                argv, why_not = None, f"its risk is {fix.risk.value}"
            steps.setdefault(fix.command, Step(result.code, fix.command, fix.risk, fix.owner, argv, why_not))
    return tuple(steps.values())


def carry_out(steps: Iterable[Step], apply: bool, seconds: float = FIX_DEADLINE) -> list[dict[str, object]]:
    """What was done or would be, as JSON values. Without `apply` nothing is run."""
    return [_carry_out(step, apply, seconds) for step in steps]


def _words(command: str) -> tuple[tuple[str, ...] | None, str]:
    """A command as words that need no shell, or why it cannot be run so."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        return None, f"it does not parse: {error}"
    if _SHELL_ONLY.search(_unquoted(command)) or not words or _ASSIGNMENT.match(words[0]):
        return None, "it needs a shell: run it yourself"
    if PurePath(words[0]).name in _SHELLS:
        return None, f"{words[0]} runs what it is given: run it yourself"
    if PurePath(words[0]).name in _ELEVATING:
        return None, "it asks for root: run it yourself"
    if shutil.which(words[0]) is None:
        return None, f"there is no program {words[0]} here: run it in your shell"
    return words, ""


def _unquoted(command: str) -> str:
    """The command without what stands in quotes; a dollar or backtick in double quotes stays."""
    outside = re.sub(r"'[^']*'", "", command)
    return re.sub(r'"([^"\\]|\\.)*"', lambda m: re.sub(r"[^$`]", "", m.group()), outside)


def _carry_out(step: Step, apply: bool, seconds: float) -> dict[str, object]:
    told: dict[str, object] = {
        "code": step.code,
        "command": step.command,
        "risk": step.risk.value,
        "owner": step.owner.value,
        "applied": False,
    }
    if step.argv is None:
        return told | {"outcome": f"not run: {step.why_not}"}
    if not apply:
        return told | {"outcome": "would be run with --yes"}
    outcome = run(step.argv, seconds, stdout_limit=OUTPUT_LIMIT, stderr_limit=OUTPUT_LIMIT)
    said = (outcome.stdout + outcome.stderr).decode("utf-8", "replace").strip()
    return told | {
        "applied": outcome.ok,
        "exit": outcome.returncode,
        "outcome": "done" if outcome.ok else f"failed: {outcome.problem}",
        "output": said,
    }
