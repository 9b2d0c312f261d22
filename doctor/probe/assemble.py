"""From the ranks' journals and ends to one `ProbeResult`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fsdp_doctor.probe.journals import Journal
from fsdp_doctor.probe.nccl_log import transports
from fsdp_doctor.probe.settle import state_words
from fsdp_doctor.subjects.probe import ProbePlan, ProbeResult, RankError, RankMeasurement, Transports

LOG_LIMIT = 256 << 10
LOGS = 8
"""Logs of NCCL that are read: ranks of one job say the same."""
ENDED = -15
"""What a launcher sends to the ranks that are left."""
SILENT = (0, -9, ENDED)
"""Exit codes of processes that could not say a word about their end."""
TAKEN_ALONG = RankError("SIGTERM", "ended by the launcher before it began: a remote process exited")


@dataclass(frozen=True, slots=True)
class Ending:
    """What was seen of a rank's process when the probe ended."""

    rank: int
    hung: bool = False
    waiting: bool = False
    """It was running, and waited for others."""
    ended_itself: bool = True
    """Nobody had to end it."""
    state: str | None = None
    where: str | None = None
    stack: str | None = None
    exit_code: int | None = None
    output: str = ""
    """The end of what the launcher heard of its ranks, where a rank began no journal."""


def assemble(
    plan: ProbePlan,
    journals: Sequence[Journal],
    endings: Sequence[Ending],
    *,
    device: str,
    deadline_passed: bool = False,
    environment: Mapping[str, str] | None = None,
    seconds: float = 0.0,
    logs: Path | None = None,
) -> ProbeResult:
    """The result; ranks without a line in their journal are missing, unless their process's end is known."""
    by_rank = {e.rank: e for e in endings}
    ranks = [measured(j, by_rank.get(j.rank, Ending(j.rank))) for j in journals]
    told = [r for r, j in zip(ranks, journals, strict=True) if j.begun or r.exit_code not in (None, ENDED)]
    if any(r.exit_code not in (None, 0, ENDED) for r in told):
        # Ranks that a launcher ends because of another one's death are not missing.
        early = [r for r in ranks if r not in told and r.exit_code == ENDED]
        told += [replace(r, exit_code=None, error=TAKEN_ALONG) for r in early]
        told.sort(key=lambda r: r.rank)
    absent = {j.rank for j in journals} - {r.rank for r in told}
    silent = tuple(
        j.rank for j in journals if j.begun and not j.done and j.error is None and j.rank not in absent
    )
    fields = next((j.fields for j in journals if "torch" in j.fields), {})
    nccl = next((j.fields["nccl"] for j in journals if "nccl" in j.fields), None)
    return ProbeResult(
        world_size=len(journals),
        backend=plan.backend,
        plan=plan,
        ranks=tuple(told),
        missing=tuple(sorted(absent)),
        silent=silent,
        device=device,
        transports=_transports(logs),
        environment=environment or {},
        torch=str(fields["torch"]) if "torch" in fields else None,
        nccl=str(nccl) if nccl is not None else None,
        seconds=seconds,
        deadline_passed=deadline_passed,
        skipped=tuple(dict.fromkeys(s for j in journals for s in j.skipped)),
    )


def measured(journal: Journal, ending: Ending) -> RankMeasurement:
    """One rank with its end. A rank that waited for others says so itself, so that it is not accused."""
    error = journal.error
    detail = journal.detail
    if ending.hung:
        said = state_words(ending.state, ending.where)
        detail = f"{detail}; {said}" if detail and said else detail or said
    elif ending.waiting and error is None:
        doing = f"{journal.stage}: {detail}" if detail else journal.stage
        error = RankError("Waiting", f"timed out waiting for other ranks in {doing}")
    elif (
        error is None and not journal.done and ending.exit_code is not None and ending.exit_code not in SILENT
    ):
        log = journal.log() or ending.output
        error = RankError("", log) if log else None
    return journal.measurement(
        error=error, detail=detail, hung=ending.hung, stack=ending.stack, exit_code=_code(ending, journal)
    )


def _code(ending: Ending, journal: Journal) -> int | None:
    """The exit code where it tells something: not of a rank that was ended, or that its watchdog ended."""
    if ending.hung or not ending.ended_itself:
        return None
    if journal.error is not None and ending.exit_code is not None and ending.exit_code >= 0:
        return None
    return ending.exit_code


def _transports(folder: Path | None) -> Transports | None:
    texts = []
    for path in sorted(folder.glob("nccl-*.log"))[:LOGS] if folder is not None else ():
        try:
            with path.open("rb") as file:
                texts.append(file.read(LOG_LIMIT).decode("utf-8", "replace"))
        except OSError:
            continue
    return transports(texts)
