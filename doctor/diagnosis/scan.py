"""One pass over one stream: the matcher finds places, and only their lines are read.

The stream is held in a window (`window`). A line that a signature may know is read (`reader`): its expression
decides, and what it caught is kept (`ledger`). Tracebacks and tables are followed over several lines
(`blocks`, `marking`). Lines that no signature knows are looked at in samples, for the ranks that write and
the steps they report (`noting`). Memory is that of the window and of what was found, whatever the length.
"""

from __future__ import annotations

import re
from dataclasses import replace

from fsdp_doctor.diagnosis import blocks, markers, marking
from fsdp_doctor.diagnosis.blocks import Line
from fsdp_doctor.diagnosis.ledger import KEEP_EACH, Ledger
from fsdp_doctor.diagnosis.marking import Surroundings
from fsdp_doctor.diagnosis.matcher import Matcher
from fsdp_doctor.diagnosis.noting import Notes, samples
from fsdp_doctor.diagnosis.prefixes import Prefix
from fsdp_doctor.diagnosis.reader import Reader, clip, pieces
from fsdp_doctor.diagnosis.records import Key, SourceScan
from fsdp_doctor.diagnosis.structured import said, under
from fsdp_doctor.diagnosis.window import LONGEST, NEVER, Window
from fsdp_doctor.subjects.incident import Frame, Hit
from fsdp_doctor.tables.log_signatures import SIGNATURES, Signature

HEAD = 64 << 10
"""Bytes at the beginning that tell how lines begin."""
FIELD = 300
GENERIC, TABLE, RESTART, AGENT = "LOG298", "LOG204", "LOG218", "LOG201"
ALWAYS = frozenset((RESTART, TABLE, AGENT))
"""Of these every line tells something of its own."""
ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
GROUP = re.compile(
    r"\[PG (?:ID )?(?P<id>\d+)(?: PG GUID (?P<guid>[\w-]+?)(?:\((?P<name>[^)]*)\))?)? Rank (?P<rank>\d+)\]"
)
TOKEN = re.compile(rb"\[(?:rank|default|Rank )\d+\]")
"""A beginning of a line that is worth remembering with the writer it stood for."""


