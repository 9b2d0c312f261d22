"""One check per entry of the table of log signatures."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.logs._judging import judge
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import CheckSpec, Documentation, Judge
from fsdp_doctor.findings import Finding
from fsdp_doctor.subjects.diagnosis import Diagnosis
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.incident import Incident
from fsdp_doctor.tables.log_signatures import SIGNATURES, Kind, Signature

MEANS = {
    Kind.ROOT: "names the cause itself",
    Kind.LIKELY: "is likely the cause",
    Kind.CONFIRMS: "points at a cause elsewhere",
    Kind.VICTIM: "is a consequence of something else",
    Kind.CONTEXT: "is context, no fault",
}


def _judge_of(signature: Signature) -> Judge:
    def judged(facts: Facts, options: Options) -> Iterator[Finding]:
        yield from judge(signature.code, signature.row, facts[Incident], facts[Diagnosis])

    return judged


def _spec(signature: Signature) -> CheckSpec:
    caught = f" It catches {', '.join(signature.fields)}." if signature.fields else ""
    return CheckSpec(
        code=signature.code,
        row=signature.row,
        judge=_judge_of(signature),
        documentation=Documentation(
            title=signature.title,
            what=f"Finds lines such as “{signature.sample.strip()[:220]}”. "
            f"Such a line {MEANS[signature.kind]} ({signature.kind.value}, weight {signature.weight}, "
            f"scope: {signature.scope.value}).{caught}",
            why=signature.why,
            fix=signature.fix + (f" (`{signature.command}`)" if signature.command else "") + ".",
            sources=signature.sources + ".",
        ),
        needs=(Incident, Diagnosis),
        tags=("logs", signature.kind.value),
    )


globals().update({s.code: _spec(s) for s in SIGNATURES.values()})  # the registry reads a module's names
