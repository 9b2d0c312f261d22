"""Ranks that say the same become one result; nothing that differs is lost."""

from __future__ import annotations

from dataclasses import replace

from fsdp_doctor.engine.merge import PASS_VARIANTS, Merger
from fsdp_doctor.findings import Result, Row, Status, Subject


def result(found: str, rank: int, host: str | None = "a", **more: object) -> Result:
    subject = Subject(host=host, rank=rank)
    base = Result("GPU001", "t", Row.NCCL, Status.FAIL, subject, found, seconds=1.0)
    return replace(base, **more)  # type: ignore[arg-type]


def merged(*ranks: list[Result], node_scoped: tuple[str, ...] = ("GPU001",)) -> tuple[Result, ...]:
    merger = Merger(frozenset(node_scoped))
    for results in ranks:
        merger.add(results)
    return merger.results()


def test_same_on_two_hosts() -> None:
    (one,) = merged([result("x", 2, "b")], [result("x", 0)], [result("x", 1)])
    assert (one.subject, one.seconds) == (Subject(host="a,b", rank=(0, 1, 2)), 3.0)


def test_one_rank_stays_a_number() -> None:
    assert merged([result("x", 4)]) == (result("x", 4),)


def test_rank_tuples_are_joined() -> None:
    pair = result("x", 0, subject=Subject(host="a", rank=(2, 3)))
    assert merged([pair], [result("x", 0)])[0].subject.rank == (0, 2, 3)


def test_different_gpu_status_or_fix_stays_apart() -> None:
    other = replace(result("x", 1), subject=Subject(host="a", rank=1, gpu=3))
    assert len(merged([result("x", 0)], [other], [result("x", 2, status=Status.WARN)])) == 3


def test_moving_figures_of_one_host_are_one_fault() -> None:
    (one,) = merged([result("501.2 GiB free", 0)], [result("501.1 GiB free", 1)])
    assert (one.found, one.subject.rank) == ("501.2 GiB free", (0, 1))


def test_figures_of_other_hosts_and_of_ranks_stay() -> None:
    assert len(merged([result("3 down", 0)], [result("4 down", 1, "b")])) == 2
    assert len(merged([result("rank 3", 0)], [result("rank 4", 1)], node_scoped=())) == 2
    variables = [[result(f"V={n}", n, subject=Subject(host="a", rank=n, variable="V"))] for n in (1, 2)]
    assert len(merged(*variables)) == 2
    assert len(merged([result("3 down", 0, None)], [result("4 down", 1, None)])) == 2


def test_two_findings_of_one_rank_stay_two() -> None:
    results = merged([result("port 1 down", 0), result("port 2 down", 0)], [result("port 1 down", 1)])
    assert [(r.found, r.subject.rank) for r in results] == [("port 1 down", (0, 1)), ("port 2 down", 0)]


def test_many_wordings_of_a_pass_are_bounded() -> None:
    results = merged(*[[result(f"{n} MHz", n, f"h{n}", status=Status.PASS)] for n in range(100)])
    assert len(results) == PASS_VARIANTS + 1
    assert results[-1].found == "92 more passes that differ in their figures, such as: 8 MHz"
    assert sum(1 if isinstance(r.subject.rank, int) else len(r.subject.rank or ()) for r in results) == 100
    failures = merged(*[[result(f"{n} MHz", n, f"h{n}")] for n in range(100)])
    assert len(failures) == 100


def test_suppressed_and_order() -> None:
    results = merged([result("x", 0), result("x", 0, code="ENV001"), result("x", 0, suppressed="known")])
    assert [(r.code, r.suppressed) for r in results] == [
        ("ENV001", None),
        ("GPU001", None),
        ("GPU001", "known"),
    ]


def test_a_list_as_gpu_does_no_harm() -> None:
    odd = result("x", 0, subject=Subject(gpu=[1, 2]))  # type: ignore[arg-type]
    assert len(merged([odd], [odd])) == 1
