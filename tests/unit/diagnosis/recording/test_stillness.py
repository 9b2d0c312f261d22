"""When a job counts as hanging."""

from __future__ import annotations

import itertools
from dataclasses import replace

from fixtures.cases.live import LOADER, PACK, REDUCE, rank
from fsdp_doctor.diagnosis.recording.stillness import GAP, Step, Stillness
from fsdp_doctor.subjects.stacks import LiveJob, RankProcess


def job(*processes: RankProcess) -> LiveJob:
    return LiveJob("node-a", "7", processes)


WAITING = job(rank(0, REDUCE), rank(1, REDUCE), rank(2, PACK, moving=True))
COMPUTING = job(rank(0, PACK), rank(1, PACK))


def until_look(still: Stillness, start: float, output: int) -> float:
    now = start
    while still.tick(now, output) is Step.WAIT:
        now += 1.0
        assert now < start + 1000
    return now


def looks(still: Stillness, seen: LiveJob, start: float, count: int) -> list[bool]:
    found, now = [], start
    for _ in range(count):
        now = until_look(still, now, 0)
        found.append(still.looked(seen, now))
    return found


def test_output_puts_it_off() -> None:
    still = Stillness(60.0, 0.0)
    for second in range(300):
        assert still.tick(float(second), second // 50) is Step.WAIT


def test_a_look_comes_after_the_quiet_time() -> None:
    assert until_look(Stillness(60.0, 0.0), 0.0, 0) == 60.0


def test_ranks_that_stand_still_at_three_looks_hang() -> None:
    assert looks(Stillness(60.0, 0.0), WAITING, 0.0, 3) == [False, False, True]


def test_a_rank_that_moves_in_its_own_code_is_no_sign_of_life() -> None:
    still = Stillness(60.0, 0.0)
    found, now = [], 0.0
    for line in (12, 13, 14):
        frames = (replace(PACK[0], line=line),)
        now = until_look(still, now, 0)
        found.append(still.looked(job(rank(0, REDUCE), rank(1, frames)), now))
    assert found == [False, False, True]


def test_a_waiting_rank_that_is_elsewhere_at_the_next_look_is_one() -> None:
    still = Stillness(60.0, 0.0)
    found, now = [], 0.0
    for line in (41, 42, 43, 44, 45):
        frames = (replace(REDUCE[0], line=line), *REDUCE[1:])
        now = until_look(still, now, 0)
        found.append(still.looked(job(rank(0, frames), rank(1, frames)), now))
    assert found == [False] * 5


def test_ranks_that_all_compute_do_not_hang() -> None:
    assert looks(Stillness(60.0, 0.0), COMPUTING, 0.0, 5) == [False] * 5


def test_ranks_that_all_load_data_do() -> None:
    assert looks(Stillness(60.0, 0.0), job(rank(0, LOADER), rank(1, LOADER)), 0.0, 3)[-1]


def test_a_stopped_rank_hangs_without_a_stack() -> None:
    assert looks(Stillness(60.0, 0.0), job(rank(0, (), state="T")), 0.0, 3)[-1]


def test_nothing_is_concluded_without_ranks() -> None:
    still = Stillness(60.0, 0.0)
    now = until_look(still, 0.0, 0)
    assert not still.looked(None, now)
    assert until_look(still, now, 0) >= now + 60.0


def test_reports_become_rare_and_end() -> None:
    still = Stillness(60.0, 0.0)
    times = [t for t in range(20000) if still.tick(t, 0) is Step.LOOK and still.looked(WAITING, t)]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert len(times) == 4 and gaps == sorted(gaps) and gaps[-1] > 400


def test_output_after_a_hang_begins_anew() -> None:
    still = Stillness(60.0, 0.0)
    assert looks(still, WAITING, 0.0, 3)[-1]
    still.tick(still.now + 1.0, 5)
    assert still.reports == 0
    assert still.tick(still.now + 1.0, 5) is Step.WAIT


def test_a_clock_that_jumped_is_no_quiet_time() -> None:
    still = Stillness(60.0, 0.0)
    still.tick(1.0, 0)
    assert still.tick(1.0 + GAP + 3600.0, 0) is Step.WAIT
    assert still.quiet == 0.0


def test_what_ranks_say_when_they_are_asked_is_no_sign_of_life() -> None:
    still = Stillness(60.0, 0.0)
    assert looks(still, WAITING, 0.0, 3)[-1]
    still.excuse(still.now + 5.0)
    still.tick(still.now + 1.0, 80)
    assert still.reports == 1, "torch says that it writes its recorder"
    still.tick(still.now + 6.0, 80)
    assert still.reports == 1
    still.tick(still.now + 1.0, 90)
    assert still.reports == 0
