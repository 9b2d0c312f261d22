"""Who uses the ranks' cores, and what may still be concluded where others do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdp_doctor.checks.probe.slow_links import slow_link
from fsdp_doctor.checks.probe.slow_ranks import slow_compute
from fsdp_doctor.engine.options import Options
from fsdp_doctor.findings import Status
from fsdp_doctor.probe.busy import busy_words, others_share
from fsdp_doctor.probe.verdicts import conclude, recheck
from fsdp_doctor.subjects.fabric import COMPUTE, LINK, Fabric
from fsdp_doctor.subjects.fact import Facts, Known
from fsdp_doctor.subjects.probe import (
    MachineLoad,
    PairTiming,
    ProbePlan,
    ProbeResult,
    RankMeasurement,
    WorkTiming,
)

SIZE = 4 << 20
FAST = 0.001
PAIRS = [(a, b) for a in range(4) for b in range(4) if a != b]


def load(taken: float, own: float, machine: str = "m") -> MachineLoad:
    return MachineLoad(machine, cores=2, seconds=10.0, taken_seconds=taken, own_seconds=own)


def probe(
    taken: float,
    slow: dict[tuple[int, int], float] | None = None,
    work: dict[int, tuple[float, float]] | None = None,
) -> ProbeResult:
    """Four ranks on two cores that take 1 s each in 10 s; all processes together take `taken`.

    `slow`: link -> how many times as slow, in both runs. `work`: rank -> wall seconds and those queued.
    """
    ranks = []
    for rank in range(4):
        wall, queued = (work or {}).get(rank, (0.03, 0.0))
        timed = tuple(
            WorkTiming((wall,) * 10, (0.03,) * 10, run=run, waited_seconds=(queued,) * 10) for run in (0, 1)
        )
        sent = tuple(
            PairTiming(a, b, SIZE, (FAST * (slow or {}).get((a, b), 1.0),) * 5, run=run, alone=run == 1)
            for run in (0, 1)
            for a, b in PAIRS
            if a == rank
        )
        ranks.append(
            RankMeasurement(
                rank, "h", rank, cores=2, work=timed, pairs=sent, load=load(taken, 1.0), stage="done"
            )
        )
    return ProbeResult(4, "gloo", ProbePlan("gloo"), tuple(ranks))


def facts(result: ProbeResult) -> Facts:
    return Facts({ProbeResult: Known(result, "test"), Fabric: Known(conclude(result), "test")})


@pytest.mark.parametrize(("taken", "share"), [(4.0, 0.0), (3.5, 0.0), (14.0, 0.5), (400.0, 1.0)])
def test_what_others_took_is_all_less_the_ranks(taken: float, share: float) -> None:
    assert others_share(probe(taken)) == pytest.approx(share)


def test_ranks_of_one_machine_are_added_and_machines_kept_apart() -> None:
    made = probe(14.0)
    apart = replace(made, ranks=tuple(replace(r, load=load(2.0, 1.0, f"m{r.rank}")) for r in made.ranks))
    assert others_share(apart) == pytest.approx(0.05)
    assert others_share(replace(made, ranks=tuple(replace(r, load=None) for r in made.ranks))) is None


def test_a_machine_that_its_ranks_fill_is_not_busy() -> None:
    made = probe(20.0)
    full = replace(made, ranks=tuple(replace(r, load=load(20.0, 4.9)) for r in made.ranks))
    assert busy_words(full) == "" and busy_words(made) != ""
    assert busy_words(replace(made, device="cuda")) == ""


def test_without_the_kernels_count_the_wait_for_cores_tells() -> None:
    def waiting(times: float) -> ProbeResult:
        made = probe(4.0, work=dict.fromkeys(range(4), (0.03 * times, 0.0)))
        return replace(made, ranks=tuple(replace(r, load=None) for r in made.ranks))

    assert busy_words(waiting(2.0)) == "", "four ranks on two cores wait as long as they compute"
    assert "waited for a core" in busy_words(waiting(4.0))


def test_a_link_a_little_slow_is_accused_on_a_quiet_machine_and_not_on_a_busy_one() -> None:
    little = {(1, 2): 2.4}
    (quiet,) = conclude(probe(4.0, little)).culprits
    assert (quiet.kind, quiet.fails) == (LINK, True)
    found = conclude(probe(18.0, little))
    assert found.culprits == ()
    assert [(c.kind, c.source, c.target) for c in found.undecided] == [(LINK, 1, 2)]
    (said,) = slow_link.judge(facts(probe(18.0, little)), Options())
    assert said.status is Status.SKIP and "cannot tell: this machine is busy" in said.found


def test_a_link_far_slower_is_accused_on_a_busy_machine_too() -> None:
    (named,) = conclude(probe(18.0, {(1, 2): 12.0})).culprits
    assert (named.kind, named.source, named.target, named.fails) == (LINK, 1, 2, True)


def test_a_wait_counted_around_the_work_accuses_nobody() -> None:
    made = probe(18.0, work={0: (0.3, 0.31), 2: (0.3, 0.31), 3: (0.3, 0.31)})
    assert conclude(made).culprits == ()


def test_on_a_busy_machine_time_in_the_queue_accuses_nobody() -> None:
    unlucky = probe(18.0, work={1: (0.3, 0.27)})
    assert conclude(unlucky).culprits == ()
    (said,) = slow_compute.judge(facts(unlucky), Options())
    assert said.status is Status.SKIP
    stopped = probe(18.0, work={1: (0.3, 0.0), 0: (0.3, 0.27), 2: (0.3, 0.27), 3: (0.3, 0.27)})
    (named,) = conclude(stopped).culprits
    assert (named.kind, named.ranks, named.fails) == (COMPUTE, (1,), True)
    assert recheck(stopped).work, "what only a busy machine's measure suspects is repeated as well"
