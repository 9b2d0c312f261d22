"""The common work of the ranks: rank 0 gathers, asks for the steps of its plan, and tells all the verdict."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from fsdp_doctor.codec import FormatError, from_json, to_json
from fsdp_doctor.ranks import wire
from fsdp_doctor.ranks.context import Context
from fsdp_doctor.ranks.hub import Hub
from fsdp_doctor.ranks.journal import Journal
from fsdp_doctor.ranks.link import Link
from fsdp_doctor.ranks.member import YOU_KNOW, Member
from fsdp_doctor.ranks.ports import candidates
from fsdp_doctor.ranks.reach import EPHEMERAL, MASTER, Target, pairs, reachable_elsewhere
from fsdp_doctor.ranks.wire import Message, WireError
from fsdp_doctor.subjects.rank_set import RankDigest, Reachability, Unreached

REACH_SECONDS = 7.0
SENTINEL_SECONDS = 4.0
SEE_SECONDS = 4.0
CLEAR_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Offer:
    """How a rank may be reached: the port of its listener, and the addresses that NCCL would announce."""

    port: int | None = None
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Reply:
    unreached: tuple[Unreached, ...] = ()
    written: bool | None = None
    seen: tuple[str, ...] | None = None
    error: str | None = None


class Leader:
    """Rank 0. `start`, then `reports`, the steps, and `finish` in every case."""

    def __init__(
        self, context: Context, key: bytes, member: Member, seconds: float, record: bool = False
    ) -> None:
        """`seconds` is the time that the whole has, from now on."""
        self._context, self._member, self._key = context, member, key
        self._until = time.monotonic() + seconds
        self._record = record
        self.hub = Hub(context.world_size, key, self._plan)

    def _plan(self) -> Message:
        return {"seconds": round(max(0.0, self._until - time.monotonic()), 3), "record": self._record}

    def start(self) -> None:
        """Listen for the others. Raises `OSError` where none of the ports is free."""
        self.hub.start(candidates(self._context.port))

    def reports(self, until: float) -> Iterator[tuple[int, Message]]:
        """Rank after rank as they report; ends when no more will, or at `until` (monotonic)."""
        while (report := self.hub.next_report(until)) is not None:
            yield report

    # ---------------------------------------------------------------------------------------- the steps
    def reach(
        self, digests: Mapping[int, RankDigest], offers: Mapping[int, Offer], until: float
    ) -> Reachability | None:
        """Let the ranks try to connect to each other; None where there is no time for it."""
        seconds = min(REACH_SECONDS, until - time.monotonic())
        there = {r: d for r, d in digests.items() if r in offers}
        if seconds < 1.0 or len(there) < 2:
            return None
        hosts = {r: machine(d) for r, d in there.items()}
        messages: dict[int, Message] = {}
        tried = {EPHEMERAL: 0, MASTER: 0}
        for rank, targets in pairs(hosts, seed=self._context.world_size).items():
            those = [t for other in targets if (t := self._target(rank, other, hosts, offers)) is not None]
            if rank and hosts[rank] != hosts.get(0):
                master = (*offers[0].addresses, YOU_KNOW) if 0 in offers else (YOU_KNOW,)
                # Where rank 0 was found goes first: MASTER_PORT is asked at MASTER_ADDR.
                those.append(Target(0, tuple(reversed(master)), self._context.port, MASTER))
            for t in those:
                tried[t.kind] += 1
            messages[rank] = {"step": "reach", "targets": to_json(those), "seconds": seconds - 0.5}
        replies = self._all(messages, time.monotonic() + seconds)
        known = [
            u for r, reply in replies.items() for u in reply.unreached if u.source == r and u.target in there
        ]
        return Reachability(tried, tuple(sorted(known, key=lambda u: (u.source, u.target, u.kind))))

    def _target(
        self, rank: int, other: int, hosts: Mapping[int, str], offers: Mapping[int, Offer]
    ) -> Target | None:
        offer = offers[other]
        came_from = YOU_KNOW if other == 0 else self.hub.address_of(other)
        addresses = [*offer.addresses, *((came_from,) if came_from is not None else ())]
        if hosts[rank] != hosts[other]:
            addresses = [a for a in addresses if a == YOU_KNOW or reachable_elsewhere(a)]
        if offer.port is None or not addresses:
            return None
        return Target(other, tuple(dict.fromkeys(addresses)), offer.port)

    def sentinels(self, digests: Mapping[int, RankDigest], until: float) -> dict[str, tuple[str, ...]]:
        """Machine -> hosts whose file in the checkpoint folder it sees; empty where there was no second."""
        firsts: dict[str, int] = {}
        for rank in sorted(digests):
            if digests[rank].checkpoint is not None:
                firsts.setdefault(machine(digests[rank]), rank)
        left = until - time.monotonic()
        if len(firsts) < 2 or left < 1.0:
            return {}
        prefix = f".fsdp-doctor-{wire.nonce()}"
        names = {f"{prefix}-{i}": rank for i, rank in enumerate(firsts.values())}
        try:
            wait = min(SENTINEL_SECONDS, left / 2)
            written = self._all(
                {r: {"step": "sentinel", "name": n, "seconds": wait} for n, r in names.items()},
                time.monotonic() + wait,
            )
            wait = min(SEE_SECONDS, max(until - time.monotonic(), 0.1))
            those = [n for n, r in names.items() if (w := written.get(r)) is not None and w.written]
            seen = self._all(
                {r: {"step": "see", "names": those, "seconds": wait - 0.1} for r in names.values()},
                time.monotonic() + wait,
            )
        finally:
            self._all({r: {"step": "clear"} for r in names.values()}, time.monotonic() + CLEAR_SECONDS)
        hosts = {n: digests[r].host or f"rank {r}" for n, r in names.items()}
        return {
            machine(digests[r]): tuple(hosts[n] for n in reply.seen if n in hosts)
            for r, reply in seen.items()
            if reply.seen is not None
        }

    def _all(self, messages: Mapping[int, Message], until: float) -> dict[int, _Reply]:
        """One step on all these ranks at once, this one included; replies that make no sense are left out."""
        own: dict[int, Message] = {}
        mine = messages.get(0)
        thread = None
        if mine is not None:
            # A daemon: a step that hangs on a file server must not hold up the end.
            thread = threading.Thread(target=lambda: own.update({0: self._member.answer(mine)}), daemon=True)
            thread.start()
        replies = self.hub.ask({r: m for r, m in messages.items() if r != 0}, until)
        if thread is not None:
            thread.join(max(0.0, until - time.monotonic()))
        read = {}
        for rank, message in {**replies, **own}.items():
            try:
                read[rank] = from_json(_Reply, message)
            except FormatError as error:
                self.hub.failed(rank, f"its answer cannot be read: {error}")
        return read

    def finish(self, exit_code: int) -> None:
        """Tell the others how it ended, and stop."""
        self.hub.finish({"exit_code": exit_code})
        self._member.close()


def machine(digest: RankDigest) -> str:
    """What tells one machine of the job from another: host name and boot."""
    return f"{digest.host or ''}/{digest.boot_id or ''}"


def with_sentinels(digest: RankDigest, seen: Mapping[str, tuple[str, ...]]) -> RankDigest:
    """The digest with what its machine saw in the checkpoint folder."""
    hosts = seen.get(machine(digest))
    if digest.checkpoint is None or hosts is None:
        return digest
    return replace(digest, checkpoint=replace(digest.checkpoint, sentinels=hosts))


@dataclass(frozen=True, slots=True)
class Verdict:
    """How it ended for a rank that is not rank 0: rank 0's exit status, or why there is none."""

    exit_code: int | None = None
    problem: str = ""


def follow(link: Link, member: Member, journal: Journal, report: Message) -> Verdict:
    """Report to rank 0 and do as it asks, until its verdict or the deadline."""
    if not link.met(link.until):
        return Verdict(problem=link.failure())
    member.leader_address = link.leader_address
    if link.counted:
        try:
            link.send({**report, "type": "report"})
        except WireError as error:
            link.send({"type": "report", "problem": f"its report cannot be sent: {error}"})
        journal.mark("waiting for the other ranks")
    while (message := link.next(link.until)) is not None:
        code = message.get("exit_code")
        if message.get("type") == "verdict" and type(code) is int and 0 <= code < 256:
            return Verdict(code)
        if message.get("type") == "ask":
            reply = member.answer(message)
            link.send({**reply, "type": "reply", "number": message.get("number")})
            journal.mark("waiting for the other ranks")
    return Verdict(problem=link.lost())
