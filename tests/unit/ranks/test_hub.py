"""Rank 0's end and the others' over real sockets: tokens, hostile peers, doubles, losses."""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fsdp_doctor.ranks import wire
from fsdp_doctor.ranks.context import Context
from fsdp_doctor.ranks.gather import Verdict, follow
from fsdp_doctor.ranks.hub import Hub
from fsdp_doctor.ranks.journal import Journal
from fsdp_doctor.ranks.link import Link
from fsdp_doctor.ranks.member import Member
from fsdp_doctor.ranks.ports import listen

KEY = wire.secret("token", "job", 1)
SECONDS = 20.0


def until(seconds: float = SECONDS) -> float:
    return time.monotonic() + seconds


@contextmanager
def hub(world: int = 4, key: bytes = KEY) -> Iterator[Hub]:
    found = Hub(world, key, lambda: {"seconds": 15.0})
    found.start((0,))
    try:
        yield found
    finally:
        found.finish({"exit_code": 0})


def link(rank: int, port: int, world: int = 4, key: bytes = KEY, seconds: float = 10.0) -> Link:
    where = Context(rank, world, "127.0.0.1", port)
    made = Link(where, key, f"host-{rank}", Journal(rank), until(seconds))
    made.start()
    return made


def raw(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=5.0)


def wait_for(condition: object, seconds: float = 10.0) -> None:
    assert callable(condition)
    end = until(seconds)
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_reports_asks_and_the_verdict() -> None:
    with hub() as server:
        links = {r: link(r, server.port) for r in (1, 2, 3)}
        assert all(one.met(until()) for one in links.values())
        for rank, one in links.items():
            one.send({"type": "report", "mine": rank})
        got = dict(server.next_report(until()) or (-1, {}) for _ in links)
        assert {r: m["mine"] for r, m in got.items()} == {1: 1, 2: 2, 3: 3}
        assert server.next_report(until()) is None  # nobody is left to wait for
        for one in links.values():
            assert one.clock_offset is not None and abs(one.clock_offset) < 1.0

        def answer(rank: int) -> None:
            asked = links[rank].next(until())
            assert asked is not None and asked["step"] == f"s{rank}"
            links[rank].send({"type": "reply", "number": asked["number"], "mine": rank})

        import threading

        threads = [threading.Thread(target=answer, args=(r,)) for r in (1, 3)]
        for t in threads:
            t.start()
        replies = server.ask({1: {"step": "s1"}, 3: {"step": "s3"}, 9: {"step": "nobody"}}, until())
        for t in threads:
            t.join()
        assert {r: m["mine"] for r, m in replies.items()} == {1: 1, 3: 3}
        server.finish({"exit_code": 7})
        for rank, one in links.items():
            message = one.next(until())
            while message is not None and message.get("type") != "verdict":
                message = one.next(until())
            assert message is not None and message["exit_code"] == 7, rank
    for one in links.values():
        one.join(5.0)
        assert not one.is_alive()


def test_a_wrong_token_is_refused_and_the_right_one_is_not_disturbed() -> None:
    with hub(2) as server:
        stranger = link(1, server.port, 2, key=wire.secret("other", "job", 1), seconds=1.5)
        assert not stranger.met(until(3.0))
        assert "another job" in stranger.failure()
        assert server.traces == {}
        assert any("another --token" in r and "127.0.0.1" in r for r in server.refusals)
        friend = link(1, server.port, 2)
        assert friend.met(until())


def test_a_server_of_another_job_is_not_believed() -> None:
    with hub(2, key=wire.secret("other", "job", 1)) as wrong:
        lost = link(1, wrong.port, 2, seconds=1.5)
        assert not lost.met(until(3.0))
        assert lost.plan == {}


def hostile(rng: random.Random) -> bytes:
    kind = rng.randrange(7)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 3000))
    if kind == 1:
        return b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    if kind == 2:
        return struct.pack("!IB", 0xFFFFFFFF, ord("J")) + b"x" * 100
    if kind == 3:
        return wire.pack(
            {"type": "hello", "rank": rng.choice([1, -1, 10**30, "1", None, True]), "nonce": 3, "id": []}
        )
    if kind == 4:
        return wire.pack({"type": "report", "digest": {}})
    if kind == 5:
        return wire.pack({"type": "hello", "rank": 1, "nonce": "a", "id": "b", "proof": "0" * 64})
    return struct.pack("!IB", 4000, ord("Z")) + rng.randbytes(4000)


def test_hostile_peers_never_break_the_server() -> None:
    rng = random.Random(7)
    with hub(2) as server:
        silent = [raw(server.port) for _ in range(20)]
        for _ in range(150):
            with raw(server.port) as peer:
                try:
                    peer.sendall(hostile(rng))
                    if rng.random() < 0.3:
                        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                except OSError:
                    pass
        friend = link(1, server.port, 2)
        assert friend.met(until())
        friend.send({"type": "report"})
        assert server.next_report(until()) is not None
        assert len(server.refusals) <= 32
        for one in silent:
            one.close()


