"""Dumps in the form that torch's own pickler writes, entry by entry, without building the entries.

That form memoises texts and nothing else, so that all entries with the same keys have the same bytes but
for their values. One entry is read by the plain machine; from it a pattern is made that takes the next ones
whole, with their lists as raw bytes: those that repeat are decoded once. An entry that does not fit goes to
the machine again, and a new pattern is made from it. What the pattern takes is what the machine would have
read: each kind of value begins with a byte of its own.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from operator import itemgetter

from .columns import Columns
from .plain import MARK, Cut, Machine

START = b"\x80\x02}("
"""A dict that is filled without being memoised first: Python's pickler never writes that."""
PATTERNS = 8
"""Shapes of entries that are kept."""
MISSES = 32
"""Entries that may go to the machine before it is too slow."""
_INT = rb"(?:K.|M..|J....|\x8a\x08.{8})"
_REF = rb"(?:h.|j....)"
_BOOL = rb"[\x88\x89]"
_INTS = rb"\](?:\(" + _INT + rb"+e|" + _INT + rb"a)?"
_SHAPES = rb"\](?:\((?:" + _INTS + rb")+e|" + _INTS + rb"a)?"
_REFS = rb"\](?:\(" + _REF + rb"+e|" + _REF + rb"a)?"
_FRAME = rb"\}\((?:" + _REF + rb"(?:" + _REF + rb"|" + _INT + rb")){3}u"
_FRAMES = re.compile(rb"\](?:\((?:" + _FRAME + rb")+e|" + _FRAME + rb"a|(?![(}]))", re.DOTALL)
_SCALAR = rb"(?:" + _INT + rb"|" + _REF + rb"|N|" + _BOOL + rb"|G.{8})"
_VALUES = {
    "input_sizes": _SHAPES,
    "output_sizes": _SHAPES,
    "input_dtypes": _REFS,
    "output_dtypes": _REFS,
    "frames": _FRAMES.pattern,
    "process_group": _REF + _REF + rb"\x86",
}
_TAKEN = (
    "profiling_name",
    "state",
    "collective_seq_id",
    "p2p_seq_id",
    "is_p2p",
    "retired",
    "time_created_ns",
    *_VALUES,
    "pg_id",
    "timeout_ms",
)
"""Keys whose values are wanted. Entries without the first seven go to the machine one by one."""
_KNOWN_FRAMES = 64
"""Lists of frames that are looked for by their bytes before they are taken apart."""
Shape = tuple[re.Pattern[bytes], "re.Pattern[bytes] | None", Callable[[tuple[bytes, ...]], tuple[bytes, ...]]]
"""An entry up to its frames, what follows them (None where there are none), and what of it is wanted."""


class Unsuited(Exception):
    """Too few entries have a shape of their own: the general way is faster."""


