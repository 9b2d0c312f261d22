"""What Flight Recorder dumps say of a job: who kept the others waiting."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.logs._recorded import findings, fix_of, of
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Confidence, Finding, Row, Subject, warn
from fsdp_doctor.subjects.diagnosis import Diagnosis
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.flight import FlightVerdict


@check("LOG900", Row.NCCL, needs=(FlightVerdict,), uses=(Diagnosis,), tags=("logs", "flight"))
def never_entered(facts: Facts, options: Options) -> Iterator[Finding]:
    """A rank never entered a collective that the others wait in.

    What: per process group, the first collective that is not done and the ranks that never enqueued it.
    A rank that itself waits in another group is a victim of that one, and the chain is followed to its end.
    Why: a collective ends when all ranks of its group have come. The watchdog's message comes from those
    that waited; the rank at fault prints none.
    Fix: look at what this rank did instead, and let every rank make the same collectives.
    Sources: PyTorch Flight Recorder (schema 1.0 to 2.10); STAT names the least progressed rank in this way.
    """
    yield from findings(facts, "LOG900")


@check("LOG901", Row.NCCL, needs=(FlightVerdict,), uses=(Diagnosis,), tags=("logs", "flight"))
def other_operation(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks called different collectives at the same point.

    What: compares, over all members of a group, the operations of the same sequence number. The odd rank is
    told by majority, between equal halves by what earlier steps did; what follows tells whether it added an
    operation or left one out.
    Why: NCCL runs whatever meets: the job hangs or continues with wrong data.
    Fix: find the branch, the loop length or the early exit that only some ranks take.
    Sources: PyTorch Flight Recorder; torch.distributed docs, TORCH_DISTRIBUTED_DEBUG=DETAIL.
    """
    yield from findings(facts, "LOG901")


@check("LOG902", Row.NCCL, needs=(FlightVerdict,), uses=(Diagnosis,), tags=("logs", "flight"))
def other_size(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks called a collective with different sizes.

    What: compares the elements per operation; all_to_all, gather and scatter may differ where they may.
    Why: NCCL reads past the end or waits for bytes that never come: a hang, or wrong values.
    Fix: pad uneven batches, exchange sizes first, build and wrap the same model on every rank.
    Sources: NCCL user guide, "all ranks call with the same count and type".
    """
    yield from findings(facts, "LOG902")


@check("LOG903", Row.NCCL, needs=(FlightVerdict,), uses=(Diagnosis,), tags=("logs", "flight"))
def other_type(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks called a collective with different types.

    What: compares the element types of the same operation over the ranks.
    Why: the bytes have another meaning or another number on one rank.
    Fix: the same mixed-precision policy and the same autocast on all ranks.
    Sources: NCCL user guide, "all ranks call with the same count and type".
    """
    yield from findings(facts, "LOG903")


@check("LOG904", Row.NCCL, needs=(FlightVerdict,), uses=(Diagnosis,), tags=("logs", "flight"))
def stalled(facts: Facts, options: Options) -> Iterator[Finding]:
    """All ranks entered a collective and nobody finished it.

    What: every member enqueued the same operation of the same size, and none is done.
    Why: no rank is at fault: the network, a link or a GPU is. What looks for the odd rank finds none here.
    Fix: look at the hosts: Xid, NIC and switch errors; measure the links.
    Sources: PyTorch Flight Recorder; NCCL user guide, troubleshooting.
    """
    yield from findings(facts, "LOG904")


@check("LOG905", Row.NCCL, needs=(FlightVerdict,), uses=(Diagnosis,), tags=("logs", "flight"))
def not_finished(facts: Facts, options: Options) -> Iterator[Finding]:
    """A rank's GPU did not start or finish a collective that the others ran.

    What: all entered; some are through and a minority is not, or (where starts are recorded) never began.
    Why: that rank's kernel hangs or an earlier one occupies its stream.
    Fix: check that GPU and its links; look for the kernel that blocks it.
    Sources: PyTorch Flight Recorder, states scheduled, started, completed.
    """
    yield from findings(facts, "LOG905")


@check("LOG906", Row.NCCL, needs=(FlightVerdict,), uses=(Diagnosis,), tags=("logs", "flight"))
def no_dump(facts: Facts, options: Options) -> Iterator[Finding]:
    """A rank that the others wait for left no dump.

    What: members of a waiting group without a dump, where all that left one did the same.
    Why: a rank that dies writes none: silence is evidence, though not proof.
    Fix: read that rank's own log and the kernel log of its host.
    Sources: PyTorch Flight Recorder; a process ended by an exception or SIGKILL does not dump.
    """
    yield from findings(facts, "LOG906")


@check("LOG907", Row.NCCL, needs=(FlightVerdict,), uses=(Diagnosis,), tags=("logs", "flight"))
def crossed(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks take process groups in different order and wait for each other.

    What: the ranks missing in one group wait in another, whose missing ranks wait in the first.
    Why: neither side can go on: a deadlock.
    Fix: the same order of collectives over all groups on every rank.
    Sources: NCCL user guide, "using multiple NCCL communicators concurrently".
    """
    yield from findings(facts, "LOG907")


@check("LOG908", Row.NCCL, needs=(FlightVerdict,), uses=(Diagnosis,), tags=("logs", "flight"))
def late(facts: Facts, options: Options) -> Iterator[Finding]:
    """A rank came to a collective after the others' time-out.

    What: compares when ranks entered the stuck operation, less what their clocks differ by in earlier ones.
    Why: the rank was busy elsewhere for longer than the group's time-out; the operation itself is sound.
    Fix: shorten or share what it did before, or raise the time-out where that time is legitimate.
    Sources: PyTorch Flight Recorder, time_created_ns and timeout_ms.
    """
    yield from findings(facts, "LOG908")


@check("LOG909", Row.NCCL, needs=(FlightVerdict,), uses=(Diagnosis,), tags=("logs", "flight"))
def unmatched(facts: Facts, options: Options) -> Iterator[Finding]:
    """A send has no receive, or the reverse.

    What: pairs sends and receives of each two ranks in order; members of a coalesced group share its state.
    Why: pipeline stages that disagree about the number of micro-batches wait for ever.
    Fix: post the missing half on the named rank.
    Sources: PyTorch Flight Recorder, p2p_seq_id and "send 0->1" entries.
    """
    yield from findings(facts, "LOG909")


@check("LOG910", Row.NCCL, needs=(FlightVerdict,), uses=(Diagnosis,), tags=("logs", "flight"))
def undecided(facts: Facts, options: Options) -> Iterator[Finding]:
    """The dumps do not tell who is at fault.

    What: too many members left no dump, or nothing was recorded.
    Why: half of the ranks waiting says nothing of the other half.
    Fix: collect the dumps of all hosts; each rank writes its own to its own disk.
    Sources: PyTorch Flight Recorder, TORCH_FR_DUMP_TEMP_FILE.
    """
    for conclusion in of(facts[FlightVerdict], "LOG910"):
        yield warn(
            conclusion.words,
            conclusion.expected,
            why=conclusion.advice,
            fix=fix_of(conclusion),
            subject=Subject(rank=conclusion.silent or None),
            confidence=Confidence.LOW,
        )
