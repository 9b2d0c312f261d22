"""Why ranks did not run through: the cause among the ranks that failed, apart from those it took along."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence

from fsdp_doctor.subjects.fabric import DIED, DUPLICATE_GPU, HUNG, MISSING, Failure
from fsdp_doctor.subjects.probe import STAGES, ProbeResult, RankMeasurement

DUPLICATE = re.compile(r"Duplicate GPU detected\s*:\s*rank (\d+) and rank (\d+) both on CUDA device (\w+)")
SYMPTOM = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|closed by (the )?(peer|remote)|broken pipe|timed out"
    r"|timeout|remote process exited|ncclRemoteError|failed to recv|unbound_buffer|heartbeat|pair closure"
    r"|failed to pass monitoredBarrier|watchdog",
    re.IGNORECASE,
)
"""What a rank says that lost its partner. It may also be all that a rank says of a fault of its own."""
LAST_ERROR = re.compile(r"Last error:\s*\n\s*(\S[^\n]*)")
SIGNALS = {
    "SIGKILL": "the kernel's OOM killer or a container's memory limit sends it",
    "SIGBUS": "shared memory (/dev/shm) that is full does this",
    "SIGSEGV": "a crash in native code",
    "SIGILL": "a build for another CPU",
    "SIGABRT": "native code gave up",
}
STOPPED = ("SIGTERM", "SIGINT")
"""What a launcher sends to the ranks that are left."""
LONGEST = 300


def failures(result: ProbeResult) -> tuple[Failure, ...]:
    """The causes, and with each the ranks that failed because of it. Empty where all ranks finished."""
    broken = [r for r in result.ranks if not finished(r)]
    doubled = _duplicates(result)
    causes = doubled or _missing(result) or _died(broken) or _hung(broken) or _unexplained(broken)
    guilty = {r for c in causes for r in c.ranks}
    victims = tuple(sorted(r.rank for r in broken if r.rank not in guilty))
    return tuple(_with(c, victims, result) for c in causes)


def finished(rank: RankMeasurement) -> bool:
    """Whether the rank ran through and ended well, or was stopped by its launcher when it had."""
    ended = rank.exit_code in (None, 0) or signal_name(rank.exit_code) in (*STOPPED, "SIGKILL")
    return rank.stage == STAGES[-1] and not rank.hung and rank.error is None and ended


def _with(cause: Failure, victims: tuple[int, ...], result: ProbeResult) -> Failure:
    places = sorted({r.host for r in result.ranks if r.rank in cause.ranks and r.host})
    return Failure(cause.kind, cause.ranks, cause.stage, cause.words, victims, tuple(places), cause.evidence)


def _duplicates(result: ProbeResult) -> tuple[Failure, ...]:
    """NCCL's own words on two ranks with one GPU, else the same UUID where NCCL was asked to connect them."""
    found: dict[str, set[int]] = {}
    lines: dict[str, str] = {}
    for rank in result.ranks:
        for one, two, device in DUPLICATE.findall(rank.error.text if rank.error else ""):
            found.setdefault(device, set()).update((int(one), int(two)))
            lines.setdefault(device, f"rank {one} and rank {two} both on CUDA device {device}")
    if not found and result.backend == "nccl" and any(r.error for r in result.ranks):
        shared: dict[tuple[str, str], set[int]] = {}
        for rank in result.ranks:
            if rank.gpu_uuid:
                shared.setdefault((rank.host, rank.gpu_uuid), set()).add(rank.rank)
        found = {uuid: ranks for (_, uuid), ranks in shared.items() if len(ranks) > 1}
        lines = {uuid: f"the same GPU {uuid}" for uuid in found}
    return tuple(
        Failure(
            DUPLICATE_GPU,
            tuple(sorted(ranks)),
            _stage(result.ranks, ranks),
            lines[device],
            evidence=(f"Duplicate GPU detected : {lines[device]}",),
        )
        for device, ranks in found.items()
    )


def _missing(result: ProbeResult) -> tuple[Failure, ...]:
    if not result.missing:
        return ()
    ranks = tuple(sorted(set(result.missing)))
    waiting = sorted({r.stage for r in result.ranks if not finished(r)}, key=_order)
    others = f"the others wait in {', '.join(waiting)}" if waiting else "no other rank waits"
    return (Failure(MISSING, ranks, STAGES[0], f"nothing was heard of them; {others}"),)


