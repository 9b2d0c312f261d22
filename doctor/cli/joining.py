"""A command as one rank of a job: rank 0 gathers the others and speaks, and they end as it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from types import FrameType, TracebackType

import click

from fsdp_doctor.cli.join_options import Joining
from fsdp_doctor.cli.judging import Judgement, Work
from fsdp_doctor.cli.output import CannotAnswer, complain
from fsdp_doctor.cli.progress import shown
from fsdp_doctor.codec import FormatError, from_json, to_json
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.engine.suppress import suppress
from fsdp_doctor.ranks import wire
from fsdp_doctor.ranks.context import Context
from fsdp_doctor.ranks.encode import Findings, digest_from_json, digest_to_json, results_to_json
from fsdp_doctor.ranks.gather import Leader, Offer, follow, with_sentinels
from fsdp_doctor.ranks.journal import Journal
from fsdp_doctor.ranks.link import Link
from fsdp_doctor.ranks.member import Member
from fsdp_doctor.ranks.ports import candidates
from fsdp_doctor.ranks.reach import own_addresses
from fsdp_doctor.ranks.recordings import JobFiles, pack_files
from fsdp_doctor.subjects.fact import Known
from fsdp_doctor.subjects.rank_set import RankDigest, RankSet

JOURNAL_VARIABLE = "FSDP_DOCTOR_JOURNAL"
STEPS_SHARE, STEPS_SECONDS = 0.3, 10.0
"""Of the time, and at most, that is kept for what the ranks do together after the last has reported."""
HURRY_SECONDS = 3.0
UNJUDGED_SHOWN = 32
BROKEN = 3


class Joined:
    """The process as one rank. A context manager: the others hear of every way in which it ends."""

    def __init__(
        self,
        where: Context,
        asked: Joining,
        *,
        began: float,
        budget: float,
        deadline: float | None,
        checkpoint: str | None = None,
        record: bool = False,
    ) -> None:
        """Times in seconds, `began` monotonic. Raises `CannotAnswer` where rank 0 gets no port."""
        wait = asked.wait
        total = deadline if deadline is not None else budget + (wait or 0.0)
        alone = deadline if deadline is not None else budget
        self.context = where
        self.host = socket.gethostname()
        self.until = began + total
        self.judge_until = began + alone - min(STEPS_SECONDS, STEPS_SHARE * alone)
        # A rank that judged until its last moment must still get through.
        self.reports_until = self.until - 0.75 * min(STEPS_SECONDS, STEPS_SHARE * alone)
        """When rank 0 stops waiting for reports."""
        self._began, self._hurried = began, inf
        folder = os.environ.get(JOURNAL_VARIABLE)
        self.journal = Journal(where.rank, Path(folder) if folder else None)
        key = wire.secret(asked.token, where.job_id, where.port)
        self._member = Member(where, key, self.journal, checkpoint)
        self._leader: Leader | None = None
        self._link: Link | None = None
        self._unjudged: list[str] = []
        self._former: object = None
        self._finished = False
        if where.leads:
            self._leader = Leader(where, key, self._member, self.until - time.monotonic(), record)
            self._leader.hub.arrive_until = inf if wait is None else began + wait
            self._listen(self._leader)
        else:
            self._link = Link(where, key, self.host, self.journal, self.until)
            self._link.start()

    def _listen(self, leader: Leader) -> None:
        try:
            leader.start()
        except OSError as error:
            self._member.close()
            ports = candidates(self.context.port)
            raise CannotAnswer(
                f"the other ranks cannot be gathered: none of the ports {ports[0]} to {ports[-1]} is free "
                f"({error.strerror or error}); free MASTER_PORT, or judge this machine alone with --ranks off"
            ) from None

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.context.leads

    def __enter__(self) -> Joined:
        """Take the first SIGTERM as a call to hurry: launchers send it to all ranks once one has died."""
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGTERM, self._terminated)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the others go if they were not told the verdict."""
        self.finish(error.exit_code if isinstance(error, click.ClickException) else BROKEN)
        if self._former is not None:
            signal.signal(signal.SIGTERM, self._former)  # type: ignore[arg-type]

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._hurried = time.monotonic() + HURRY_SECONDS
        if self._leader is not None:
            self._leader.hub.hurry(self._hurried)
        if self._link is not None:
            self._link.until = min(self._link.until, time.monotonic() + 4 * HURRY_SECONDS)

    # ------------------------------------------------------------------------------- ranks other than 0
    def follow(self, judgement: Judgement, unjudged: tuple[str, ...]) -> int:
        """Report what this rank found, help with the steps, and return rank 0's exit status."""
        rank = self.context.rank
        digest = judgement.job.digests.get(rank) or RankDigest(rank, host=self.host)
        report = {
            **self._about(digest),
            "results": results_to_json(judgement.merger.results(), self.host, rank),
            "unjudged": list(unjudged[:UNJUDGED_SHOWN]),
        }
        return self.end(report)

    def _about(self, digest: RankDigest) -> dict[str, object]:
        offer = Offer(self._member.port, own_addresses(digest.interfaces, digest.environment))
        return {"digest": digest_to_json(digest), "offer": to_json(offer)}

    def end(self, report: Mapping[str, object]) -> int:
        """Send a report, help with the steps, and return rank 0's exit status."""
        assert self._link is not None
        self._link.met(self._link.until)
        verdict = follow(
            self._link, self._member, self.journal, {**report, "clock_offset": self._link.clock_offset}
        )
        self._member.close()
        if verdict.exit_code is None:
            complain(f"fsdp-doctor: rank {self.context.rank}: {verdict.problem}")
            return BROKEN
        return verdict.exit_code

    # -------------------------------------------------------------------------------------------- rank 0
    def gather(self, judgement: Judgement, work: Work) -> tuple[str, ...]:
        """Take in the other ranks, judge all together, and return what could not be judged."""
        leader, where = self._leader, self.context
        assert leader is not None
        self.journal.mark("gathering the other ranks")
        job, findings = judgement.job, Findings()
        own = _at_offset(job.digests.get(0) or RankDigest(0, host=self.host), 0.0)
        digests = {0: own}
        offers = {0: from_json(Offer, self._about(own)["offer"])}
        with shown(f"gathering {where.world_size} ranks; --ranks off judges this machine alone"):
            for rank, report in leader.reports(self.reports_until):
                try:
                    digests[rank], offers[rank] = self._read(rank, report, findings)
                except FormatError as error:
                    leader.hub.failed(rank, f"its report cannot be read: {error}")
        waited = time.monotonic() - self._began
        until = min(self.until - 1.0, self._hurried + HURRY_SECONDS)
        if any(d.checkpoint is not None for d in digests.values()):
            seen = leader.sentinels(digests, until)
            digests = {r: with_sentinels(d, seen) for r, d in digests.items()}
        reached = leader.reach(digests, offers, until)
        for results in findings.by_host():
            judgement.merger.add(results)
        silent, hosts = leader.hub.remarks()
        whole = RankSet(
            where.world_size,
            tuple(digests[r] for r in sorted(digests)),
            where.node_list,
            silent,
            waited,
            reached,
            hosts,
            {r: tuple(h) for r, h in leader.hub.claims.items()},
        )
        facts = job.facts_of(Known(whole, "the ranks that reported"))
        judgement.merger.add(
            suppress(run_checks(job.checks, facts, work.options), work.suppressions, work.today)
        )
        judgement.world_size = whole.world_size
        judgement.ranks = [r.rank for r in whole.ranks]
        judgement.hosts.update(dict.fromkeys(whole.hosts))
        missing = [f"rank {r}: it did not report" for r in whole.missing[:UNJUDGED_SHOWN]]
        return (*missing, *self._unjudged)

    def _read(self, rank: int, report: Mapping[str, object], findings: Findings) -> tuple[RankDigest, Offer]:
        digest = digest_from_json(report.get("digest"), rank)
        said = from_json(_Said, report)
        findings.add(digest.host or "", rank, report.get("results", []))
        self._unjudged += [f"rank {rank}: {line}" for line in said.unjudged[:UNJUDGED_SHOWN]]
        return _at_offset(digest, said.clock_offset), said.offer

    @property
    def notes(self) -> tuple[str, ...]:
        """Connections that rank 0 turned away, and why; or that nobody came."""
        if self._leader is None:
            return ()
        hub = self._leader.hub
        nobody = f"no other rank came to port {hub.port}; --ranks off judges this machine alone"
        return (*hub.refusals, *(() if hub.traces else (nobody,)))

    # ----------------------------------------------------------------------------------------- recording
    def hand_over(self, files: Mapping[str, bytes]) -> int:
        """Send this rank's recording, and return rank 0's exit status."""
        assert self._link is not None
        self._link.met(self._link.until)
        try:
            packed = pack_files(_of_job(files, self.context, self._link.clock_offset))
        except FormatError as error:
            return self.end({"problem": str(error)})
        return self.end({"recording": packed})

    def recordings(self, files: Mapping[str, bytes]) -> tuple[JobFiles, tuple[str, ...]]:
        """Rank 0's recording with those of all ranks that came, and what is missing."""
        assert self._leader is not None
        whole = JobFiles(_of_job(files, self.context, 0.0))
        for rank, report in self._leader.reports(self.until - 1.0):
            problem = report.get("problem")
            try:
                whole.add(rank, report.get("recording"))
            except FormatError as error:
                self._leader.hub.failed(rank, str(problem)[:200] if problem else str(error))
        silent, _ = self._leader.hub.remarks()
        missing = [r for r in range(1, self.context.world_size) if r not in whole.ranks]
        said = [f"rank {r} is not in it: {silent.get(r, 'it did not come')}" for r in missing]
        return whole, (*said[:UNJUDGED_SHOWN], *(self.notes if said else ()))

    def finish(self, exit_code: int) -> None:
        """Tell the others how it ended, once; on other ranks nothing but the end."""
        if self._finished:
            return
        self._finished = True
        if self._leader is not None:
            self._leader.finish(exit_code)
        else:
            self._member.close()


@dataclass(frozen=True, slots=True)
class _Said:
    offer: Offer = field(default_factory=Offer)
    unjudged: tuple[str, ...] = ()
    clock_offset: float | None = None


def _of_job(files: Mapping[str, bytes], where: Context, offset: float | None) -> dict[str, bytes]:
    """The files of one rank with its place in the job in the manifest."""
    manifest = json.loads(files["manifest.json"]) | {"rank": where.rank, "world_size": where.world_size}
    if offset is not None:
        manifest["clock_offset_seconds"] = round(offset, 6)
    return {**files, "manifest.json": (json.dumps(manifest, indent=1) + "\n").encode()}


def _at_offset(digest: RankDigest, seconds: float | None) -> RankDigest:
    return replace(digest, clock_offset_seconds=seconds)
