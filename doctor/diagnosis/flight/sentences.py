"""A sentence for each kind of conclusion, what was expected instead, and what follows for this case."""

from __future__ import annotations

from fsdp_doctor.diagnosis.flight.chain import Cause
from fsdp_doctor.diagnosis.flight.divergence import call_sites_part
from fsdp_doctor.diagnosis.flight.history import Job
from fsdp_doctor.diagnosis.flight.recorded import Recorded, ranks_words
from fsdp_doctor.diagnosis.flight.sites import place
from fsdp_doctor.diagnosis.flight.trouble import Trouble
from fsdp_doctor.subjects.flight import (
    CROSSED,
    IN_FLIGHT,
    LATE,
    NEVER_ENTERED,
    NO_DUMP,
    NOT_FINISHED,
    NOT_STARTED,
    OTHER_DTYPE,
    OTHER_OPERATION,
    OTHER_SIZE,
    UNDECIDED,
    UNMATCHED,
)

FIRST = 5
"""Sequence numbers up to this one belong to the start of a job, before anything worked."""
_SAVING = ("save", "checkpoint", "state_dict")
_EVALUATING = ("eval", "valid", "generate", "test_step")
_LOADING = ("dataloader", "_next_data", "next_batch", "get_batch", "fetch", "collate")

Words = tuple[str, str, str]


