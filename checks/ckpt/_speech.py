"""From obstacles to findings."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.findings import Evidence, Finding, Fix, Row, Subject, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.loading import Answer, Cause, Effect, Loading, Obstacle

BAD = frozenset({Effect.FAILS, Effect.HANGS, Effect.WRONG})
MODEL = "no model was named, whose names and sizes could be compared"
NAME_MODEL = "give --model FILE.py:FACTORY, pkg.mod:FACTORY or hf:DIR"


def speak(facts: Facts, *causes: Cause, reads: bool = True, needs: str = "") -> Iterator[Finding]:
    """One finding per obstacle of these causes.

    `reads`: nothing can be said where the checkpoint's tensors are not known. `needs` names a field of
    the target without which there is nothing to compare.
    """
    loading = facts[Loading]
    if reads and loading.unread:
        yield skip(f"the checkpoint cannot be read: {loading.unread}")
        return
    said = [o for o in loading.obstacles if o.cause in causes]
    if not said and needs and getattr(loading.target, needs) is None:
        reason, enable = _lacking(needs)
        yield skip(reason, enable=enable)
        return
    for obstacle in said:
        yield finding(loading, obstacle)


def _lacking(field: str) -> tuple[str, str]:
    if field == "model":
        return MODEL, NAME_MODEL
    if field == "world_size":
        return "the number of ranks that load it is not known", "give --world-size N"
    option = f"--{field.replace('_', '-')}"
    return f"{option} was not said", f"give {option}"


def finding(loading: Loading, obstacle: Obstacle) -> Finding:
    """The obstacle in words, with the message that torch prints."""
    only = _only(loading, obstacle)
    found = only + obstacle.found + (f'; torch says "{obstacle.message}"' if obstacle.message else "")
    subject = Subject(path=_path(loading, obstacle), tensor=obstacle.tensor)
    fix = Fix(obstacle.fix, obstacle.command) if obstacle.fix or obstacle.command else None
    row = Row.WRONG if obstacle.effect is Effect.WRONG else None
    evidence = (Evidence("names", "\n".join(obstacle.examples)),) if obstacle.examples else ()
    if obstacle.effect is Effect.UNKNOWN:
        return skip(found, enable=obstacle.expected, subject=subject)
    if obstacle.effect in BAD and loading.answer is Answer.NO:
        return fail(found, obstacle.expected, fix=fix, subject=subject, row=row, evidence=evidence)
    if obstacle.effect in BAD or obstacle.effect in (Effect.LOST, Effect.SAME_SETUP):
        return warn(found, obstacle.expected, fix=fix, subject=subject, row=row, evidence=evidence)
    if obstacle.effect is Effect.RESHARDS:
        return ok(found, subject=subject)
    return info(found, expected=obstacle.expected, subject=subject, fix=fix)


def _only(loading: Loading, obstacle: Obstacle) -> str:
    """Such as "under fsdp1: ", where the other ways are not concerned."""
    if obstacle.ways >= loading.by_way.keys():
        return ""
    named = sorted({api.value for api, _ in obstacle.ways})
    return f"under {' and '.join(named)}: "


def _path(loading: Loading, obstacle: Obstacle) -> str:
    return f"{loading.path.rstrip('/')}/{obstacle.path}" if obstacle.path else loading.path
