"""What a check says and what a report holds: frozen values, no behaviour beyond arithmetic on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

SILENT_PASS = "nothing wrong found"
"""What the pass of a check that yielded nothing says."""


class Status(str, Enum):
    """How one result ended. `SKIP` and `ERROR` never count as a pass."""

    PASS = "pass"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    ERROR = "error"


class Verdict(str, Enum):
    """The report in one word; `EXIT_CODES` maps it to the exit status."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    INCOMPLETE = "incomplete"


EXIT_CODES: Mapping[Verdict, int] = {
    Verdict.PASS: 0,
    Verdict.WARN: 0,
    Verdict.FAIL: 1,
    Verdict.INCOMPLETE: 3,
}


class Row(str, Enum):
    """A row of the failure table (`fsdp_doctor.failure_table`)."""

    NCCL = "nccl"
    OOM = "oom"
    SLOW = "slow"
    SAVE = "save"
    LOAD = "load"
    START = "start"
    WRONG = "wrong"


class Risk(str, Enum):
    """What applying a fix can break."""

    SAFE = "safe"
    NEEDS_ROOT = "needs-root"
    DISRUPTIVE = "disruptive"


class Owner(str, Enum):
    """Who can apply a fix."""

    YOU = "you"
    ADMIN = "admin"
    HARDWARE = "hardware"


class Confidence(str, Enum):
    """How far the evidence carries a finding."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a finding is about. Unset fields do not apply; several ranks or GPUs are a tuple."""

    host: str | None = None
    rank: int | tuple[int, ...] | None = None
    gpu: int | tuple[int, ...] | None = None
    device: str | None = None
    """An interface, HCA, PCI address or link, by the name the machine gives it."""
    variable: str | None = None
    path: str | None = None
    file: str | None = None
    line: int | None = None
    tensor: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One raw observation behind a finding: where it was read and what stood there."""

    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """What to do. `command` is one that a user can paste; it is run only by `--fix` and only if `SAFE`."""

    text: str
    command: str | None = None
    risk: Risk = Risk.SAFE
    owner: Owner = Owner.YOU


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check yields. `row` and `why` default to the check's own when left unset."""

    status: Status
    found: str
    expected: str = ""
    why: str = ""
    subject: Subject = field(default_factory=Subject)
    fix: Fix | None = None
    row: Row | None = None
    confidence: Confidence = Confidence.HIGH
    evidence: tuple[Evidence, ...] = ()


def fail(
    found: str,
    expected: str,
    *,
    fix: Fix | None = None,
    subject: Subject | None = None,
    why: str = "",
    row: Row | None = None,
    confidence: Confidence = Confidence.HIGH,
    evidence: tuple[Evidence, ...] = (),
) -> Finding:
    """A fault that will stop, corrupt or cripple a run."""
    return Finding(Status.FAIL, found, expected, why, subject or Subject(), fix, row, confidence, evidence)


def warn(
    found: str,
    expected: str,
    *,
    fix: Fix | None = None,
    subject: Subject | None = None,
    why: str = "",
    row: Row | None = None,
    confidence: Confidence = Confidence.HIGH,
    evidence: tuple[Evidence, ...] = (),
) -> Finding:
    """Something that may hurt a run, or hurts only some runs."""
    return Finding(Status.WARN, found, expected, why, subject or Subject(), fix, row, confidence, evidence)


def info(
    found: str, *, expected: str = "", subject: Subject | None = None, fix: Fix | None = None
) -> Finding:
    """Worth knowing, never counted."""
    return Finding(Status.INFO, found, expected, subject=subject or Subject(), fix=fix)


def ok(found: str, *, subject: Subject | None = None) -> Finding:
    """A pass that says what was seen. A check that yields nothing passes too."""
    return Finding(Status.PASS, found, subject=subject or Subject())


def skip(reason: str, *, enable: str = "", subject: Subject | None = None) -> Finding:
    """Not judged: why, and what would enable it."""
    return Finding(Status.SKIP, reason, enable, subject=subject or Subject())


@dataclass(frozen=True, slots=True)
class Result:
    """A finding with the identity of the check that made it."""

    code: str
    title: str
    row: Row | None
    status: Status
    subject: Subject
    found: str
    expected: str = ""
    why: str = ""
    fix: Fix | None = None
    confidence: Confidence = Confidence.HIGH
    evidence: tuple[Evidence, ...] = ()
    seconds: float = 0.0
    suppressed: str | None = None
    """The reason given for a suppression; such a result is shown and not counted."""


@dataclass(frozen=True, slots=True)
class Report:
    """All results of one command and the command's own figures (`data`, JSON values only)."""

    command: str
    results: tuple[Result, ...]
    tool: Mapping[str, str]
    started: str
    seconds: float
    data: Mapping[str, object] = field(default_factory=dict)
    unjudged: tuple[str, ...] = ()
    """Things asked for by name that could not be judged; any makes the verdict incomplete."""
    strict: bool = False

    @property
    def verdict(self) -> Verdict:
        """`fail`, else `incomplete`, else `warn` or `pass`; `strict` counts warnings as failures."""
        seen = {r.status for r in self.results if r.suppressed is None}
        if Status.FAIL in seen or (self.strict and Status.WARN in seen):
            return Verdict.FAIL
        if Status.ERROR in seen or self.unjudged:
            return Verdict.INCOMPLETE
        return Verdict.WARN if Status.WARN in seen else Verdict.PASS

    @property
    def exit_code(self) -> int:
        """The process's exit status for this verdict."""
        return EXIT_CODES[self.verdict]
