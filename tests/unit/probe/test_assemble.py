"""From journals and ends to one result."""

from __future__ import annotations

import json
from pathlib import Path

from fsdp_doctor.probe.assemble import Ending, assemble
from fsdp_doctor.probe.failures import failures
from fsdp_doctor.probe.journals import Journal
from fsdp_doctor.subjects.fabric import DIED, HUNG, MISSING
from fsdp_doctor.subjects.probe import ProbePlan, ProbeResult

PLAN = ProbePlan("gloo")


def journals(folder: Path, *stages: str | None, error: dict[int, str] | None = None) -> list[Journal]:
    found = []
    for rank, stage in enumerate(stages):
        lines: list[object] = [] if stage is None else [{"stage": stage, "detail": "", "at": 0.0}]
        if error and rank in error:
            lines.append({"error": {"kind": "RuntimeError", "text": error[rank]}})
        if lines:
            (folder / f"rank-{rank}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        found.append(Journal(folder, rank))
        found[-1].poll()
    return found


def result(made: list[Journal], **endings: Ending) -> ProbeResult:
    by_rank = {e.rank: e for e in endings.values()}
    return assemble(PLAN, made, [by_rank.get(j.rank, Ending(j.rank)) for j in made], device="cpu")


def test_a_killed_rank_is_the_cause(tmp_path: Path) -> None:
    made = journals(tmp_path, "sweep", "sweep", error={0: "Connection reset by peer"})
    (cause,) = failures(result(made, a=Ending(1, exit_code=-9)))
    assert (cause.kind, cause.ranks, cause.victims) == (DIED, (1,), (0,)) and "SIGKILL" in cause.words


def test_a_rank_that_waits_is_no_suspect(tmp_path: Path) -> None:
    made = journals(tmp_path, "sweep", "sweep", "sweep", error={0: "Timed out waiting 8000ms for recv"})
    endings = {
        "still": Ending(1, hung=True, ended_itself=False, state="T"),
        "waits": Ending(2, waiting=True, ended_itself=False, exit_code=-9),
    }
    (cause,) = failures(result(made, **endings))
    assert (cause.kind, cause.ranks, cause.victims) == (HUNG, (1,), (0, 2)) and "SIGSTOP" in cause.words


def test_a_rank_that_never_began_is_missing(tmp_path: Path) -> None:
    made = journals(tmp_path, "rendezvous", None, error={0: "wait timeout after 8000ms"})
    (cause,) = failures(result(made, a=Ending(1, exit_code=-15)))
    assert (cause.kind, cause.ranks) == (MISSING, (1,))


def test_ranks_ended_before_they_began_do_not_hide_the_one_that_died(tmp_path: Path) -> None:
    made = journals(tmp_path, None, None, None)
    ends = {
        "a": Ending(0, exit_code=-15),
        "b": Ending(1, exit_code=7, output="no such module"),
        "c": Ending(2, exit_code=-15),
    }
    found = result(made, **ends)
    (cause,) = failures(found)
    assert (cause.kind, cause.ranks, cause.victims) == (DIED, (1,), (0, 2))
    assert "no such module" in cause.words and found.missing == ()


def test_a_healthy_end(tmp_path: Path) -> None:
    made = journals(tmp_path, "done", "done")
    found = result(made)
    assert failures(found) == () and found.missing == () and found.silent == ()