def greeted(port: int, rank: int = 1) -> socket.socket:
    """A peer that has proved itself."""
    peer = raw(port)
    nonce = wire.read_banner(peer.recv(wire.BANNER_SIZE, socket.MSG_WAITALL))
    hello = {"type": "hello", "rank": rank, "host": "h", "id": os.urandom(4).hex(), "nonce": "n"}
    peer.sendall(wire.pack({**hello, "proof": wire.proof(KEY, "hello", nonce, "n", rank)}))
    assert peer.recv(4096)
    return peer


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,
        struct.pack("!IB", wire.FRAME_LIMIT + 1, ord("J")),
        wire.pack({"type": "report"})[:-1] + b"!",
        struct.pack("!IB", 4, ord("Z")) + b"zzzz",
    ],
)
def test_nonsense_of_a_known_rank_is_told_of_that_rank(data: bytes) -> None:
    with hub(3) as server, greeted(server.port) as peer:
        peer.sendall(data)
        wait_for(lambda: server.traces[1].closed is not None)
        silent, hosts = server.remarks()
        assert "its messages cannot be read" in silent[1]
        assert hosts == {1: "h"}
        with greeted(server.port, rank=2):
            pass


def test_odd_messages_of_a_known_rank_are_ignored() -> None:
    with hub(2) as server, greeted(server.port) as peer:
        for message in (
            {"type": "stage", "stage": 3, "seconds": "x"},
            {"type": "reply", "number": [1]},
            {"type": "reply", "number": 99},
            {"type": "stage", "stage": "\ud800", "seconds": 10**400},
            {"type": "clock", "number": {"a": []}},
            {"type": "nothing"},
            {},
            {"type": "stage", "stage": "at work", "seconds": 1.0},
        ):
            peer.sendall(wire.pack(message))
        wait_for(lambda: server.traces[1].stage == "at work")


def test_a_second_process_of_a_rank_is_noted_and_hears_the_verdict() -> None:
    with hub(2) as server:
        first = link(1, server.port, 2)
        assert first.met(until())
        second = link(1, server.port, 2)
        assert second.met(until())
        assert first.counted and not second.counted
        assert server.claims == {1: ["host-1"]}
        server.finish({"exit_code": 1})
        last = second.next(until())
        assert last is not None and last["exit_code"] == 1


def test_a_rank_that_ends_is_not_waited_for() -> None:
    with hub(2) as server:
        peer = greeted(server.port)
        peer.sendall(wire.pack({"type": "stage", "stage": "import torch", "seconds": 0.1}))
        wait_for(lambda: server.traces[1].stage == "import torch")
        peer.close()
        began = time.monotonic()
        assert server.next_report(until()) is None
        assert time.monotonic() - began < SECONDS / 2
        assert "ended during 'import torch'" in server.remarks()[0][1]


def test_ranks_that_never_come_are_waited_for_until_they_need_not_be() -> None:
    with hub(2) as server:
        server.arrive_until = time.monotonic() + 0.3
        assert server.next_report(until()) is None
    with hub(2) as server:
        server.hurry(time.monotonic() + 0.2)
        assert server.next_report(until()) is None


def test_asking_ranks_that_do_not_answer_ends() -> None:
    with hub(3) as server, greeted(server.port):
        assert server.ask({1: {"step": "x"}, 2: {"step": "x"}}, until(0.3)) == {}


def test_a_silent_store_at_the_port_gets_no_byte_and_the_next_port_is_found() -> None:
    store = listen((0,))
    port = int(store.getsockname()[1])
    found = Hub(2, KEY, lambda: {"seconds": 15.0})
    try:
        found.start(range(port, port + 8))
        assert found.port > port
        one = link(1, port, 2)
        assert one.met(until())
        store.setblocking(True)
        store.settimeout(5.0)
        peer, _ = store.accept()
        peer.settimeout(5.0)
        assert peer.recv(100) == b""  # it hung up without a word
        peer.close()
    finally:
        store.close()
        found.finish({"exit_code": 0})


def test_a_rank_that_finds_nobody_says_where_it_looked() -> None:
    free = listen((0,))
    port = int(free.getsockname()[1])
    free.close()
    where = Context(1, 2, "127.0.0.1", port)
    journal = Journal(1)
    one = Link(where, KEY, "h", journal, until(0.8))
    one.start()
    member = Member(where, KEY, journal, None)
    try:
        verdict = follow(one, member, journal, {})
    finally:
        member.close()
    assert verdict.exit_code is None
    assert (
        "127.0.0.1 (MASTER_ADDR)" in verdict.problem and f"port {port}: connection refused" in verdict.problem
    )


def test_a_name_that_does_not_resolve() -> None:
    one = Link(Context(1, 2, "no-such-host.invalid", 29500), KEY, "h", Journal(1), until(0.5))
    one.start()
    assert not one.met(until(15.0))
    assert "does not resolve" in one.failure()


def test_losing_rank_0_is_told() -> None:
    server = Hub(2, KEY, lambda: {"seconds": 15.0})
    server.start((0,))
    where = Context(1, 2, "127.0.0.1", server.port)
    one = Link(where, KEY, "h", Journal(1), until())
    one.start()
    assert one.met(until())
    peer = next(iter(server._server._known))
    peer.socket.shutdown(socket.SHUT_RDWR)
    member = Member(where, KEY, Journal(1), None)
    try:
        verdict = follow(one, member, Journal(1), {})
    finally:
        member.close()
        server.finish({"exit_code": 0})
    assert verdict == Verdict(problem="rank 0 at 127.0.0.1 (MASTER_ADDR) ended without a verdict")
