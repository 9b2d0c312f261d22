"""A job that hangs now: which rank the others wait for, by where the ranks of this host stand."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Confidence, Evidence, Finding, Fix, Row, Subject, fail, info, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.stacks import (
    ALL_WAIT,
    ELSEWHERE,
    GONE,
    LOADING,
    NOT_SEEN,
    STOPPED,
    WORKING,
    LiveConclusion,
    LiveJob,
    RankProcess,
)

EVIDENCE_LIMIT = 8
FRAMES = 12
"""Frames of a stack that are shown."""
BUSY_PERCENT = 90
WAITING_POWER = 0.45
"""Share of its power limit below which a busy GPU computes nothing: a waiting collective's kernel spins."""


@check("LOG801", Row.NCCL, needs=(LiveJob,), tags=("live",))
def stopped_rank(facts: Facts, options: Options) -> Iterator[Finding]:
    """A rank is stopped.

    What: the kernel's state of each rank's process is T: a signal or a debugger has stopped it.
    Why: it reaches no collective, and all other ranks wait until their timeout ends the job.
    Fix: `kill -CONT PID`, and find out who stopped it.
    Sources: proc(5), /proc/PID/stat.
    """
    yield from _findings(facts[LiveJob], STOPPED, "every rank running")


@check("LOG802", Row.NCCL, needs=(LiveJob,), tags=("live",))
def rank_elsewhere(facts: Facts, options: Options) -> Iterator[Finding]:
    """A rank is elsewhere than the ranks that wait for it.

    What: groups the ranks by where their stacks stand. Most wait in one collective; the one in other code,
    or in another collective, keeps them waiting. Whether a thread counts as idle says nothing: both do.
    Why: a collective ends when all ranks of its group have come. The watchdog's timeout names those that
    waited, not the one they waited for.
    Fix: let every rank reach the same collectives: take the call or the work out of the branch that one
    rank alone runs.
    Sources: STAT (Stack Trace Analysis Tool) and ByteRobust group stacks in this way; py-spy.
    """
    yield from _findings(facts[LiveJob], ELSEWHERE, "all ranks at the same place")