def _died(broken: Sequence[RankMeasurement]) -> tuple[Failure, ...]:
    """Ranks with an end of their own: a signal, or an error that is not the loss of a partner."""
    told: dict[tuple[str, str], list[RankMeasurement]] = {}
    for rank in broken:
        words = _own_end(rank)
        if words is not None:
            told.setdefault((rank.stage, words), []).append(rank)
    return tuple(
        Failure(DIED, tuple(sorted(r.rank for r in ranks)), stage, words, evidence=_last_lines(ranks))
        for (stage, words), ranks in sorted(told.items(), key=lambda item: _order(item[0][0]))
    )


def _own_end(rank: RankMeasurement) -> str | None:
    name = signal_name(rank.exit_code)
    if name is not None and name not in STOPPED:
        usual = SIGNALS.get(name)
        told = "" if rank.error is None else f" after {error_words(rank)}"
        return f"killed by {name} (exit {rank.exit_code}){told}" + (f": {usual}" if usual else "")
    if rank.error is not None and not SYMPTOM.search(f"{rank.error.kind} {rank.error.text}"):
        return error_words(rank)
    if rank.error is None and rank.exit_code is not None and name is None:
        return f"exit code {rank.exit_code} without an error"
    return None


def _hung(broken: Sequence[RankMeasurement]) -> tuple[Failure, ...]:
    """Ranks that stand still earlier than the others; all of them where nobody is ahead."""
    still = [r for r in broken if r.hung]
    if not still:
        return ()
    earliest = min(_order(r.stage) for r in broken)
    behind = [r for r in still if _order(r.stage) == earliest]
    if not behind:
        return ()
    stage = behind[0].stage
    doing = sorted({r.detail for r in behind if r.detail})
    where = f"{stage} ({', '.join(doing[:3])})" if doing else stage
    if len(behind) == len(broken):
        words = f"still in {where} at the deadline, and so is every rank that did not finish"
    else:
        words = f"still in {where} at the deadline while others had got further"
    return (Failure(HUNG, tuple(sorted(r.rank for r in behind)), stage, words, evidence=_stacks(behind)),)


def _unexplained(broken: Sequence[RankMeasurement]) -> tuple[Failure, ...]:
    """Only symptoms are left: those of the ranks that came least far."""
    if not broken:
        return ()
    earliest = min(_order(r.stage) for r in broken)
    first = [r for r in broken if _order(r.stage) == earliest]
    words = error_words(first[0]) if first[0].error else "it stopped reporting and left no error"
    ranks = tuple(sorted(r.rank for r in first))
    return (Failure(DIED, ranks, first[0].stage, words, evidence=_last_lines(first)),)


def error_words(rank: RankMeasurement) -> str:
    """The exception in one line: its class and NCCL's last error, or the last line of its text."""
    if rank.error is None:
        return "no error"
    last = LAST_ERROR.search(rank.error.text)
    lines = [x.strip() for x in rank.error.text.splitlines() if x.strip()]
    text = last.group(1) if last else lines[-1] if lines else ""
    said = text[:LONGEST]
    kind = rank.error.kind
    return said if not kind or said.startswith(kind) else f"{kind}: {said}" if said else kind


def signal_name(exit_code: int | None) -> str | None:
    """SIGKILL for -9 (and for the shell's 137); None for a normal exit."""
    if exit_code is None:
        return None
    number = -exit_code if exit_code < 0 else exit_code - 128 if exit_code > 128 else 0
    try:
        return signal.Signals(number).name if number else None
    except ValueError:
        return None


def _order(stage: str) -> int:
    return STAGES.index(stage) if stage in STAGES else 0


def _stage(ranks: Iterable[RankMeasurement], wanted: set[int]) -> str:
    reached = [r.stage for r in ranks if r.rank in wanted]
    return min(reached, key=_order) if reached else STAGES[0]


def _last_lines(ranks: Sequence[RankMeasurement]) -> tuple[str, ...]:
    return tuple(
        f"rank {r.rank}: {r.error.text[-4 * LONGEST :]}" for r in ranks[:2] if r.error and r.error.text
    )


def _stacks(ranks: Sequence[RankMeasurement]) -> tuple[str, ...]:
    return tuple(f"rank {r.rank}: {r.stack[-4 * LONGEST :]}" for r in ranks[:2] if r.stack)
