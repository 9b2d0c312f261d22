"""Probes joined over the hosts of a small cluster of network namespaces: a slow adapter and a slow way between two
hosts are found and named, and healthy hosts are not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import ETC, Cluster, why_not
from tests.support.ranks import Ranks

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
HOSTS = ("node-a", "node-b", "node-c")
RATE = "800mbit"
PROBE = ("probe", "--backend", "gloo", "--profile", "quick", "--format", "json", "--deadline", "150")


def left_behind() -> list[str]:
    mine = f"fsd{os.getpid()}"
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=30, check=True)
    found = [line for line in listed.stdout.splitlines() if line.startswith(mine)]
    return found + [p.name for p in (ETC.iterdir() if ETC.is_dir() else ()) if p.name.startswith(mine)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = why_not() or (None if shutil.which("tc") else "tc not installed")
    if reason is not None:
        pytest.skip(f"no network namespaces: {reason}")
    with Cluster(tmp_path_factory.mktemp("cluster"), HOSTS) as made:
        yield made
    assert left_behind() == []


def probed(cluster: Cluster, folder: Path, hosts: tuple[str, ...], each: int = 1) -> dict[str, list[dict]]:
    """The findings by code of a probe with so many ranks on each of the hosts; all ranks end alike."""
    world = each * len(hosts)
    prefix = {r: cluster.enter(hosts[r // each]) for r in range(world)}
    with Ranks(folder, world, prefix, cluster.address(hosts[0])) as ranks:
        for rank in reversed(range(world)):
            own = {"LOCAL_RANK": str(rank % each), "LOCAL_WORLD_SIZE": str(each), "OMP_NUM_THREADS": "1"}
            ranks.start(rank, *PROBE, **own)
        first = ranks.end(0, 200)
        for rank in range(1, world):
            other = ranks.end(rank)
            assert (other.code, other.out) == (first.code, ""), other.err
    assert first.out, first.err
    data = first.report["data"]
    assert isinstance(data, dict)
    assert [r["stage"] for r in data["ranks"]] == ["done"] * world, data["ranks"]
    assert [r["host"] for r in data["ranks"]] == [h for h in hosts for _ in range(each)]
    found: dict[str, list[dict]] = {}
    for result in first.report["results"]:  # type: ignore[attr-defined]
        found.setdefault(result["code"], []).append(result)
    assert first.code == (1 if accused(found) else 0)
    return found


def accused(found: dict[str, list[dict]]) -> dict[str, list[dict]]:
    bad = {c: [r for r in results if r["status"] in ("fail", "error")] for c, results in found.items()}
    return {c: results for c, results in bad.items() if results}


def test_healthy_hosts_with_two_ranks_each_name_nobody(cluster: Cluster, tmp_path: Path) -> None:
    found = probed(cluster, tmp_path, HOSTS[:2], each=2)
    assert accused(found) == {}
    for code in ("PRB001", "PRB006", "PRB007", "PRB008", "PRB009", "PRB010", "PRB011", "PRB019"):
        assert [r["status"] for r in found[code]] == ["pass"], found[code]


def test_a_slow_adapter_is_named_with_its_host(cluster: Cluster, tmp_path: Path) -> None:
    cluster.slow_nic("node-b", RATE)
    try:
        bad = accused(probed(cluster, tmp_path, HOSTS))
    finally:
        cluster.mend()
    assert set(bad) == {"PRB008"}
    (one,) = bad["PRB008"]
    assert (one["subject"]["rank"], one["subject"]["host"]) == (1, "node-b")
    assert "rank 1 (node-b)" in one["found"] and "between nodes" in one["found"]


def test_a_slow_way_between_two_hosts_is_named_with_its_direction(cluster: Cluster, tmp_path: Path) -> None:
    cluster.slow_way("node-c", "node-a", RATE)
    try:
        bad = accused(probed(cluster, tmp_path, HOSTS))
    finally:
        cluster.mend()
    assert set(bad) == {"PRB009"}
    (one,) = bad["PRB009"]
    assert one["subject"]["rank"] == [0, 2] and one["subject"]["host"] == "node-a,node-c"
    assert "slow link 2 -> 0: rank 2 (node-c) to rank 0 (node-a)" in one["found"]


def test_a_cluster_is_taken_down_after_a_failure(cluster: Cluster, tmp_path: Path) -> None:
    class Failure(Exception):
        pass

    before = left_behind()
    other = Cluster(tmp_path, ("node-x", "node-y"))
    other._prefix += "x"
    with pytest.raises(Failure), other:
        other.slow_nic("node-x", RATE)
        other.slow_way("node-x", "node-y", RATE)
        sleeper = [*other.enter("node-x"), "sh", "-c", "echo there; exec sleep 300"]
        process = subprocess.Popen(sleeper, stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        process.send_signal(signal.SIGSTOP)
        raise Failure
    process.stdout.close()
    assert process.wait(20) != 0
    assert sorted(left_behind()) == sorted(before)
