"""Which pairs of ranks try to connect, and what a try says."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp_doctor.ranks import wire
from fsdp_doctor.ranks.listener import Listener
from fsdp_doctor.ranks.ports import listen
from fsdp_doctor.ranks.reach import (
    ALL_PAIRS,
    MASTER,
    PER_HOST_PAIR,
    SAMPLE,
    Target,
    attempt,
    own_addresses,
    pairs,
    reachable_elsewhere,
)
from fsdp_doctor.subjects.network import Interface
from fsdp_doctor.tables.rank_facts import REFUSED, SILENT

KEY = wire.secret("t", "j", 1)


@contextmanager
def listener(rank: int, key: bytes = KEY) -> Iterator[Listener]:
    made = Listener(key, rank)
    made.start()
    try:
        yield made
    finally:
        made.close()
        assert not made.is_alive()


def test_a_rank_that_listens_is_reached() -> None:
    with listener(2) as two:
        assert attempt(0, [Target(2, ("127.0.0.1",), two.port)], KEY, 6.0) == ()


def test_many_at_once() -> None:
    with listener(2) as two, listener(3) as three:
        own = {2: two.port, 3: three.port}
        targets = [Target(r, (f"127.0.0.{i}",), p) for r, p in own.items() for i in range(1, 60)]
        assert attempt(0, targets, KEY, 6.0) == ()


@pytest.mark.parametrize(
    ("rank", "key", "words"), [(5, KEY, "another rank"), (2, wire.secret("u", "j", 1), "another job")]
)
def test_somebody_else_answers(rank: int, key: bytes, words: str) -> None:
    with listener(rank, key) as other:
        (lost,) = attempt(0, [Target(2, ("127.0.0.1",), other.port)], KEY, 6.0)
        assert (lost.source, lost.target, lost.port) == (0, 2, other.port)
        assert words in lost.reason


def test_nobody_answers() -> None:
    free = listen((0,))
    port = int(free.getsockname()[1])
    free.close()
    (lost,) = attempt(0, [Target(2, ("127.0.0.1",), port)], KEY, 2.0)
    assert lost.reason == REFUSED and lost.reached_at is None


def test_another_address_of_the_target_answers() -> None:
    with listener(2) as two:
        (lost,) = attempt(0, [Target(2, ("127.0.0.99", "127.0.0.1"), two.port)], KEY, 6.0) or (None,)
        assert lost is None or lost.reached_at == "127.0.0.1"  # the loopback has every 127 address
        (lost,) = attempt(0, [Target(2, ("nonsense", "127.0.0.1"), two.port)], KEY, 6.0)
        assert lost is not None and lost.address == "nonsense" and lost.reached_at == "127.0.0.1"


def test_a_store_that_only_accepts_is_enough_for_master_port() -> None:
    store = listen((0,))
    port = int(store.getsockname()[1])
    try:
        assert attempt(1, [Target(0, ("127.0.0.1",), port, MASTER)], KEY, 2.0) == ()
        (lost,) = attempt(1, [Target(0, ("127.0.0.1",), port)], KEY, 2.0)
        assert lost.reason == SILENT
    finally:
        store.close()


def test_a_target_without_addresses_is_left_out() -> None:
    assert attempt(0, [Target(2, (), 1)], KEY, 2.0) == ()


def test_a_listener_survives_guests_that_talk_nonsense() -> None:
    with listener(2) as two:
        for data in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 500, b"0" * 64):
            with socket.create_connection(("127.0.0.1", two.port), timeout=5.0) as guest:
                guest.sendall(data)
        assert attempt(0, [Target(2, ("127.0.0.1",), two.port)], KEY, 6.0) == ()


HOSTS = st.lists(st.integers(1, 8), min_size=1, max_size=12).map(
    lambda sizes: {
        rank: f"h{host}" for rank, host in enumerate(h for h, n in enumerate(sizes) for _ in range(n))
    }
)


@settings(deadline=None)
@given(HOSTS)
def test_small_jobs_try_every_pair_of_hosts_a_few_times(hosts: dict[int, str]) -> None:
    chosen = pairs(hosts)
    assert set(chosen) == set(hosts)
    tries: dict[tuple[str, str], int] = {}
    for rank, targets in chosen.items():
        assert rank not in targets and len(set(targets)) == len(targets)
        for t in targets:
            way = hosts[rank], hosts[t]
            tries[way] = tries.get(way, 0) + 1
    names = set(hosts.values())
    if len(hosts) <= ALL_PAIRS:
        ways = {(a, b) for a in names for b in names if a != b}
        assert ways <= set(tries)
        assert all(tries[w] <= PER_HOST_PAIR for w in ways)


def test_large_jobs_try_a_ring_and_a_sample() -> None:
    hosts = {r: f"h{r // 8}" for r in range(1024)}
    chosen = pairs(hosts, seed=3)
    assert all((r + 1) % 1024 in t for r, t in chosen.items())
    assert max(len(t) for t in chosen.values()) <= SAMPLE + 1
    assert sum(len(t) for t in chosen.values()) > 1024 * SAMPLE
    assert chosen == pairs(hosts, seed=3)


def test_one_rank_alone() -> None:
    assert pairs({0: "a"}) == {0: ()}


def nic(name: str, index: int, *v4: str, v6: tuple[str, ...] = ()) -> Interface:
    return Interface(name, v4, v6, ifindex=index, state="up", carrier=True)


def test_the_address_is_the_one_that_nccl_would_announce() -> None:
    interfaces = (
        nic("lo", 1, "127.0.0.1/8"),
        nic("docker0", 2, "172.17.0.1/16"),
        nic("eth0", 3, "10.0.0.1/24"),
    )
    assert own_addresses(interfaces, {}) == ("10.0.0.1",)
    assert own_addresses(interfaces, {"NCCL_SOCKET_IFNAME": "docker"}) == ("172.17.0.1",)
    assert own_addresses(interfaces, {"NCCL_SOCKET_IFNAME": "nothing"}) == ()
    both = (nic("eth0", 3, "10.0.0.1/24", v6=("fe80::1/64", "2001:db8::1/64")),)
    assert own_addresses(both, {"NCCL_SOCKET_FAMILY": "AF_INET6"}) == ("2001:db8::1",)


@pytest.mark.parametrize(
    ("address", "elsewhere"),
    [
        ("10.0.0.1", True),
        ("2001:db8::1", True),
        ("127.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("0.0.0.0", False),
        ("host", False),
    ],
)
def test_addresses_that_mean_the_same_elsewhere(address: str, elsewhere: bool) -> None:
    assert reachable_elsewhere(address) is elsewhere


def test_a_try_ends_in_time() -> None:
    blackhole = listen((0,))
    began = time.monotonic()
    try:
        attempt(0, [Target(2, ("127.0.0.1",), int(blackhole.getsockname()[1]))], KEY, 1.0)
    finally:
        blackhole.close()
    assert time.monotonic() - began < 10.0
