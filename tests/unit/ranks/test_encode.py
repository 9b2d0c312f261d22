"""Digests and results over the wire, and results of many ranks kept once."""

from __future__ import annotations

import json

import pytest

from fixtures import machines
from fixtures.memory import rank_set
from fsdp_doctor.codec import FormatError
from fsdp_doctor.findings import Fix, Result, Row, Status, Subject
from fsdp_doctor.ranks.encode import (
    Findings,
    digest_from_json,
    digest_to_json,
    results_to_json,
)
from fsdp_doctor.ranks.recordings import JobFiles, pack_files, unpack_files
from fsdp_doctor.subjects.network import Interface
from fsdp_doctor.subjects.rank_set import RankDigest


def result(
    found: str, *, host: str = "a", rank: int | None = 0, status: Status = Status.FAIL, **more: object
) -> Result:
    return Result(
        "GPU001", "t", Row.NCCL, status, Subject(host=host, rank=rank, **more), found, fix=Fix("Do it")
    )  # type: ignore[arg-type]


def test_a_real_digest_comes_back() -> None:
    for digest in rank_set(machines.two_nodes()).ranks:
        sent = json.loads(json.dumps(digest_to_json(digest), allow_nan=False))
        back = digest_from_json(sent, digest.rank)
        assert back.dists == digest.dists and back.gpu == digest.gpu and back.adapters == digest.adapters
        assert [i.name for i in back.interfaces] == [i.name for i in digest.interfaces]


def test_a_rank_cannot_speak_for_another() -> None:
    assert digest_from_json({"rank": 0, "host": "x"}, 5).rank == 5


def test_interfaces_without_addresses_go_first_where_there_are_too_many() -> None:
    many = tuple(Interface(f"veth{i}", ifindex=i) for i in range(500))
    digest = RankDigest(0, interfaces=(*many, Interface("eth0", ("10.0.0.1/24",), ifindex=900)))
    sent = digest_from_json(digest_to_json(digest), 0)
    assert len(sent.interfaces) == 64 and sent.interfaces[-1].name == "eth0"


def test_equal_results_of_many_ranks_are_one_per_host() -> None:
    found = Findings()
    for host, ranks in (("a", (1, 2)), ("b", (3,))):
        for rank in ranks:
            texts = results_to_json(
                [result("bad", host=host, rank=rank), result(f"own {rank}", host=host, rank=rank)], host, rank
            )
            found.add(host, rank, texts)
    told = [(r.found, r.subject.host, r.subject.rank) for group in found.by_host() for r in group]
    assert told == [
        ("bad", "a", (1, 2)),
        ("own 1", "a", 1),
        ("own 2", "a", 2),
        ("bad", "b", 3),
        ("own 3", "b", 3),
    ]


def test_what_a_result_says_of_itself_stays() -> None:
    found = Findings()
    found.add("a", 1, results_to_json([result("x", host="switch-1", rank=None, gpu=3)], "a", 1))
    ((told,),) = found.by_host()
    assert (told.subject.host, told.subject.rank, told.subject.gpu) == ("switch-1", 1, 3)
    assert told.fix == Fix("Do it")


@pytest.mark.parametrize(
    "texts", [None, {}, [3], ["{"], ['{"code": 1}'], ["[]"], ["[" * 100_000], ["{}"] * 5000]
)
def test_results_that_are_none(texts: object) -> None:
    found = Findings()
    with pytest.raises(FormatError):
        found.add("a", 1, texts)
    assert list(found.by_host()) in ([], [()]) or all(not g for g in found.by_host())


def test_recordings_of_a_job() -> None:
    files = {"manifest.json": b"{}", "root/proc/version": b"\0\xff", "root/empty/": b""}
    whole = JobFiles({"manifest.json": b"{0}"})
    for rank in (1, 10, 2):
        whole.add(rank, pack_files({**files, "env.json": str(rank).encode()}))
    assert whole.ranks == (1, 2, 10)
    assert whole["ranks/10/env.json"] == b"10" and whole["ranks/2/root/proc/version"] == b"\0\xff"
    assert whole["manifest.json"] == b"{0}"
    assert len(whole) == 1 + 3 * 4 == len(list(whole))


@pytest.mark.parametrize(
    "files",
    [
        {"x": b""},
        {"manifest.json": b"", "../evil": b""},
        {"manifest.json": b"", "/etc/passwd": b""},
        {"manifest.json": b"", "a/../../b": b""},
        {"manifest.json": b"", "a" * 300: b""},
        {"manifest.json": b"", "": b""},
    ],
)
def test_names_that_no_recording_has(files: dict[str, bytes]) -> None:
    with pytest.raises(FormatError):
        unpack_files(pack_files(files))


@pytest.mark.parametrize("packed", [None, 3, "", "!!", "AAAA", "é"])
def test_what_is_no_recording(packed: object) -> None:
    with pytest.raises(FormatError):
        JobFiles({}).add(1, packed)