@check("LOG803", Row.SLOW, needs=(LiveJob,), tags=("live", "data"))
def ranks_load_data(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks wait for their data.

    What: the main thread stands in the loader; its worker processes are looked at too.
    Why: the other ranks wait in their next collective for as long as one loader takes.
    Fix: find what the worker waits for: storage, a bad sample, a deadlock with a forked library.
    Sources: torch.utils.data.dataloader; py-spy.
    """
    yield from _findings(facts[LiveJob], LOADING, "data before it is wanted")


@check("LOG804", Row.NCCL, needs=(LiveJob,), tags=("live",))
def all_ranks_wait(facts: Facts, options: Options) -> Iterator[Finding]:
    """All ranks of this host wait in the same collective.

    What: no rank of this host is elsewhere. The one they wait for is on another host, or the network or a
    GPU does not deliver.
    Why: stacks of one host cannot tell which.
    Fix: look on every host; read the Flight Recorder dumps and the kernel's log.
    Sources: as LOG802.
    """
    for conclusion in facts[LiveJob].conclusions:
        if conclusion.kind == ALL_WAIT:
            yield warn(
                conclusion.words,
                "ranks that come and go",
                fix=_fix(conclusion),
                confidence=Confidence.LOW,
                evidence=_evidence(facts[LiveJob], conclusion),
            )


@check("LOG805", Row.NCCL, needs=(LiveJob,), tags=("live",))
def rank_gone(facts: Facts, options: Options) -> Iterator[Finding]:
    """A rank of this host has no process any more.

    What: counts the ranks' processes against LOCAL_WORLD_SIZE.
    Why: the others wait for it until their timeout.
    Fix: see how it ended: its log, and the kernel's for out-of-memory kills.
    Sources: torchrun's environment variables.
    """
    yield from _findings(facts[LiveJob], GONE, "a process for each rank")


@check("LOG806", Row.NCCL, needs=(LiveJob,), tags=("live",))
def stacks_not_seen(facts: Facts, options: Options) -> Iterator[Finding]:
    """The stacks of ranks cannot be read.

    What: py-spy needs the right to trace a process (CAP_SYS_PTRACE, or kernel.yama.ptrace_scope 0).
    Why: without stacks nothing tells where a rank stands.
    Fix: give that right, or start the job by `fsdp-doctor run`, which takes stacks from inside.
    Sources: ptrace(2); the kernel's Yama documentation; py-spy's README.
    """
    for conclusion in facts[LiveJob].conclusions:
        if conclusion.kind == NOT_SEEN:
            yield warn(conclusion.words, "a stack for each rank", fix=_fix(conclusion))


@check("LOG807", Row.NCCL, needs=(LiveJob,), tags=("live", "gpu"))
def gpus_only_wait(facts: Facts, options: Options) -> Iterator[Finding]:
    """GPUs are busy and use little power.

    What: utilisation is 90 % or more at less than 45 % of the power limit.
    Why: utilisation counts the time in which a kernel runs, and a collective that waits is a kernel that
    runs: it shows 100 % and computes nothing.
    Fix: find the rank that has not come to the collective.
    Sources: NVML's nvmlDeviceGetUtilizationRates and nvmlDeviceGetPowerUsage.
    """
    for gpu in facts[LiveJob].gpus:
        if gpu.utilisation is None or gpu.power is None or not gpu.limit:
            continue
        figures = f"GPU {gpu.index} is {gpu.utilisation} % busy at {gpu.power:.0f} W of {gpu.limit:.0f} W"
        if gpu.utilisation >= BUSY_PERCENT and gpu.power < WAITING_POWER * gpu.limit:
            yield info(
                f"{figures}: its kernel waits, as a collective does that not all ranks have come to",
                expected="more power when it computes",
                subject=Subject(gpu=gpu.index, rank=_number(gpu.ranks)),
            )
        else:
            yield ok(figures, subject=Subject(gpu=gpu.index, rank=_number(gpu.ranks)))


@check("LOG808", None, needs=(LiveJob,), tags=("live",))
def ranks_work(facts: Facts, options: Options) -> Iterator[Finding]:
    """The ranks work.

    What: says where they are when none waits for another.
    Why: a job without output need not hang.
    Fix: look again later.
    Sources: as LOG802.
    """
    for conclusion in facts[LiveJob].conclusions:
        if conclusion.kind == WORKING:
            yield info(conclusion.words)


def _findings(job: LiveJob, kind: str, expected: str) -> Iterator[Finding]:
    for conclusion in job.conclusions:
        if conclusion.kind == kind:
            yield fail(
                conclusion.words,
                expected,
                fix=_fix(conclusion),
                subject=Subject(
                    host=job.host,
                    rank=_number(conclusion.ranks),
                    file=conclusion.file,
                    line=conclusion.line,
                ),
                confidence=Confidence(conclusion.confidence),
                evidence=_evidence(job, conclusion),
            )


def _fix(conclusion: LiveConclusion) -> Fix | None:
    return Fix(conclusion.fix, conclusion.command) if conclusion.fix else None


def _number(ranks: tuple[int, ...]) -> int | tuple[int, ...] | None:
    return ranks[0] if len(ranks) == 1 else ranks or None


def _evidence(job: LiveJob, conclusion: LiveConclusion) -> tuple[Evidence, ...]:
    """The stacks of the ranks that are named, and of one that waits."""
    wanted = [*conclusion.ranks, *conclusion.waiting[:1]]
    found = [p for r in wanted for p in job.processes if r in (p.rank, p.pid)]
    return tuple(_stack(p) for p in found[:EVIDENCE_LIMIT] if p.threads)


def _stack(process: RankProcess) -> Evidence:
    main = next((t for t in process.threads if t.main), process.threads[0])
    shown = " < ".join(
        f"{f.function} ({f.file.rpartition('/')[2]}:{f.line})" for f in reversed(main.frames[-12:])
    )
    rank = f"rank {process.rank}" if process.rank is not None else "a rank"
    return Evidence(f"{process.method} of process {process.pid} ({rank})", shown)
