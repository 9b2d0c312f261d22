"""How far Flight Recorder dumps can be trusted: damage, versions, what the ring has overwritten."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.logs._recorded import SHOWN, ranks_words
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Row, Subject, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.flight import FlightVerdict


@check("LOG911", None, needs=(FlightVerdict,), tags=("logs", "flight"))
def unread(facts: Facts, options: Options) -> Iterator[Finding]:
    """A dump is cut, damaged, refused or not of this run.

    What: dumps are read without ever building a class: a pickle that asks for one is refused and nothing of
    it is run. Of a cut one the entries before the cut are used.
    Why: a missing or half dump hides the rank that matters.
    Fix: copy the file again; delete dumps of older runs; give every run a folder of its own.
    Sources: Python documentation, "Restricting Globals" of pickle.
    """
    verdict = facts[FlightVerdict]
    for item in verdict.unread[:SHOWN]:
        if item.kind in ("unreadable", "refused"):
            yield warn(
                f"{item.path}: {item.problem}",
                "a whole dump of plain data",
                subject=Subject(path=item.path),
                fix=Fix("Copy the dump again from its host; do not open it with pickle.load"),
            )
        elif item.kind in ("stale", "duplicate"):
            yield warn(
                f"{item.path} was left out: {item.problem}",
                "one dump per rank, of one run",
                subject=Subject(path=item.path),
                fix=Fix("Give every run a folder of its own for its dumps (TORCH_FR_DUMP_TEMP_FILE)"),
            )
        else:
            yield info(f"{item.path}: {item.problem}", subject=Subject(path=item.path))
    if verdict.cut:
        ranks = tuple(sorted(verdict.cut))
        yield warn(
            f"the dump of {ranks_words(ranks)} is cut ({verdict.cut[ranks[0]]}); what it held before was "
            "used",
            "whole dumps",
            subject=Subject(rank=ranks),
            fix=Fix(
                "Copy the dump again; leave the ranks time to write (TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC)"
            ),
        )


@check("LOG912", Row.START, needs=(FlightVerdict,), tags=("logs", "flight"))
def versions_differ(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks' recorders are of different versions.

    What: compares the schema's version and the communication library's version over the dumps.
    Why: ranks with different PyTorch or NCCL builds may not understand each other.
    Fix: the same image and the same environment on all hosts.
    Sources: PyTorch Flight Recorder, version and comm_lib_version.
    """
    verdict = facts[FlightVerdict]
    if len(verdict.dumped) < 2:
        yield skip("one dump: nothing to compare it with")
        return
    for what, found in (("dump version", verdict.versions), ("communication library", verdict.libraries)):
        if len(found) > 1:
            rarest = min(found, key=lambda v: (len(found[v]), v))
            told = "; ".join(
                f"{v} on {ranks_words(r)}" for v, r in sorted(found.items(), key=lambda i: -len(i[1]))
            )
            yield warn(
                f"{what}s differ: {told}",
                "one version on all ranks",
                subject=Subject(rank=found[rarest]),
                fix=Fix("Start all ranks from the same image and environment"),
            )


@check("LOG913", Row.NCCL, needs=(FlightVerdict,), tags=("logs", "flight"))
def ring_overwritten(facts: Facts, options: Options) -> Iterator[Finding]:
    """The recorder's ring has overwritten its beginning.

    What: the first entry's number is more than 0.
    Why: usual in a long job and no fault; a difference that lies further back cannot be seen any more.
    Fix: TORCH_FR_BUFFER_SIZE=20000 where the start matters.
    Sources: PyTorch Flight Recorder, record_id.
    """
    verdict = facts[FlightVerdict]
    if verdict.wrapped:
        yield info(
            f"{len(verdict.wrapped)} of {len(verdict.dumped)} dumps begin after their rank's first operation",
            fix=Fix("Record more where the start matters", "export TORCH_FR_BUFFER_SIZE=20000"),
        )
    elif verdict.dumped:
        yield ok(f"{verdict.entries} entries of {len(verdict.dumped)} ranks, from their first operation on")
    else:
        yield skip("no dump could be read")
