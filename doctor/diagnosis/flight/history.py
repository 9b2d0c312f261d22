"""What each rank did in each process group: one history per rank and group, indexed by sequence number."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fsdp_doctor.diagnosis.flight.operations import group_size, match_key
from fsdp_doctor.subjects.flight import (
    COMPLETED,
    RETIRED,
    STARTED,
    FlightDump,
    FlightDumps,
    Operation,
    RecordedGroup,
)

HOLE = 0
"""Stands in `History.keys` for a sequence number without an entry; real keys count from 1."""


@dataclass(frozen=True, slots=True)
class History:
    """Collectives of one rank in one group. The arrays have one item per sequence number from `first` on."""

    first: int
    keys: array[int]
    """Numbers of `match_key`s: equal on two ranks where the operations fit."""
    entry: array[int]
    """Index of the (last) entry in the rank's dump; -1 in a hole."""
    done: bytearray

    @property
    def last(self) -> int:
        """The highest sequence number that was enqueued."""
        return self.first + len(self.keys) - 1

    def at(self, sequence: int) -> int | None:
        """The index of its entry in the dump, None where there is none."""
        place = sequence - self.first
        if not 0 <= place < len(self.entry) or self.entry[place] < 0:
            return None
        return self.entry[place]

    def undone(self) -> int | None:
        """The first sequence number that is not done."""
        place = self.done.find(0)
        return None if place < 0 else self.first + place


@dataclass(frozen=True, slots=True)
class Group:
    """A process group over all ranks."""

    name: str
    description: str
    members: tuple[int, ...]
    stated: bool
    """The dumps list the members; else they are those seen, and as many as the sizes tell."""
    recorded: Mapping[int, RecordedGroup]
    """Rank -> what its dump says of the group; only ranks that know it."""
    histories: Mapping[int, History]
    """Rank -> its collectives; only ranks with entries."""
    p2p: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Rank -> indices of its sends and receives."""
    absent: int = 0
    """Members that nobody names and sizes tell of."""

    @property
    def label(self) -> str:
        """As users know it."""
        known = self.description not in ("", "undefined")
        return f"{self.name} ({self.description})" if known and self.description != self.name else self.name


@dataclass(frozen=True, slots=True)
class Job:
    """Everything the search asks."""

    dumps: Mapping[int, FlightDump]
    operations: Sequence[Operation]
    groups: tuple[Group, ...]
    world: tuple[int, ...]
    source: FlightDumps

    def operation(self, rank: int, index: int) -> Operation:
        """What an entry did."""
        return self.operations[self.dumps[rank].entries.operation[index]]

    def gloo(self, rank: int, index: int) -> bool:
        """Whether an entry is of a backend that ends operations by retiring them, well or badly."""
        return self.operation(rank, index).backend == "gloo"


def arrange(source: FlightDumps) -> Job:
    """The histories of all groups."""
    dumps = {d.rank: d for d in source.dumps}
    keys = _keys(source)
    gloo = bytes(o.backend == "gloo" for o in source.operations)
    known: dict[tuple[str, tuple[int, ...]], dict[int, RecordedGroup]] = defaultdict(dict)
    parts: dict[tuple[str, tuple[int, ...]], dict[int, tuple[History | None, tuple[int, ...]]]] = defaultdict(
        dict
    )
    composites: dict[tuple[int, ...], int] = {}
    for rank, dump in dumps.items():
        for number, indices in _split(dump).items():
            group = dump.groups[number]
            identity = (group.name, group.ranks)
            known[identity][rank] = group
            parts[identity][rank] = _history(dump, indices, keys, gloo, composites)
    _adopt(known, parts)
    world = _world(dumps, known, source.operations)
    groups = [
        _group(name, ranks, recorded, parts[name, ranks], dumps, source.operations, world)
        for (name, ranks), recorded in known.items()
    ]
    return Job(dumps, source.operations, tuple(groups), world, source)


def _adopt(
    known: dict[tuple[str, tuple[int, ...]], dict[int, RecordedGroup]],
    parts: dict[tuple[str, tuple[int, ...]], dict[int, tuple[History | None, tuple[int, ...]]]],
) -> None:
    """Give ranks whose dump does not list a group's members to the group of that name that lists them."""
    for name, ranks in [i for i in known if not i[1]]:
        for rank in list(known[name, ranks]):
            homes = [i for i in known if i[0] == name and rank in i[1]]
            if len(homes) == 1:
                known[homes[0]][rank] = known[name, ranks].pop(rank)
                parts[homes[0]][rank] = parts[name, ranks].pop(rank)
        if not known[name, ranks]:
            del known[name, ranks]


