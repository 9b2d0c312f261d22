"""What the LOG checks say of a diagnosis: the cause fails, what it explains is information."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.findings import Confidence, Evidence, Finding, Fix, Row, Status, Subject
from fsdp_doctor.subjects.diagnosis import Conclusion, Diagnosis
from fsdp_doctor.subjects.incident import CONTEXT, VICTIM, Hit, Incident
from fsdp_doctor.tables.log_conclusions import MEMORY_SNAPSHOT

SHOWN = 6


def judge(code: str, row: Row | None, incident: Incident, diagnosis: Diagnosis) -> Iterator[Finding]:
    """The findings of one code; nothing where no line has it."""
    concluded = [c for c in diagnosis.conclusions if c.code == code]
    for conclusion in concluded:
        yield _failure(conclusion)
    hits = [h for h in incident.hits if h.code == code]
    if hits and not concluded:
        yield _aside(code, hits, diagnosis)


def snapshots(incident: Incident, diagnosis: Diagnosis) -> Iterator[Finding]:
    """What snapshots of CUDA memory show, as information, where they are no cause of their own."""
    told = {p.file for c in diagnosis.conclusions if c.code == MEMORY_SNAPSHOT for p in c.evidence}
    for snapshot in incident.snapshots:
        if snapshot.path in told:
            continue
        for d in snapshot.devices:
            held = d.holders[0] if d.holders else None
            where = f", the largest part by {held.file}:{held.line}" if held is not None and held.file else ""
            yield Finding(
                status=Status.INFO,
                found=f"device {d.device}: {_gib(d.allocated)} allocated{where}, "
                f"{_gib(d.inactive)} reserved and unused",
                subject=Subject(rank=snapshot.rank, file=snapshot.path),
                evidence=tuple(
                    Evidence(
                        snapshot.path,
                        f"{_gib(h.bytes)} in {h.count} block{'s' if h.count != 1 else ''}: "
                        f"{h.file}:{h.line} ({h.function})",
                    )
                    for h in d.holders[:SHOWN]
                    if h.file
                ),
            )


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"


def _failure(c: Conclusion) -> Finding:
    fix = c.fixes[0] if c.fixes else None
    return Finding(
        status=Status.WARN if c.confidence == Confidence.LOW.value else Status.FAIL,
        found=c.title,
        expected="no such failure",
        why=c.why,
        subject=Subject(
            host=c.host,
            rank=c.culprits[0] if len(c.culprits) == 1 else c.culprits or None,
            device=c.device,
            file=c.evidence[0].file if c.evidence else None,
            line=c.evidence[0].line if c.evidence else None,
        ),
        fix=Fix(fix.text, fix.command) if fix is not None else None,
        row=Row(c.row) if c.row in {r.value for r in Row} else None,
        confidence=Confidence(c.confidence) if c.confidence in ("high", "medium", "low") else Confidence.LOW,
        evidence=tuple(Evidence(f"{p.file}:{p.line}", p.text) for p in c.evidence[:SHOWN]),
    )


def _aside(code: str, hits: list[Hit], diagnosis: Diagnosis) -> Finding:
    first = hits[0]
    count = sum(max(h.count, 1) for h in hits)
    cause = next((c.code for c in diagnosis.conclusions if code in c.explained), None)
    if first.kind == CONTEXT:
        word = "context"
    elif first.kind == VICTIM:
        word = "a consequence" + (f" of {cause}" if cause else "")
    elif cause is not None:
        word = f"explained by {cause}"
    else:
        word = "the job went on after it" if not diagnosis.conclusions else "not the cause"
    return Finding(
        status=Status.INFO,
        found=f"{count} line{'s' if count != 1 else ''}, {word}: {first.text.strip()[:200]}",
        subject=Subject(rank=first.origin.rank, file=first.origin.file, line=first.origin.line),
        evidence=tuple(Evidence(f"{h.origin.file}:{h.origin.line}", h.text) for h in hits[:SHOWN]),
    )
