"""Rank 0 of a probe under a launcher: it plans and gathers; every rank, it too, runs one worker.

Rank 0 asks the others in rounds: run this job; how far are you; end, and tell what you have. So it learns of
trouble anywhere within a second, and who stood still is decided from the steps of all ranks together.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fsdp_doctor.codec import FormatError, from_json, to_json, whole_json
from fsdp_doctor.facts.source import Source
from fsdp_doctor.probe.assemble import Ending, assemble
from fsdp_doctor.probe.counters import Counters, read
from fsdp_doctor.probe.journals import Journal
from fsdp_doctor.probe.launch import GRACE, MARGIN, STARTING, ProbeError, shown
from fsdp_doctor.probe.member import About, LocalRank, Place, Told
from fsdp_doctor.probe.session import with_counters_of
from fsdp_doctor.probe.settle import Seen, standing_still
from fsdp_doctor.probe.tournament import rails, tournament
from fsdp_doctor.probe.verdicts import recheck
from fsdp_doctor.ranks.context import Context
from fsdp_doctor.ranks.hub import Hub
from fsdp_doctor.ranks.ports import candidates
from fsdp_doctor.ranks.wire import Message
from fsdp_doctor.subjects.probe import ProbePlan, ProbeResult, RankMeasurement

LOOK = 0.5
"""Seconds between two rounds of asking how far the ranks are."""
ANSWER = 5.0
"""Seconds that a rank has for an answer, and for one with all of its measurements."""
ANSWER_ALL = 20.0


@dataclass(frozen=True, slots=True)
class Call:
    """What the command line comes to for a joined probe. Times in seconds; `until` is monotonic."""

    until: float
    arrival: float
    python: str
    show: Callable[[str], None]


class Leading:
    """Rank 0. `close` it in every case, with the exit status that all ranks end with."""

    def __init__(self, context: Context, key: bytes, own: About, call: Call) -> None:
        """Begin to listen. Raises `ProbeError` where no port is free."""
        self._context, self._own, self._call = context, own, call
        self.hub = Hub(context.world_size, key, self._welcome)
        try:
            self.hub.start(candidates(context.port))
        except OSError as error:
            raise ProbeError(f"the other ranks cannot be gathered: {error.strerror or error}") from None

    def _welcome(self) -> Message:
        return {"seconds": round(max(0.0, self._call.until - time.monotonic()), 3)}

    def gather(self) -> dict[int, About]:
        """The ranks that come, with what they say of themselves."""
        found = {0: self._own}
        until = min(self._call.until, time.monotonic() + self._call.arrival)
        while (report := self.hub.next_report(until)) is not None:
            try:
                found[report[0]] = from_json(About, report[1].get("about"))
            except FormatError as error:
                self.hub.failed(report[0], f"its report cannot be read: {error}")
        return found

    def measure(
        self,
        plan: ProbePlan,
        ranks: Mapping[int, About],
        source: Source,
        devices: Sequence[int] | None = None,
    ) -> ProbeResult:
        """Run the probe on all ranks, which have all come.

        `devices`: CUDA indices by local rank, where another GPU than the local rank is wanted.
        """
        local = LocalRank(0, self._call.python)
        try:
            before = _counters(source, plan, self._own)
            job = self._job(plan, ranks, devices)
            port = _free_port()
            places = {
                r: Place(r, len(ranks), a.local_rank, self._context.address, port) for r, a in ranks.items()
            }
            messages: dict[int, Message] = {
                r: {"step": "run", "job": job, "place": to_json(places[r])} for r in ranks if r
            }
            local.run(job, places[0])
            self.hub.ask(messages, time.monotonic() + ANSWER)
            seen, passed = self._watch(local, plan, ranks)
            result = self._end(local, plan, ranks, seen, passed, source, before)
            return replace(result, rotated=devices is not None)
        finally:
            local.close()

    def _job(
        self, plan: ProbePlan, ranks: Mapping[int, About], devices: Sequence[int] | None
    ) -> dict[str, object]:
        nodes: dict[str, list[int]] = {}
        for rank in sorted(ranks):
            nodes.setdefault(ranks[rank].host, []).append(rank)
        groups: list[tuple[str, list[int]]] = []
        if len(nodes) > 1:
            groups = [(f"node:{h}", members) for h, members in nodes.items() if len(members) > 1]
            if any(len(members) > 1 for members in nodes.values()):
                groups += [(f"rail:{i}", list(members)) for i, members in rails(nodes).items()]
        return {
            "plan": whole_json(plan),
            "name": uuid.uuid4().hex,
            "ranks": len(ranks),
            "rounds": [r.pairs for r in tournament(nodes)] if plan.pair_bytes else [],
            "groups": groups,
            "most_local": max(len(m) for m in nodes.values()),
            "scattered": True,
            "devices": None if devices is None else list(devices),
        }

    def _watch(
        self, local: LocalRank, plan: ProbePlan, ranks: Mapping[int, About]
    ) -> tuple[dict[int, Seen], bool]:
        """Until all are through, or trouble has had time to show; whether the time ran out."""
        until = min(
            time.monotonic() + STARTING + plan.deadline_seconds + MARGIN, self._call.until - ANSWER_ALL
        )
        trouble, looked = None, False
        while True:
            seen = {0: local.seen(), **self._looks(ranks)}
            now = time.monotonic()
            finished = [s for s in seen.values() if s.done or s.ended]
            if len(finished) == len(ranks):
                return seen, False
            if any(not s.done for s in finished) or len(seen) < len(ranks):
                trouble = trouble or now
                if now > trouble + GRACE:
                    return seen, False
            if now > until:
                return seen, True
            if local.journal.looked and not looked:
                looked = True
                local.answer(self._again(local, plan, len(ranks)))
            self._call.show(local.journal.stage)
            time.sleep(LOOK)

    def _looks(self, ranks: Mapping[int, About]) -> dict[int, Seen]:
        replies = self.hub.ask({r: {"step": "look"} for r in ranks if r}, time.monotonic() + ANSWER)
        found = {}
        for rank, reply in replies.items():
            try:
                found[rank] = from_json(Seen, reply.get("seen"))
            except FormatError:
                continue
        return found

    def _again(self, local: LocalRank, plan: ProbePlan, count: int) -> str:
        journals = local.handed_in(count)
        first = assemble(plan, journals, [Ending(j.rank) for j in journals], device=_device(plan))
        return json.dumps(whole_json(recheck(first)))

    def _end(
        self,
        local: LocalRank,
        plan: ProbePlan,
        ranks: Mapping[int, About],
        seen: Mapping[int, Seen],
        passed: bool,
        source: Source,
        before: Counters,
    ) -> ProbeResult:
        still = standing_still(seen.values())
        messages: dict[int, Message] = {r: {"step": "end", "still": sorted(still)} for r in ranks if r}
        ending, _ = local.finish(still)
        replies = self.hub.ask(messages, min(self._call.until, time.monotonic() + ANSWER_ALL))
        told = {0: Told(ending, before=before, after=_counters(source, plan, self._own))}
        journals = [local.journal]
        for rank in sorted(r for r in ranks if r):
            journal = Journal(local.folder, rank)
            try:
                told[rank] = from_json(Told, replies.get(rank, {}).get("told"))
                journal.feed(told[rank].lines.encode().split(b"\n"))
            except FormatError:
                pass
            journals.append(journal)
        result = assemble(
            plan,
            journals,
            [t.ending for t in told.values()],
            device=_device(plan),
            deadline_passed=passed,
            environment=shown(os.environ),
            logs=local.folder,
        )
        measured = tuple(_counted(r, told.get(r.rank)) for r in result.ranks)
        links = {a.host: a.links for a in ranks.values() if a.links is not None}
        return replace(result, ranks=measured, links=tuple(links.values()))

    def absent(self, plan: ProbePlan, ranks: Mapping[int, About]) -> ProbeResult:
        """The result where ranks did not come: nothing was run."""
        world = self._context.world_size
        there = tuple(
            RankMeasurement(r, host=a.host, local_rank=a.local_rank, stage="rendezvous")
            for r, a in sorted(ranks.items())
        )
        missing = tuple(r for r in range(world) if r not in ranks)
        return ProbeResult(world, plan.backend, plan, there, missing, device=_device(plan))

    def close(self, exit_code: int) -> None:
        """Tell the others how it ended."""
        self.hub.finish({"exit_code": exit_code})


def _counters(source: Source, plan: ProbePlan, own: About) -> Counters:
    return read(source, gpus=plan.backend == "nccl") if own.local_rank == 0 else Counters()


def _counted(rank: RankMeasurement, told: Told | None) -> RankMeasurement:
    if told is None:
        return rank
    first = rank.local_rank in (0, None)
    return with_counters_of(rank, told.before, told.after, first)


def _device(plan: ProbePlan) -> str:
    return "cuda" if plan.backend == "nccl" else "cpu"


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("", 0))
        port: int = server.getsockname()[1]
    return port