def _keys(source: FlightDumps) -> array[int]:
    """Operation -> number of its match key. Types count only where every dump has them."""
    types = all(o.input_types or o.output_types or not (o.inputs or o.outputs) for o in source.operations)
    numbers: dict[object, int] = {}
    return array(
        "I", (numbers.setdefault(match_key(o, types=types), len(numbers) + 1) for o in source.operations)
    )


def _split(dump: FlightDump) -> dict[int, Sequence[int]]:
    if len(dump.groups) == 1:
        return {0: range(len(dump.entries))}
    found: dict[int, list[int]] = {n: [] for n in range(len(dump.groups))}
    for index, group in enumerate(dump.entries.group):
        found[group].append(index)
    return dict(found)


def _history(
    dump: FlightDump,
    indices: Sequence[int],
    keys: Sequence[int],
    gloo: bytes,
    composites: dict[tuple[int, ...], int],
) -> tuple[History | None, tuple[int, ...]]:
    entries = dump.entries
    p2p = tuple(i for i in indices if entries.p2p[i]) if 1 in entries.p2p else ()
    mine = [i for i in indices if not entries.p2p[i]] if p2p else indices
    if not mine:
        return None, p2p
    first = min(entries.sequence[i] for i in mine)
    last = max(entries.sequence[i] for i in mine)
    if last - first > 4 * len(mine) + 65536:  # a counter that no recorder writes; keep what is dense
        first = last - 4 * len(mine)
        mine = [i for i in mine if entries.sequence[i] >= first]
    count = last - first + 1
    numbers, places = array("I", bytes(4 * count)), array("i", [-1]) * count
    done = bytearray(b"\1") * count
    many: dict[int, list[int]] = {}
    for i in mine:
        place = entries.sequence[i] - first
        operation = entries.operation[i]
        if places[place] >= 0:
            many.setdefault(place, [numbers[place]]).append(keys[operation])
        numbers[place] = keys[operation]
        places[place] = i
        state = entries.state[i]
        done[place] = (state & 3) == COMPLETED or bool(gloo[operation] and state & RETIRED)
    for place, members in many.items():
        numbers[place] = composites.setdefault(tuple(members), (1 << 31) + len(composites))
    return History(first, numbers, places, done), p2p


def _world(
    dumps: Mapping[int, FlightDump],
    known: Mapping[tuple[str, tuple[int, ...]], Mapping[int, RecordedGroup]],
    operations: Sequence[Operation],
) -> tuple[int, ...]:
    stated = {r for _, ranks in known for r in ranks}
    if stated:
        return tuple(sorted(stated | set(dumps)))
    highest = max(dumps, default=-1) + 1
    told = Counter(s for o in operations if (s := group_size(o)))
    return tuple(range(max(highest, max(told, default=0) if max(told, default=0) <= 1 << 20 else 0)))


def _group(
    name: str,
    ranks: tuple[int, ...],
    recorded: Mapping[int, RecordedGroup],
    parts: Mapping[int, tuple[History | None, tuple[int, ...]]],
    dumps: Mapping[int, FlightDump],
    operations: Sequence[Operation],
    world: tuple[int, ...],
) -> Group:
    description = next((g.description for g in recorded.values() if g.description), "")
    histories = {r: h for r, (h, _) in parts.items() if h is not None}
    members, absent = ranks, 0
    if not ranks:
        everyone = description == "default_pg" or (name == "0" and description in ("", "undefined"))
        members = world if everyone else tuple(sorted(recorded))
        told = _size_told(histories, dumps, operations)
        if not everyone and told is not None:
            absent = max(0, told - len(members))
    return Group(
        name,
        description,
        members,
        bool(ranks),
        recorded,
        histories,
        {r: p for r, (_, p) in parts.items() if p},
        absent,
    )


def _size_told(
    histories: Mapping[int, History], dumps: Mapping[int, FlightDump], operations: Sequence[Operation]
) -> int | None:
    for rank, history in histories.items():
        for index in history.entry[-64:]:
            size = group_size(operations[dumps[rank].entries.operation[index]]) if index >= 0 else None
            if size is not None:
                return size
    return None


def has_start_times(dump: FlightDump) -> bool:
    """Whether this recorder notices starts (TORCH_NCCL_ENABLE_TIMING); else `scheduled` says nothing of
    them.
    """
    return any((s & 3) == STARTED for s in set(dump.entries.state))
