"""What the dumps show of a trouble: each rank's own entry, its call site, and the last thing it recorded."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_doctor.diagnosis.flight.chain import Cause
from fsdp_doctor.diagnosis.flight.history import Job
from fsdp_doctor.diagnosis.flight.operations import describe, is_coalesced_end
from fsdp_doctor.diagnosis.flight.sites import place
from fsdp_doctor.diagnosis.flight.trouble import Trouble
from fsdp_doctor.subjects.flight import CallSite

SHOWN = 8
EVIDENCE = 6


def ranks_words(ranks: Sequence[int]) -> str:
    """Such as "rank 3", "ranks 0-6" or "ranks 0, 3, 5"; long lists are cut."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}-{ranks[-1]}"
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return "ranks " + ", ".join(map(str, ranks[:SHOWN])) + more


class Recorded:
    """Looks up in the dumps of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def what(self, trouble: Trouble, rank: int) -> str:
        """What a rank enqueued at a trouble, and where it was called."""
        index = self.index(trouble, rank)
        if index is None:
            return "nothing"
        site = place(self.sites(rank, index))
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

    def operation(self, trouble: Trouble, ranks: Sequence[int]) -> str:
        """The operation of the first of the ranks that has one."""
        for rank in ranks:
            index = self.index(trouble, rank)
            if index is not None:
                return describe(self._job.operation(rank, index))
        return "a collective"

    def last_seen(self, ranks: Sequence[int]) -> str:
        """Where the first of the ranks called its recorder last."""
        if not ranks:
            return ""
        dump = self._job.dumps.get(ranks[0])
        if dump is None or not len(dump.entries):
            return "; it recorded nothing at all"
        index = len(dump.entries) - 1
        operation = self._job.operation(ranks[0], index)
        group = dump.groups[dump.entries.group[index]]
        site = place(self.sites(ranks[0], index))
        name = group.name if group.description in ("", "undefined") else f"{group.name} ({group.description})"
        return (
            f"; the last it recorded is {operation.name} #{dump.entries.sequence[index]} of group {name}"
            + (f" at {site}" if site else "")
        )

    def index(self, trouble: Trouble, rank: int) -> int | None:
        """The number of a rank's entry at a trouble; None where it has none."""
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

    def sites(self, rank: int, index: int) -> CallSite:
        """Where a rank's entry was called."""
        return self._job.source.sites[self._job.dumps[rank].entries.site[index]]

    def site(self, trouble: Trouble, ranks: Sequence[int]) -> CallSite:
        """Where the first of the ranks called its operation."""
        for rank in ranks:
            index = self.index(trouble, rank)
            if index is not None and (site := self.sites(rank, index)):
                return site
        return ()

    def fault_site(self, cause: Cause) -> tuple[CallSite, int | None]:
        """Of the odd operation itself, else of the last one that the rank at fault recorded."""
        for rank in cause.at_fault:
            dump = self._job.dumps.get(rank)
            if dump is None or not len(dump.entries):
                continue
            index = self.index(cause.trouble, rank)
            site = self.sites(rank, len(dump.entries) - 1 if index is None else index)
            if site:
                return site, rank
        return (), None

    def evidence(self, cause: Cause) -> tuple[tuple[str, int | None, str], ...]:
        """(file, rank, words) of ranks at fault and of ranks that wait."""
        t = cause.trouble
        found: list[tuple[str, int | None, str]] = []
        for rank in (*cause.at_fault[: EVIDENCE // 2], *t.waiting[: EVIDENCE // 2]):
            dump = self._job.dumps.get(rank)
            if dump is None:
                continue
            index = self.index(t, rank)
            if index is None:
                last = self.last_seen((rank,)).removeprefix("; ")
                text = f"no #{t.sequence} of group {t.group.label}: {last}"
            else:
                names = ("scheduled", "started", "completed")
                state = names[dump.entries.state[index] & 3] + (
                    " and retired" if dump.entries.state[index] & 4 else ""
                )
                number = f"#{dump.entries.sequence[index]} of group {t.group.label}"
                text = f"{number}: {self.what(t, rank)}, {state}"
            found.append((dump.path, rank, text))
        return tuple(found)
