"""Ranks on the hosts of a small cluster of network namespaces: each fault is found and its host named."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import ETC, Cluster, why_not
from tests.support.ranks import Ended, Ranks, results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
CHECK = ("check", "--format", "json", "--select", "RNK,NET,HST001", "--deadline", "60")
NO_NEW_CONNECTIONS = "tcp dport 32768-60999 tcp flags & (syn|ack) == syn drop"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no network namespaces: {reason}")
    yield
    mine = f"fsd{os.getpid()}"
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=30, check=True)
    assert mine not in listed.stdout
    assert not ETC.is_dir() or not [p for p in ETC.iterdir() if p.name.startswith(mine)]


def job(cluster: Cluster, folder: Path, world: int) -> Ranks:
    """Ranks in turn on the hosts of the cluster: the first half on the first host."""
    each = -(-world // len(cluster.hosts))
    prefix = {r: cluster.enter(cluster.hosts[r // each]) for r in range(world)}
    return Ranks(folder, world, prefix, cluster.address(cluster.hosts[0]))


def all_together(cluster: Cluster, folder: Path, world: int, *words: str, **env: str) -> Ended:
    with job(cluster, folder, world) as ranks:
        for rank in reversed(range(world)):
            ranks.start(rank, *CHECK, *words, **env)
        first = ranks.end(0)
        for rank in range(1, world):
            other = ranks.end(rank)
            assert (other.code, other.out) == (first.code, ""), other.err
    return first


def failed(ended: Ended) -> dict[str, dict[str, object]]:
    found = ended.report["results"]
    assert isinstance(found, list)
    return {r["code"]: r for r in found if r["status"] in ("fail", "error") and r["code"].startswith("RNK")}


def host_of(result: dict[str, object]) -> object:
    subject = result["subject"]
    assert isinstance(subject, dict)
    return subject["host"]


def test_two_healthy_hosts_that_share_a_checkpoint_folder(tmp_path: Path) -> None:
    ckpt = tmp_path / "ckpt"
    ckpt.mkdir()
    with Cluster(tmp_path, ("node-a", "node-b")) as cluster:
        ended = all_together(cluster, tmp_path, 4, "--ckpt", str(ckpt))
    assert failed(ended) == {}
    report = ended.report
    for code in ("RNK001", "RNK040", "RNK041", "RNK050", "RNK051", "RNK052", "RNK053", "RNK070"):
        assert [r["status"] for r in results(report, code)] == ["pass"], code
    assert "see each other's files" in str(results(report, "RNK070")[0]["found"])
    assert "node-a eth0 (10.77.0.1), node-b eth0 (10.77.0.2)" in str(results(report, "RNK051")[0]["found"])
    assert list(ckpt.iterdir()) == []


def test_a_firewall_and_a_checkpoint_folder_of_its_own(tmp_path: Path) -> None:
    reason = why_not(firewall=True)
    if reason is not None:
        pytest.skip(f"no firewall: {reason}")
    ckpt, other = tmp_path / "ckpt", tmp_path / "other"
    ckpt.mkdir()
    other.mkdir()
    with Cluster(tmp_path, ("node-a", "node-b", "node-c")) as cluster:
        cluster.firewall("node-b", NO_NEW_CONNECTIONS)
        cluster.mount("node-c", ckpt, other)
        ended = all_together(cluster, tmp_path, 3, "--ckpt", str(ckpt))
    found = failed(ended)
    assert set(found) == {"RNK050", "RNK070"}
    assert host_of(found["RNK050"]) == "node-b"
    said = str(found["RNK050"]["found"])
    assert "node-a -> node-b (timed out), node-c -> node-b (timed out)" in said
    assert "only MASTER_PORT is open" in said
    assert "node-c does not see the file of node-a, node-b" in str(found["RNK070"]["found"])
    assert list(ckpt.iterdir()) == list(other.iterdir()) == []


def test_a_bridge_for_nccl_on_one_host_and_a_loopback_name_on_the_other(tmp_path: Path) -> None:
    with Cluster(tmp_path, ("node-a", "node-b")) as cluster:
        cluster.bridge("node-b", "docker0", "172.17.0.1/16")
        cluster.resolve("node-a", "node-a", "127.0.1.1")
        with job(cluster, tmp_path, 2) as ranks:
            ranks.start(1, *CHECK, NCCL_SOCKET_IFNAME="docker0")
            ranks.start(0, *CHECK)
            ended, other = ranks.end(0), ranks.end(1)
    assert (ended.code, other.code) == (1, 1), other.err
    found = failed(ended)
    assert set(found) == {"RNK051", "RNK052"}
    assert host_of(found["RNK051"]) == "node-b"
    said = str(found["RNK051"]["found"])
    assert "docker0 (172.17.0.1)" in said and "10.77.0.2 of the same host answers" in said
    assert host_of(found["RNK052"]) == "node-a"
    assert "127.0.1.1" in str(found["RNK052"]["found"])


def test_a_host_of_the_node_list_is_absent(tmp_path: Path) -> None:
    with Cluster(tmp_path, ("node-a", "node-b", "node-c")) as cluster, job(cluster, tmp_path, 3) as ranks:
        for rank in (1, 0):
            ranks.start_step(rank, ",".join(cluster.hosts), *CHECK, "--wait", "15")
        ended, other = ranks.end(0), ranks.end(1)
    assert (ended.code, other.code) == (1, 1), other.err
    found = failed(ended)
    assert set(found) == {"RNK001"}
    assert host_of(found["RNK001"]) == "node-c"
    assert "rank 2 on node-c is missing: 2 of 3 ranks reported" in str(found["RNK001"]["found"])