class Stream:
    """Reads one dump. `root` is the dump without its entries, which are in `columns`."""

    def __init__(self, data: bytes) -> None:
        self.columns = Columns()
        self.root: dict[object, object] = {}
        self._data = data
        self._machine = Machine(data)
        self._patterns: list[Shape] = []
        self._operations: dict[tuple[bytes, ...], int] = {}
        self._sites: dict[bytes, int] = {}
        self._groups: dict[tuple[bytes, bytes], int] = {}
        self._states: dict[bytes, int] = {}
        self._known_frames: list[bytes] = []
        self._missed = 0

    def run(self) -> bool:
        """Read to the end; false where the bytes end before the dump does. Raises `Unsuited`, `Refused`."""
        machine = self._machine
        try:
            while machine.step():
                stack = machine.stack
                if (
                    stack
                    and stack[-1] is MARK
                    and len(stack) > 2
                    and stack[-2] == []
                    and stack[-3] == "entries"
                ):
                    self._entries()
            whole = True
        except (Cut, IndexError, KeyError, struct.error):
            whole = False
        found = machine.unwind()
        self.root = found if isinstance(found, dict) else {}
        return whole

    def _entries(self) -> None:
        machine, data = self._machine, self._data
        while True:
            for number, (pattern, rest, wanted) in enumerate(self._patterns):
                match = pattern.match(data, machine.at)
                if match is None:
                    continue
                raw, end = match.groups(), match.end()
                if rest is not None:
                    frames = self._frames(end)
                    if frames is None or (match := rest.match(data, end + len(frames))) is None:
                        continue
                    raw, end = (*raw, frames, *match.groups()), match.end()
                if number:
                    self._patterns.insert(0, self._patterns.pop(number))
                self._take(wanted((b"", *raw)), end)
                break
            else:
                if data[machine.at : machine.at + 1] in (b"e", b""):
                    return
                self._missed += 1
                if self._missed > MISSES + len(self.columns.sequence) // 4:
                    raise Unsuited
                self._one()

    def _frames(self, at: int) -> bytes | None:
        """The bytes of the list of frames at a place; None where there is none of the usual form."""
        data, known = self._data, self._known_frames
        for frames in known:
            if data.startswith(frames, at):
                return frames
        found = _FRAMES.match(data, at)
        if found is None:
            return None
        if len(known) < _KNOWN_FRAMES and len(found[0]) > 1:  # every list begins as an empty one does
            known.append(found[0])
        return found[0]

    def _one(self) -> None:
        """Let the machine read one entry and learn its shape."""
        machine = self._machine
        depth = len(machine.stack) + 1
        while machine.step():
            after = self._data[machine.at : machine.at + 1]
            if (
                len(machine.stack) == depth
                and machine.stack[-1] is not MARK
                and after not in (b"q", b"r", b"(")
            ):
                break
        entry = machine.stack.pop()
        self.columns.add(entry)
        if isinstance(entry, dict):
            self._learn(entry)

    def _learn(self, entry: dict[object, object]) -> None:
        if len(self._patterns) >= PATTERNS or not set(_TAKEN[:7]) <= entry.keys():
            return
        numbers = {v: k for k, v in self._machine.memo.items() if type(v) is str}
        gets, parts, order = [], [], []
        for key in entry:
            if key not in numbers:
                return
            number = numbers[key]
            got = b"h" + struct.pack("<B", number) if number < 256 else b"j" + struct.pack("<I", number)
            order.append(_TAKEN.index(key) if key in _TAKEN else -1)
            gets.append(re.escape(got))
            parts.append(re.escape(got) + b"(" + _VALUES.get(str(key), _SCALAR) + b")")
        places = tuple(order.index(n) + 1 if n in order else 0 for n in range(len(_TAKEN)))
        rest = None
        if "frames" in entry:
            at = list(entry).index("frames")
            before, after = parts[:at], parts[at + 1 :]
            parts = [*before, gets[at]]
            rest = re.compile(b"".join(after) + b"u", re.DOTALL)
        end = b"" if rest is not None else b"u"
        pattern = re.compile(rb"\}\(" + b"".join(parts) + end, re.DOTALL)
        self._patterns.insert(0, (pattern, rest, itemgetter(*places)))

    def _take(self, raw: tuple[bytes, ...], end: int) -> None:
        """One entry of a known shape, up to `end`."""
        columns = self.columns
        name, state, collective, other, p2p, retired, created = raw[:7]
        inputs, outputs, in_types, out_types, frames, pair, number = raw[7:14]
        key = (name, inputs, outputs, in_types, out_types)
        operation = self._operations.get(key)
        site = self._sites.get(frames)
        group = self._groups.get((pair, number))
        told = self._states.get(state)
        sent = p2p == b"\x88"
        sequence, time = _integer(other if sent else collective), _integer(created)
        if None in (operation, site, group, told, sequence, time):
            if not self._by_machine(end, key, frames, (pair, number), state):
                raise Cut("an entry refers to what was not written")
            return
        self._machine.at = end
        columns.group.append(group)  # type: ignore[arg-type]
        columns.sequence.append(sequence)  # type: ignore[arg-type]
        columns.p2p.append(sent)
        columns.operation.append(operation)  # type: ignore[arg-type]
        columns.site.append(site)  # type: ignore[arg-type]
        columns.state.append(told | (4 if retired == b"\x88" else 0))  # type: ignore[operator]
        columns.created.append(time)  # type: ignore[arg-type]

    def _by_machine(
        self,
        end: int,
        key: tuple[bytes, ...],
        frames: bytes,
        group: tuple[bytes, bytes],
        state: bytes,
    ) -> bool:
        """Values that were not seen yet are decoded by the machine, once, and remembered by their bytes."""
        machine, columns = self._machine, self.columns
        before = len(columns.sequence)
        while machine.at < end:
            machine.step()
        columns.add(machine.stack.pop())
        if len(columns.sequence) == before:
            return True  # counted as bad
        self._operations[key] = columns.operation[-1]
        self._sites[frames] = columns.site[-1]
        self._groups[group] = columns.group[-1]
        self._states[state] = columns.state[-1] & 3
        return True


def _integer(raw: bytes) -> int | None:
    code = raw[:1]
    if code in (b"K", b"M"):
        return int.from_bytes(raw[1:], "little")
    if code == b"J":
        return int.from_bytes(raw[1:], "little", signed=True)
    return int.from_bytes(raw[2:], "little", signed=True) if code == b"\x8a" else None
