"""A dump's entries as columns: arrays of small integers, with tables of what is the same in many entries."""

from __future__ import annotations

import marshal
import re
from array import array

NAME_LIMIT = 200
SHAPES = 4096
"""Tensors of one operation whose shapes are kept."""
FRAMES = 64
"""Frames of one call that are kept."""
_STATES = {"scheduled": 0, "started": 1, "completed": 2}
_PAIR = re.compile(r"^(send|recv) (-?\d+)(->|<-)(-?\d+)$")
_BIG = 1 << 62


def whole(value: object) -> int | None:
    """An integer, also one that JSON wrote as text; None for anything else."""
    if type(value) is int:
        return value if -_BIG < value < _BIG else None
    if type(value) is str and len(value) < 20:
        try:
            return int(value)
        except ValueError:
            return None
    return None


def words(value: object) -> str:
    """A short text."""
    return value[:NAME_LIMIT] if type(value) is str else ""


class Columns:
    """Collects entries."""

    def __init__(self) -> None:
        self.group, self.site, self.operation = array("I"), array("I"), array("I")
        self.sequence, self.created = array("q"), array("q")
        self.p2p, self.state = array("B"), array("B")
        self.groups: dict[tuple[str, str, str], int] = {}
        self.timeouts: dict[int, int] = {}
        self.operations: list[list[object]] = []
        self.sites: list[list[list[object]]] = []
        self.bad = 0
        self.first_record: int | None = None
        self._operation_keys: dict[bytes, int] = {}
        self._site_keys: dict[object, int] = {}
        self._same_frames: dict[int, tuple[object, int]] = {}
        self._group_keys: dict[object, int] = {}

    def add(self, entry: object) -> None:
        """Take one entry; one that lacks what every version has is counted as bad."""
        if type(entry) is not dict:
            self.bad += 1
            return
        name = entry.get("profiling_name")
        told = entry.get("state")
        state = _STATES.get(told) if type(told) is str else None
        p2p = entry.get("is_p2p")
        if p2p is None:
            p2p = type(name) is str and name.partition(":")[2].startswith(("send ", "recv "))
        sequence = entry.get("p2p_seq_id" if p2p else "collective_seq_id", entry.get("seq_id"))
        if type(sequence) is not int:
            sequence = whole(sequence)
        if sequence is None or state is None or type(name) is not str:
            self.bad += 1
            return
        created = entry.get("time_created_ns")
        if type(created) is not int:
            created = whole(created)
            if created is None:
                micro = whole(entry.get("time_created_us"))
                created = micro * 1000 if micro is not None and abs(micro) < _BIG // 1000 else 0
        if not (-_BIG < sequence < _BIG and -_BIG < created < _BIG):
            self.bad += 1
            return
        if self.first_record is None:
            self.first_record = whole(entry.get("record_id"))
        group = self._group(entry)
        timeout = entry.get("timeout_ms")
        if type(timeout) is int and 0 < timeout < _BIG:
            self.timeouts[group] = timeout
        self.group.append(group)
        self.sequence.append(sequence)
        self.p2p.append(1 if p2p else 0)
        self.operation.append(self._operation(name, entry))
        self.site.append(self._site(entry.get("frames")))
        self.state.append(state | (4 if entry.get("retired") else 0))
        self.created.append(created)

    def close_batches(self) -> None:
        """Count the entry that closes a batch of sends and receives among them.

        torch marks it as no point-to-point operation and gives it the number of the last collective.
        """
        ends = {n for n, operation in enumerate(self.operations) if operation[1] == "coalesced"}
        if not ends:
            return
        for i in range(1, len(self.operation)):
            if self.operation[i] in ends and self.p2p[i - 1] and self.group[i] == self.group[i - 1]:
                self.p2p[i], self.sequence[i] = 1, self.sequence[i - 1]

    def _group(self, entry: dict[object, object]) -> int:
        pair = entry.get("process_group")
        number = entry.get("pg_id")
        if type(pair) is not tuple or type(number) is not int:
            return self._group_number(pair, number)
        try:
            known = self._group_keys.get((pair, number))
        except TypeError:  # a list within
            return self._group_number(pair, number)
        if known is None:
            known = self._group_keys[pair, number] = self._group_number(pair, number)
        return known

    def _group_number(self, pair: object, number: object) -> int:
        key = (
            (words(pair[0]), words(pair[1]), str(whole(number)))
            if isinstance(pair, (tuple, list)) and len(pair) == 2
            else (str(whole(number)), "", str(whole(number)))
        )
        return self.groups.setdefault(key, len(self.groups))

    def _operation(self, name: str, entry: dict[object, object]) -> int:
        parts = (
            name,
            entry.get("input_sizes"),
            entry.get("output_sizes"),
            entry.get("input_dtypes"),
            entry.get("output_dtypes"),
        )
        try:
            key = marshal.dumps(parts, 2)  # type: ignore[arg-type]
        except ValueError:  # nested too deep: no dump of torch's
            parts, key = (name, None, None, None, None), name.encode("utf-8", "replace")
        known = self._operation_keys.get(key)
        if known is None:
            known = self._operation_keys[key] = len(self.operations)
            backend, colon, rest = name.partition(":")
            pair = _PAIR.match(rest)
            first, second = (int(pair[2]), int(pair[4])) if pair and len(rest) < 40 else (None, None)
            if pair and pair[3] == "<-":
                first, second = second, first
            self.operations.append(
                [
                    words(backend) if colon else "",
                    pair[1] if pair else words(rest if colon else name),
                    _shapes(parts[1]),
                    _shapes(parts[2]),
                    _types(parts[3]),
                    _types(parts[4]),
                    first,
                    second,
                ]
            )
        return known

    def _site(self, frames: object) -> int:
        if type(frames) is not list or not frames:
            return self._site_number((), [])
        # Python's pickler writes a list that entries share once. It is kept, so that its id stays its own.
        same = self._same_frames.get(id(frames))
        if same is None:
            same = self._same_frames[id(frames)] = (frames, self._site_of(frames))
        return same[1]

    def _site_of(self, frames: list[dict[str, object]]) -> int:
        try:
            key: object = tuple([(f["name"], f["filename"], f["line"]) for f in frames[:FRAMES]])
            known = self._site_keys.get(key)
        except (TypeError, KeyError):
            return self._site_number((), [])
        return known if known is not None else self._site_number(key, frames[:FRAMES])

    def _site_number(self, key: object, frames: list[dict[str, object]]) -> int:
        known = self._site_keys.get(key)
        if known is None:
            known = self._site_keys[key] = len(self.sites)
            self.sites.append(
                [[words(f.get("name")), words(f.get("filename")), whole(f.get("line")) or 0] for f in frames]
            )
        return known


def _shapes(value: object) -> list[list[int]]:
    if type(value) is not list:
        return []
    if value and all(type(v) is int for v in value):
        value = [value]
    return [
        [n for n in map(whole, shape) if n is not None] if type(shape) is list else []
        for shape in value[:SHAPES]
    ]


def _types(value: object) -> list[str]:
    return [words(v) for v in value[:SHAPES]] if type(value) is list else []
