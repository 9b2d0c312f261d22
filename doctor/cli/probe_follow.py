"""Another rank of a probe under a launcher: it does what rank 0 asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fsdp_doctor.cli.probe_join import Call
from fsdp_doctor.codec import FormatError, from_json, to_json
from fsdp_doctor.facts.source import Source
from fsdp_doctor.findings import EXIT_CODES, Verdict
from fsdp_doctor.probe.counters import Counters, read
from fsdp_doctor.probe.member import About, LocalRank, Place, Told
from fsdp_doctor.ranks.context import Context
from fsdp_doctor.ranks.journal import Journal as Signs
from fsdp_doctor.ranks.link import Link
from fsdp_doctor.ranks.wire import Message

BROKEN = EXIT_CODES[Verdict.INCOMPLETE]


def follow(context: Context, key: bytes, own: About, call: Call, source: Source) -> tuple[int, str]:
    """Another rank: run what rank 0 asks for; its exit status, and a problem in words."""
    signs = Signs(context.rank, None)
    link = Link(context, key, own.host, signs, call.until)
    link.start()
    if not link.met(call.until):
        return BROKEN, link.failure()
    link.send({"type": "report", "about": to_json(own)})
    signs.mark("waiting for the plan of the probe")
    member = _Member(lambda: LocalRank(context.rank, call.python), own, source, signs)
    try:
        while (message := link.next(link.until)) is not None:
            code = message.get("exit_code")
            if message.get("type") == "verdict" and type(code) is int and 0 <= code < 256:
                return code, ""
            if message.get("type") == "ask":
                link.send({**member.answer(message), "type": "reply", "number": message.get("number")})
        return BROKEN, link.lost()
    finally:
        member.close()


class _Member:
    def __init__(self, worker: Callable[[], LocalRank], own: About, source: Source, signs: Signs) -> None:
        self._worker, self._own, self._source, self._signs = worker, own, source, signs
        self._local = worker()
        self._before = Counters()
        self._gpus = False

    def answer(self, message: Message) -> dict[str, object]:
        """Carry out one step; a step that is not known, or fails, is an answer too."""
        try:
            return self._answer(message)
        except (FormatError, OSError, ValueError) as error:
            return {"error": f"{type(error).__name__}: {error}"[:300]}

    def _answer(self, message: Message) -> dict[str, object]:
        step = message.get("step")
        self._signs.mark(f"probe: {step}")
        if step == "run":
            job, place = message.get("job"), from_json(Place, message.get("place"))
            if not isinstance(job, Mapping):
                raise ValueError("no job")
            planned = job.get("plan")
            self._gpus = isinstance(planned, Mapping) and planned.get("backend") == "nccl"
            self._before = self._counters()
            self._local.close()
            self._local = self._worker()
            self._local.run(job, place)
            return {}
        if step == "look":
            return {"seen": to_json(self._local.seen())}
        if step == "end":
            still = message.get("still")
            ranks = (
                frozenset(r for r in still if isinstance(r, int)) if isinstance(still, list) else frozenset()
            )
            ending, lines = self._local.finish(ranks)
            return {"told": to_json(Told(ending, lines, self._before, self._counters()))}
        return {"error": f"no step {step!r}"[:100]}

    def close(self) -> None:
        """End the worker."""
        self._local.close()

    def _counters(self) -> Counters:
        return read(self._source, gpus=self._gpus) if self._own.local_rank == 0 or self._gpus else Counters()