class Sentences:
    """Speaks of the causes of one job."""

    def __init__(self, job: Job, recorded: Recorded) -> None:
        self._job, self._recorded = job, recorded

    def of(self, cause: Cause) -> Words:
        """What happened, what was expected, and what follows."""
        t = cause.trouble
        group, number = t.group.label, f"#{t.sequence}"
        operation = self._recorded.operation(t, t.waiting or cause.at_fault)
        odd, others = (
            ranks_words(cause.at_fault) if cause.at_fault else "",
            ranks_words(t.waiting) if t.waiting else "",
        )
        if cause.kind in (OTHER_OPERATION, OTHER_SIZE, OTHER_DTYPE) and t.divergence is not None:
            return self._mismatch(cause)
        if cause.kind == NEVER_ENTERED:
            return self._missing(cause, odd, others, operation)
        if cause.kind == UNMATCHED and t.pair is not None:
            posted = "receive" if t.at_fault == (t.pair[0],) else "send"
            lacking = "send" if posted == "receive" else "receive"
            return (
                f"{others} waits in a {posted} ({operation}) of group {group}, and {odd} never posted the "
                f"{lacking}" + self._recorded.last_seen(cause.at_fault),
                f"every send {t.pair[0]}->{t.pair[1]} has its receive",
                "",
            )
        if cause.kind == LATE:
            return (
                f"{odd} came to {operation} {number} of group {group} {t.lag:.0f} s after "
                f"{others or 'the others'}, "
                "whose time-out had run out by then",
                "all ranks come within the time-out",
                "The time-out was the last symptom: find what this rank did before the call, or raise the "
                "time-out if it may take that long.",
            )
        if cause.kind == NO_DUMP:
            return (
                f"{others} {'wait' if len(t.waiting) > 1 else 'waits'} in {operation} {number} of group "
                f"{group}; "
                f"{odd}, {'which belong' if len(cause.at_fault) > 1 else 'which belongs'} to it, left no "
                "dump",
                "a dump of every rank",
                "A rank that died (exception, OOM, SIGKILL) writes no dump: read its log and the kernel "
                "log of its host. "
                "If its dump was only not collected, add it.",
            )
        if cause.kind == CROSSED and cause.crossed_with is not None:
            return self._crossed(cause, cause.crossed_with)
        return self._everybody(cause, odd, others, operation)

    def _missing(self, cause: Cause, odd: str, others: str, operation: str) -> Words:
        t = cause.trouble
        words = (
            f"{odd} never entered {operation} #{t.sequence} of group {t.group.label}, in which {others} "
            f"{'wait' if len(t.waiting) > 1 else 'waits'}{self._recorded.last_seen(cause.at_fault)}"
        )
        left_out = call_sites_part(self._job, t.group, cause.at_fault, t.waiting[0], t.sequence)
        advice = self._advice(cause)
        if left_out is not None:
            sequence, count = left_out
            history = t.group.histories[t.waiting[0]]
            index = history.at(sequence)
            site = place(self._recorded.sites(t.waiting[0], index)) if index is not None else ""
            words += (
                f"; by the call sites it left out {count} operation{'s' if count > 1 else ''} at #{sequence}"
                + (f", called by the others at {site}" if site else "")
            )
        return words, "every rank of the group enqueues the same collectives", advice

    def _mismatch(self, cause: Cause) -> Words:
        t, d = cause.trouble, cause.trouble.divergence
        assert d is not None
        usual = d.usual or d.sides[0]
        parts = [f"{ranks_words(s)} enqueued {self._recorded.what(t, s[0])}" for s in d.sides if s != usual]
        words = (
            f"at #{t.sequence} of group {t.group.label} {', '.join(parts)}, where {ranks_words(usual)} "
            "enqueued "
            f"{self._recorded.what(t, usual[0])}"
        )
        if d.shift and d.odd:
            count = abs(d.shift)
            words += (
                f"; from there on the sequence of {ranks_words(d.odd)} fits the others' with {count} "
                "operation"
                f"{'s' if count > 1 else ''} {'more' if d.shift > 0 else 'left out'}"
            )
        if not d.odd:
            words += "; nothing tells which side is right"
        elif d.by == "history":
            words += f"; earlier steps went on as {ranks_words(usual)} did"
        advice = self._advice(cause)
        if t.passed:
            words += "; it ended on all ranks nevertheless"
            advice = "What was received is wrong or cut on some ranks, without any error."
        return words, "the same operation, size and type on every rank of the group", advice

    def _crossed(self, cause: Cause, other: Trouble) -> Words:
        t = cause.trouble
        return (
            f"{ranks_words(t.waiting)} {'wait' if len(t.waiting) > 1 else 'waits'} in "
            f"{self._recorded.operation(t, t.waiting)} #{t.sequence} of group {t.group.label} while "
            f"{ranks_words(other.waiting)} {'wait' if len(other.waiting) > 1 else 'waits'} in "
            f"{self._recorded.operation(other, other.waiting)} #{other.sequence} of group "
            f"{other.group.label}: each side waits for the other, because they take the groups in different "
            "order",
            "all ranks take their groups in the same order",
            "",
        )

    def _everybody(self, cause: Cause, odd: str, others: str, operation: str) -> Words:
        t = cause.trouble
        where = f"{operation} #{t.sequence} of group {t.group.label}"
        if cause.kind == NOT_FINISHED:
            return (
                f"all {len(t.group.members)} ranks entered {where}; {ranks_words(t.finished)} finished it "
                f"and {odd} did not",
                "a collective ends on all ranks",
                "Its kernel hangs on this rank's GPU, or the rank's side of the connection is broken: look "
                "at that "
                "GPU's Xid and ECC messages, its NVLink and its network port.",
            )
        if cause.kind == NOT_STARTED:
            return (
                f"{others} started {where}; {odd} enqueued it, but its kernel never started there",
                "the kernel starts on all ranks",
                "An earlier kernel occupies that rank's stream (a hanging kernel, a device fault, a "
                "collective of "
                "another group without recorder).",
            )
        if cause.kind in (OTHER_SIZE, OTHER_DTYPE) and t.pair is not None:
            return (
                f"ranks {t.pair[0]} and {t.pair[1]} exchange {self._recorded.what(t, t.pair[0])} against "
                f"{self._recorded.what(t, t.pair[1])} in group {t.group.label}",
                "send and receive of the same size and type",
                "",
            )
        if cause.kind == IN_FLIGHT:
            return (f"{where} was under way when the dumps were written; nothing points to a fault", "", "")
        if cause.kind == UNDECIDED:
            silent = (
                f"{ranks_words(t.silent)} left no dump"
                if t.silent
                else f"{t.group.absent} members left no dump"
            )
            return (
                f"cannot tell who keeps {where} from ending: {silent}",
                "a dump of every rank",
                "Collect the dumps of all hosts: each rank writes its own, to its own disk by default.",
            )
        states = (
            "and nobody finished it" if not t.finished else f"and {ranks_words(t.finished)} alone finished it"
        )
        advice = (
            "No rank is behind and all did the same: the network, a link or a GPU is at fault, not the "
            "program. "
            "Look at the hosts' kernel logs (Xid, NIC), NCCL's own warnings and the port counters. If the "
            "dumps were "
            "taken from a job that was running well, this is simply the work under way."
        )
        if t.sequence <= FIRST and t.pair is None:
            advice = (
                "It is one of the group's first collectives: the ranks never could talk. Check "
                "NCCL_SOCKET_IFNAME, "
                "firewalls, InfiniBand and, inside a node, P2P (NCCL_DEBUG=INFO shows the paths). " + advice
            )
        return (
            f"all ranks entered {where} with the same size and type {states}",
            "a collective ends on all ranks",
            advice,
        )

    def _advice(self, cause: Cause) -> str:
        site, _ = self._recorded.fault_site(cause)
        text = " ".join(f"{f.function} {f.file}".lower() for f in site)
        if any(word in text for word in _SAVING):
            return (
                "The call comes from saving: a collective that only some ranks reach (`if rank == 0:` "
                "around a state_dict that gathers)."
            )
        if any(word in text for word in _EVALUATING):
            return "The call comes from an evaluation: its loop has other lengths or branches on some ranks."
        if any(word in text for word in _LOADING):
            return "The call is next to data loading: ranks got different numbers of batches."
        return ""