class Scanner:
    """Takes a stream in pieces (`feed`) and gives what it holds (`finish`)."""

    def __init__(self, scan: SourceScan, matcher: Matcher, year: int) -> None:
        self.scan = scan
        self._reader = Reader(scan, year)
        self._window = Window()
        self._look = Look(scan, matcher, self._reader, self._window, Ledger(scan, ALWAYS))

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream, in UTF-8 as far as they are text."""
        self.scan.bytes += len(data)
        if b"\x1b" in data:
            data = ANSI.sub(b"", data)
        self._window.data += data
        while self._window.is_full:
            self._next(final=False)

    def finish(self) -> SourceScan:
        """Look at what is left, and give all."""
        self._next(final=True)
        self._look.ledger.close()
        self.scan.lines = self._window.passed
        if self.scan.bytes and not self._window.data.endswith(b"\n"):
            self.scan.lines += 1
        return self.scan

    def _next(self, final: bool) -> None:
        self._reader.begin(self._window.data[:HEAD])
        self._look.part(final)


class Look:
    """Looks at the parts of one window."""

    def __init__(
        self, scan: SourceScan, matcher: Matcher, reader: Reader, window: Window, ledger: Ledger
    ) -> None:
        self.ledger = ledger
        self._scan = scan
        self._matcher = matcher
        self._reader = reader
        self._window = window
        self._notes = Notes(scan, reader)
        self._taken: set[int] = set()
        """Where lines begin that were read as parts of a traceback or a table."""
        self._ends: dict[int, tuple[Line, tuple[Frame, ...]]] = {}
        """Where the last lines of tracebacks begin, with their frames."""
        self._block = Prefix()  # whose output a launcher repeats here

    def part(self, final: bool) -> None:
        """Look at the next part of the window, and move on."""
        window = self._window
        start, end = window.part(final)
        places = self._matcher.places(window.data[start:end])
        places.sort()
        at = stop = NEVER
        gates: set[int] = set()
        for found, gate in places:
            if found + start <= stop:
                gates.add(gate)
                continue
            if gates:
                self._line(at, stop, gates)
            at, stop = window.bounds(found + start, stop)
            gates = {gate}
        if gates:
            self._line(at, stop, gates)
        self._end_traces(end)
        for low, high in samples(start, end):
            self._notes.observe(window, low, high, self._taken)
        self._move(window.advance(end), end)

    def _move(self, back: int, end: int) -> None:
        self._taken = {s - back for s in self._taken if s >= end}
        self._ends = {a - back: (replace(x[0], at=x[0].at - back), x[1]) for a, x in self._ends.items()}

    def _around(self, line: Line, stop: int) -> Surroundings:
        return Surroundings(line, stop, self._window, self._reader)

    # one line

    def _line(self, at: int, stop: int, gates: set[int]) -> None:
        """A line that some signatures may know."""
        self._end_traces(at)
        if at in self._taken:
            return
        signatures = [s for g in gates for s in self._matcher.gates[g]]
        token = TOKEN.match(self._window.data, at)
        if token is not None and self.ledger.passes_over(token[0], [s.code for s in signatures]):
            return
        number = self._window.number(at)
        ended = self._ends.pop(at, None)
        frames = ended[1] if ended is not None else ()
        for piece in pieces(self._window.text(at, stop)):
            told = said(piece)
            if told is not None and len(told[0]) > 1:
                self._several(*told, number)
                continue
            text, outer = (told[0][0], told[1]) if told is not None else (piece, None)
            prefix = self._reader.strip(text)
            line = Line(at, number, text, prefix if outer is None else under(prefix, outer))
            if ended is not None:
                under(line.prefix, ended[0].prefix)
            if line.is_bare:
                under(line.prefix, self._block)
            if token is not None:
                self.ledger.remember(token[0], self._reader.key(line.prefix))
            self._judge(line, stop, signatures, frames)

    def _several(self, texts: list[str], outer: Prefix, number: int) -> None:
        """The lines of one structured message are looked at as if they had been printed."""
        data = "\n".join(texts)[: 4 * LONGEST].encode("utf-8", "replace")
        inner = Window(data, fixed=number)
        Look(self._scan, self._matcher, self._reader.inside(outer), inner, self.ledger).part(final=True)

    def _judge(self, line: Line, stop: int, signatures: list[Signature], frames: tuple[Frame, ...]) -> None:
        """Ask each signature, those that know anything by its form alone at last."""
        key = self._reader.key(line.prefix)
        known = False
        general: list[Signature] = []
        for signature in dict.fromkeys(signatures):
            if signature.generic:
                general.append(signature)
            elif self._ask(signature, line, stop, key, frames):
                known = known or not markers.is_marker(signature)
        if known:
            return
        for signature in general:
            known = self._ask(signature, line, stop, key, frames) or known
        if not known and frames and line.prefix.text.strip():
            self._unknown(line, key, frames)

    def _ask(self, signature: Signature, line: Line, stop: int, key: Key, frames: tuple[Frame, ...]) -> bool:
        """Whether a signature knows a line; what it catches is kept."""
        code, text = signature.code, line.prefix.text
        if signature.generic and line.prefix.kernel:
            return False  # "LustreError: …" is no exception
        if self.ledger.has_enough(code, key):
            self.ledger.again(code, key, line.prefix.time)
            return True
        found = signature.regex.search(text)
        if (
            found is None
            and line.raw is not text
            and not markers.is_marker(signature)
            and not signature.generic
        ):
            found = signature.regex.search(line.raw)
        if found is None:
            return False
        self.ledger.count(code, key)
        fields = {k: v[:FIELD] for k, v in found.groupdict().items() if v is not None}
        if markers.is_marker(signature):
            self._mark(code, fields, self._around(line, stop), key)
        else:
            self._hit(signature, fields, self._around(line, stop), key, frames)
        return True

    def _mark(self, code: str, fields: dict[str, str], around: Surroundings, key: Key) -> None:
        if code == markers.BLOCK:
            self._block = marking.block(fields)
        elif code == markers.TRACEBACK:
            if around.line.is_bare:
                marking.inherit(around)
            trace = blocks.traceback(around.line, around.below())
            self._taken.update(a for a in trace.lines[1:] if trace.end is None or a != trace.end.at)
            if trace.end is not None and trace.frames:
                self._ends[trace.end.at] = (trace.end, trace.frames)
        elif self.ledger.takes_mark(code, key):
            self._taken.update(marking.mark(self._scan, self._reader, code, fields, around))

    def _hit(
        self,
        signature: Signature,
        fields: dict[str, str],
        around: Surroundings,
        key: Key,
        frames: tuple[Frame, ...],
    ) -> None:
        line = around.line
        if signature.code == RESTART:
            self._scan.attempts += 1
        elif signature.code == TABLE:
            marking.table(self._scan, self._reader, around)
        if group := GROUP.search(line.raw):
            fields.setdefault("pg", group["name"] or group["guid"] or group["id"])
            fields.setdefault("pg_id", group["guid"] or group["id"])
            fields.setdefault("pg_rank", group["rank"])
        text, origin = clip(marking.whole_message(around)), self._reader.origin(line)
        self.ledger.add(Hit(signature.code, signature.kind.value, origin, text, fields, frames), key, line)

    # tracebacks

    def _end_traces(self, at: int) -> None:
        """Exceptions at the ends of tracebacks up to `at` that no gate met."""
        for place in sorted(a for a in self._ends if a < at):
            line, frames = self._ends.pop(place)
            self._judge(line, place + len(line.raw), [], frames)

    def _unknown(self, line: Line, key: Key, frames: tuple[Frame, ...]) -> None:
        """The last line of a traceback whose exception no signature knows by its name."""
        name, _, message = line.prefix.text.partition(": ")
        if not blocks.ENDED.match(line.prefix.text) or len(name) > 120 or "ChildFailedError" in name:
            return
        if self.ledger.count(GENERIC, key) < KEEP_EACH:
            fields = {"exc": name.rstrip(":"), "msg": message[:FIELD]}
            kind, origin = SIGNATURES[GENERIC].kind.value, self._reader.origin(line)
            self.ledger.add(Hit(GENERIC, kind, origin, clip(line.prefix.text), fields, frames), key, line)
