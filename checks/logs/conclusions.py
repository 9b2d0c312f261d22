"""One check per conclusion that follows from several ranks' lines, or from their silence."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.logs._judging import judge, snapshots
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import CheckSpec, Documentation, Judge
from fsdp_doctor.findings import Finding
from fsdp_doctor.subjects.diagnosis import Diagnosis
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.incident import Incident
from fsdp_doctor.tables.log_conclusions import CONCLUSIONS, MEMORY_SNAPSHOT, ConclusionKind


def _judge_of(kind: ConclusionKind) -> Judge:
    def judged(facts: Facts, options: Options) -> Iterator[Finding]:
        yield from judge(kind.code, kind.row, facts[Incident], facts[Diagnosis])
        if kind.code == MEMORY_SNAPSHOT:
            yield from snapshots(facts[Incident], facts[Diagnosis])

    return judged


def _spec(kind: ConclusionKind) -> CheckSpec:
    return CheckSpec(
        code=kind.code,
        row=kind.row,
        judge=_judge_of(kind),
        documentation=Documentation(
            kind.title,
            kind.what,
            kind.why,
            kind.fix + (f" (`{kind.command}`)" if kind.command else "") + ".",
            kind.sources + ".",
        ),
        needs=(Incident, Diagnosis),
        tags=("logs", "conclusion"),
    )


globals().update({k.code: _spec(k) for k in CONCLUSIONS.values()})  # the registry reads a module's names
