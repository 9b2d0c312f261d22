"""Conclusions in words: what each rank did, the call sites, and what follows for this case."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_doctor.diagnosis.flight.chain import Cause
from fsdp_doctor.diagnosis.flight.divergence import call_sites_part
from fsdp_doctor.diagnosis.flight.history import Job
from fsdp_doctor.diagnosis.flight.operations import describe, is_coalesced_end
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
    CallSite,
    FlightConclusion,
)

SHOWN = 8
EVIDENCE = 6
FIRST = 5
"""Sequence numbers up to this one belong to the start of a job, before anything worked."""
_SAVING = ("save", "checkpoint", "state_dict")
_EVALUATING = ("eval", "valid", "generate", "test_step")
_LOADING = ("dataloader", "_next_data", "next_batch", "get_batch", "fetch", "collate")


def ranks_words(ranks: Sequence[int]) -> str:
    """Such as "rank 3", "ranks 0-6" or "ranks 0, 3, 5"; long lists are cut."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}-{ranks[-1]}"
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return "ranks " + ", ".join(map(str, ranks[:SHOWN])) + more


class Teller:
    """Writes the conclusions of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def conclude(self, cause: Cause) -> FlightConclusion:
        """One cause as a conclusion."""
        trouble = cause.trouble
        words, expected, advice = self._words(cause)
        fault_site, fault_rank = self._fault_site(cause)
        wait_site = self._site(trouble, trouble.waiting)
        evidence = self._evidence(cause)
        return FlightConclusion(
            cause.kind,
            words,
            expected,
            trouble.group.label,
            trouble.group.members,
            cause.at_fault,
            tuple(r for r in trouble.waiting if r not in cause.at_fault),
            trouble.silent,
            trouble.sequence,
            self._operation(trouble, trouble.waiting or cause.at_fault),
            trouble.confidence,
            fault_site or wait_site,
            fault_rank,
            wait_site,
            evidence,
            tuple(dict.fromkeys(map(self._consequence, cause.consequences)))[:SHOWN],
            advice,
        )

    # ---------------------------------------------------------------------------------------- sentences
    def _words(self, cause: Cause) -> tuple[str, str, str]:
        t = cause.trouble
        group, number = t.group.label, f"#{t.sequence}"
        operation = self._operation(t, t.waiting or cause.at_fault)
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
                f"{lacking}" + self._last_seen(cause.at_fault),
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
                "time-out "
                "if it may take that long.",
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

    def _missing(self, cause: Cause, odd: str, others: str, operation: str) -> tuple[str, str, str]:
        t = cause.trouble
        words = (
            f"{odd} never entered {operation} #{t.sequence} of group {t.group.label}, in which {others} "
            f"{'wait' if len(t.waiting) > 1 else 'waits'}{self._last_seen(cause.at_fault)}"
        )
        left_out = call_sites_part(self._job, t.group, cause.at_fault, t.waiting[0], t.sequence)
        advice = self._advice(cause)
        if left_out is not None:
            sequence, count = left_out
            history = t.group.histories[t.waiting[0]]
            index = history.at(sequence)
            site = place(self._sites(t.waiting[0], index)) if index is not None else ""
            words += (
                f"; by the call sites it left out {count} operation{'s' if count > 1 else ''} at #{sequence}"
                + (f", called by the others at {site}" if site else "")
            )
        return words, "every rank of the group enqueues the same collectives", advice

    def _mismatch(self, cause: Cause) -> tuple[str, str, str]:
        t, d = cause.trouble, cause.trouble.divergence
        assert d is not None
        usual = d.usual or d.sides[0]
        parts = [f"{ranks_words(s)} enqueued {self._what(t, s[0])}" for s in d.sides if s != usual]
        words = (
            f"at #{t.sequence} of group {t.group.label} {', '.join(parts)}, where {ranks_words(usual)} "
            "enqueued "
            f"{self._what(t, usual[0])}"
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

    def _crossed(self, cause: Cause, other: Trouble) -> tuple[str, str, str]:
        t = cause.trouble
        return (
            f"{ranks_words(t.waiting)} {'wait' if len(t.waiting) > 1 else 'waits'} in "
            f"{self._operation(t, t.waiting)} #{t.sequence} of group {t.group.label} while "
            f"{ranks_words(other.waiting)} {'wait' if len(other.waiting) > 1 else 'waits'} in "
            f"{self._operation(other, other.waiting)} #{other.sequence} of group {other.group.label}: "
            "each side waits for the other, because they take the groups in different order",
            "all ranks take their groups in the same order",
            "",
        )

    def _everybody(self, cause: Cause, odd: str, others: str, operation: str) -> tuple[str, str, str]:
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
                f"ranks {t.pair[0]} and {t.pair[1]} exchange {self._what(t, t.pair[0])} against "
                f"{self._what(t, t.pair[1])} in group {t.group.label}",
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

    # -------------------------------------------------------------------------------------- particulars
    def _advice(self, cause: Cause) -> str:
        site, _ = self._fault_site(cause)
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

    def _what(self, trouble: Trouble, rank: int) -> str:
        index = self._index(trouble, rank)
        if index is None:
            return "nothing"
        site = place(self._sites(rank, index))
        return self._members(rank, index) + (f" at {site}" if site else "")

    def _members(self, rank: int, index: int) -> str:
        """The operation; of a coalesced group, what it holds."""
        operation, entries = self._job.operation(rank, index), self._job.dumps[rank].entries
        if not is_coalesced_end(operation):
            return describe(operation)
        first = index
        while first and all(
            column[first - 1] == column[index] for column in (entries.group, entries.sequence, entries.p2p)
        ):
            first -= 1
        held = [describe(self._job.operation(rank, i)) for i in range(first, index)]
        more = f" and {len(held) - SHOWN} more" if len(held) > SHOWN else ""
        return f"{operation.name} ({'; '.join(held[:SHOWN])}{more})" if held else describe(operation)

    def _operation(self, trouble: Trouble, ranks: Sequence[int]) -> str:
        for rank in ranks:
            index = self._index(trouble, rank)
            if index is not None:
                return describe(self._job.operation(rank, index))
        return "a collective"

    def _last_seen(self, ranks: Sequence[int]) -> str:
        """Where the first of the ranks called its recorder last."""
        if not ranks:
            return ""
        dump = self._job.dumps.get(ranks[0])
        if dump is None or not len(dump.entries):
            return "; it recorded nothing at all"
        index = len(dump.entries) - 1
        operation = self._job.operation(ranks[0], index)
        group = dump.groups[dump.entries.group[index]]
        site = place(self._sites(ranks[0], index))
        name = group.name if group.description in ("", "undefined") else f"{group.name} ({group.description})"
        return (
            f"; the last it recorded is {operation.name} #{dump.entries.sequence[index]} of group {name}"
            + (f" at {site}" if site else "")
        )

    def _index(self, trouble: Trouble, rank: int) -> int | None:
        if trouble.pair is None:
            history = trouble.group.histories.get(rank)
            return None if history is None else history.at(trouble.sequence)
        peer = trouble.pair[0] if rank == trouble.pair[1] else trouble.pair[1]
        members = trouble.group.members
        for index in reversed(trouble.group.p2p.get(rank, ())):
            operation = self._job.operation(rank, index)
            ends = {
                members[m] if m is not None and 0 <= m < len(members) else m
                for m in (operation.source, operation.target)
            }
            if peer in ends:
                return index
        return None

    def _sites(self, rank: int, index: int) -> CallSite:
        return self._job.source.sites[self._job.dumps[rank].entries.site[index]]

    def _site(self, trouble: Trouble, ranks: Sequence[int]) -> CallSite:
        for rank in ranks:
            index = self._index(trouble, rank)
            if index is not None and (site := self._sites(rank, index)):
                return site
        return ()

    def _fault_site(self, cause: Cause) -> tuple[CallSite, int | None]:
        """Of the odd operation itself, else of the last one that the rank at fault recorded."""
        for rank in cause.at_fault:
            dump = self._job.dumps.get(rank)
            if dump is None or not len(dump.entries):
                continue
            index = self._index(cause.trouble, rank)
            site = self._sites(rank, len(dump.entries) - 1 if index is None else index)
            if site:
                return site, rank
        return (), None

    def _evidence(self, cause: Cause) -> tuple[tuple[str, int | None, str], ...]:
        t = cause.trouble
        found: list[tuple[str, int | None, str]] = []
        for rank in (*cause.at_fault[: EVIDENCE // 2], *t.waiting[: EVIDENCE // 2]):
            dump = self._job.dumps.get(rank)
            if dump is None:
                continue
            index = self._index(t, rank)
            if index is None:
                last = self._last_seen((rank,)).removeprefix("; ")
                text = f"no #{t.sequence} of group {t.group.label}: {last}"
            else:
                names = ("scheduled", "started", "completed")
                state = names[dump.entries.state[index] & 3] + (
                    " and retired" if dump.entries.state[index] & 4 else ""
                )
                number = f"#{dump.entries.sequence[index]} of group {t.group.label}"
                text = f"{number}: {self._what(t, rank)}, {state}"
            found.append((dump.path, rank, text))
        return tuple(found)

    def _consequence(self, trouble: Trouble) -> str:
        at = f"#{trouble.sequence} of group {trouble.group.label}"
        if trouble.pair is not None:
            at = f"{trouble.pair[0]}->{trouble.pair[1]} of group {trouble.group.label}"
        ranks = trouble.waiting or trouble.at_fault
        return f"{ranks_words(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in {at} because of it"
