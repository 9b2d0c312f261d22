"""One pass over one stream: the matcher finds places, and only their lines are read.

The stream is held in a window: a part that is being looked at, some bytes before it (a line is read back to
its beginning, a table to its head) and some after it (a traceback is followed to its end). Memory is that of
the window and of what was found, whatever the stream's length. Lines that no signature knows are looked at in
samples, for the ranks that write and the steps they report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

from fsdp_doctor.diagnosis import blocks, markers
from fsdp_doctor.diagnosis.blocks import Line
from fsdp_doctor.diagnosis.clocks import parse
from fsdp_doctor.diagnosis.data_share import data_share
from fsdp_doctor.diagnosis.matcher import Matcher
from fsdp_doctor.diagnosis.prefixes import Prefix, Style, rank_in_text, strip, style_of
from fsdp_doctor.diagnosis.progress import counted, progress, thin
from fsdp_doctor.diagnosis.records import Found, Key, Marked, Seen, SourceScan
from fsdp_doctor.subjects.incident import Exit, Frame, Hit, Origin, StepPoint, ThreadStack
from fsdp_doctor.tables.log_signatures import Signature

PART = 4 << 20
BACK = 32 << 10
AHEAD = 128 << 10
LONGEST = 32 << 10
"""Bytes of a line that are read around a place; a longer line is not read as a whole."""
WHOLE = 1 << 20
"""A part up to this size is looked at line by line; a larger one in samples."""
SAMPLE = 6 << 10
SAMPLES = 3
TEXT = 600
KEEP_EACH = 40
"""Hits of one signature and one writer that are kept; more are counted."""
KEEP_ALL = 60_000
KEEP_MARKS = 400
KEEP_WRITERS = 8192
NEVER = -1
NOTED = 256
"""Lines of one writer that wait for a closer look."""

ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
BAR = re.compile(r"[^|]{0,80}\d{1,3}%\|")
"""A progress bar, which overwrites its line."""
INSIDE = re.compile(r"(?<=[^\s:\]])(?=\[rank\d{1,6}\]: ?\S)")
GROUP = re.compile(
    r"\[PG (?:ID )?(?P<id>\d+)(?: PG GUID (?P<guid>[\w-]+?)(?:\((?P<name>[^)]*)\))?)? Rank (?P<rank>\d+)\]"
)
MESSAGE_KEYS = ("message", "msg", "log", "text", "event", "MESSAGE", "textPayload", "body")
TRACE_KEYS = ("exc_info", "exception", "traceback", "stack_trace", "stack", "py_callstack", "error")
TIME_KEYS = ("time", "ts", "timestamp", "asctime", "@timestamp", "datetime")
RANK_KEYS = ("rank", "global_rank", "RANK")
HOST_KEYS = ("host", "hostname", "node", "pod", "pod_name")
GENERIC = "LOG298"
TABLE = "LOG204"
RESTART = "LOG218"
AGENT = "LOG201"
NEVER_ENOUGH = frozenset((RESTART, TABLE, AGENT))
TOKEN = re.compile(rb"\[(?:rank|default|Rank )\d+\]")
"""A beginning of a line that is worth remembering with the writer it stood for."""


LOUD = re.compile(
    r"ProcessGroup\w*\.cpp|TCPStore|\bc10d\b|\bNCCL\b|\[(?:PG|Rank) |Watchdog|frame #\d|"
    r"Exception raised from|terminate called|what\(\)|recvValue|sendBytes|closing signal|Signal \d|"
    r"^\s*(?:File \"|Traceback|\^|~)|"
    r"^(?:[A-Za-z_][\w.]*\.)?\w*(?:Error|Exception|Warning|Interrupt|Exit)\b|"
    r"^\s*(?:time|host|rank|exitcode|error_file|traceback) +:|^[-=]{8,}|^(?:Failures|Root Cause)\b",
)
"""Lines that libraries print about a failure, none of which says what the program was doing."""


class Scanner:
    """Takes a stream in pieces (`feed`) and gives what it holds (`finish`)."""

    def __init__(self, scan: SourceScan, matcher: Matcher, year: int, style: Style | None = None) -> None:
        self.scan = scan
        self._matcher = matcher
        self._year = year
        self._style = style
        self._inherit: Prefix | None = None
        self._fixed: int | None = None
        self._window = b""
        self._start = 0
        self._counted = 0
        self._number = 0
        self._kept: dict[tuple[str, Key], list[Found]] = {}
        self._counts: dict[tuple[str, Key], int] = {}
        self._marks: dict[tuple[str, Key], int] = {}
        self._tokens: dict[bytes, Key | None] = {}
        self._skip: set[int] = set()
        self._noted: dict[Key, list[Line]] = {}
        self._forced: dict[int, tuple[Line, tuple[Frame, ...]]] = {}

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream, in UTF-8 as far as they are text."""
        self.scan.bytes += len(data)
        if b"\x1b" in data:
            data = ANSI.sub(b"", data)
        self._window += data
        while len(self._window) - self._start > PART + AHEAD:
            self._look(final=False)

    def finish(self) -> SourceScan:
        """Look at what is left, and give all."""
        self._look(final=True)
        for (code, key), kept in self._kept.items():
            kept[0].count = max(self._counts.get((code, key), 0) - len(kept) + 1, 1)
        self.scan.lines = self._number
        return self.scan

    # the window

    def _look(self, final: bool) -> None:
        window, start = self._window, self._start
        if self._style is None:
            self._style = style_of(window[: 64 << 10].decode("utf-8", "replace"), self._year)
        end = len(window)
        if not final:
            target = min(start + PART, end - AHEAD)
            end = window.rfind(b"\n", start, target) + 1 or target
            end = end if end > start else target
        region = window[start:end]
        places = self._matcher.places(region)
        places.sort()
        self._counted = start
        marks = self._sampled(start, end)
        at = stop = NEVER
        gates: set[int] = set()
        for found, gate in places:
            place = found + start
            if place <= stop:
                gates.add(gate)
                continue
            if gates:
                self._line(at, stop, gates)
            at = window.rfind(b"\n", max(stop, start - BACK, 0), place) + 1 or max(stop, start - BACK, 0)
            stop = window.find(b"\n", place)
            stop = stop if stop >= 0 else len(window)
            if stop - at > LONGEST:
                at, stop = max(at, place - LONGEST // 2), min(stop, place + LONGEST // 2)
            gates = {gate}
        if gates:
            self._line(at, stop, gates)
        self._flush_forced(end)
        for low, high in marks:
            self._observe(low, high)
        self._count_to(end)
        back = max(end - BACK, 0)
        self._window = window[back:]
        self._start = end - back
        self._skip = {s - back for s in self._skip if s >= end}
        self._forced = {a - back: (replace(x[0], at=x[0].at - back), x[1]) for a, x in self._forced.items()}
        if final and self.scan.bytes and not self._window.endswith(b"\n"):
            self._number += 1

    def _count_to(self, at: int) -> int:
        """Number of newlines before `at`, which grows from call to call within a window."""
        if self._fixed is not None:
            return self._fixed - 1
        if at > self._counted:
            self._number += self._window.count(b"\n", self._counted, at)
            self._counted = at
        elif at < self._counted:
            return self._number - self._window.count(b"\n", at, self._counted)
        return self._number

    def _lines(self, at: int, number: int) -> Iterator[Line]:
        """Lines from `at` on, to the end of the window."""
        window = self._window
        while at < len(window):
            stop = window.find(b"\n", at)
            stop = stop if stop >= 0 else len(window)
            raw = window[at : min(stop, at + LONGEST)].decode("utf-8", "replace")
            number += 1
            yield self._whole(at, number, raw)
            at = stop + 1

    def _above(self, at: int, count: int) -> list[Line]:
        lines: list[Line] = []
        while at > 0 and len(lines) < count:
            begin = self._window.rfind(b"\n", 0, at - 1) + 1
            raw = self._window[begin : min(at - 1, begin + LONGEST)].decode("utf-8", "replace")
            lines.append(self._whole(begin, 0, raw))
            at = begin
        return lines[::-1]

    def _whole(self, at: int, number: int, raw: str) -> Line:
        """A line with its prefix, without what a progress bar left in front of it and without its JSON."""
        if "\r" in raw:
            said_last = [p for p in raw.split("\r") if p.strip()]
            raw = next(
                (p for p in reversed(said_last) if not BAR.match(p)), said_last[-1] if said_last else ""
            )
        if raw.startswith("{") and raw.endswith("}") and (said := _said(raw)) is not None:
            texts, outer = said
            raw = texts[0] if len(texts) == 1 else " ".join(texts)
            return Line(at, number, raw, _under(self._strip(raw), outer))
        return Line(at, number, raw, self._strip(raw))

    def _strip(self, raw: str) -> Prefix:
        assert self._style is not None
        prefix = strip(raw, self._style)
        return prefix if self._inherit is None else _under(prefix, self._inherit)

    # one line

    def _line(self, at: int, stop: int, gates: set[int]) -> None:
        self._flush_forced(at)
        if at in self._skip:
            return
        token = TOKEN.match(self._window, at)
        if token is not None and self._enough(token[0], gates):
            return
        raw = self._window[at:stop].decode("utf-8", "replace")
        number = self._count_to(at) + 1
        pieces = _pieces(raw)
        signatures = [s for g in gates for s in self._matcher.gates[g]]
        frames = self._forced.pop(at)[1] if at in self._forced else ()
        for piece in pieces:
            line = Line(at, number, piece, Prefix())
            if piece.startswith("{") and piece.endswith("}") and (said := _said(piece)) is not None:
                texts, outer = said
                if len(texts) > 1:
                    self._several(texts, outer, number)
                    continue
                line = Line(at, number, texts[0], _under(self._strip(texts[0]), outer))
            else:
                line = Line(at, number, piece, self._strip(piece))
            if token is not None:
                key = _key(line.prefix, self.scan)
                if self._tokens.setdefault(token[0], key) != key:
                    self._tokens[token[0]] = None
            self._piece(line, stop, signatures, frames)

    def _enough(self, token: bytes, gates: set[int]) -> bool:
        """Whether a writer has long had enough of every signature that these gates lead to.

        Then it is counted without a look at the line, which makes a log of nothing but complaints bearable.
        """
        key = self._tokens.get(token)
        if key is None:
            return False
        counts = self._counts
        codes = [s.code for g in gates for s in self._matcher.gates[g]]
        if any(c in NEVER_ENOUGH or counts.get((c, key), 0) < KEEP_EACH for c in codes):
            return False
        for code in codes:
            counts[code, key] += 1
        return True

    def _piece(self, line: Line, stop: int, signatures: list[Signature], frames: tuple[Frame, ...]) -> None:
        key = _key(line.prefix, self.scan)
        text = line.prefix.text
        known = False
        later: list[Signature] = []
        for signature in dict.fromkeys(signatures):
            if signature.generic:
                later.append(signature)
                continue
            count = self._counts.get((signature.code, key), 0)
            if count >= KEEP_EACH and signature.code not in NEVER_ENOUGH:
                if signature.code[0] != "_":
                    known = True
                self._again(signature, key, line, count)
                continue
            found = signature.regex.search(text) or (
                signature.regex.search(line.raw)
                if line.raw is not text and signature.code[0] != "_"
                else None
            )
            if found is None:
                continue
            known = known or signature.code[0] != "_"
            self._counts[signature.code, key] = count + 1
            self._met(signature, found, line, stop, key, frames)
        if not known:
            for signature in later:
                count = self._counts.get((signature.code, key), 0)
                if count >= KEEP_EACH:
                    self._again(signature, key, line, count)
                elif found := signature.regex.search(text):
                    self._counts[signature.code, key] = count + 1
                    self._met(signature, found, line, stop, key, frames)
                    known = True
            if not known and frames and text.strip():
                self._generic(line, key, frames)

    def _again(self, signature: Signature, key: Key, line: Line, count: int) -> None:
        self._counts[signature.code, key] = count + 1
        kept = self._kept.get((signature.code, key))
        if kept:
            kept[0].last_time = line.prefix.time or kept[0].last_time

    def _met(
        self,
        signature: Signature,
        found: re.Match[str],
        line: Line,
        stop: int,
        key: Key,
        frames: tuple[Frame, ...],
    ) -> None:
        code = signature.code
        fields = {k: v[:300] for k, v in found.groupdict().items() if v is not None}
        if code == markers.TRACEBACK:
            self._traceback(line, stop)
            return
        if code[0] == "_":
            self._mark(code, fields, line, stop, key)
            return
        if code == RESTART:
            self.scan.attempts += 1
        elif code == TABLE:
            self._table(line, stop)
        if group := GROUP.search(line.raw):
            fields.setdefault("pg", group["name"] or group["guid"] or group["id"])
            fields.setdefault("pg_rank", group["rank"])
        self._add(
            Hit(code, signature.kind.value, self._origin(line), _clip(line.prefix.text), fields, frames),
            key,
            line,
        )

    def _add(self, hit: Hit, key: Key, line: Line) -> None:
        if len(self.scan.found) >= KEEP_ALL:
            return
        if key[0] is None and (rank := rank_in_text(line.raw)) is not None:
            hit = replace(hit, fields={**hit.fields, "said_rank": str(rank)})
        entry = Found(hit, key, 1, line.prefix.time)
        self.scan.found.append(entry)
        self._kept.setdefault((hit.code, key), []).append(entry)

    def _generic(self, line: Line, key: Key, frames: tuple[Frame, ...]) -> None:
        """The last line of a traceback whose exception no signature knows by its name."""
        name, _, message = line.prefix.text.partition(": ")
        if not blocks.ENDED.match(line.prefix.text) or len(name) > 120 or "ChildFailedError" in name:
            return
        count = self._counts.get((GENERIC, key), 0)
        self._counts[GENERIC, key] = count + 1
        if count < KEEP_EACH:
            fields = {"exc": name.rstrip(":"), "msg": message[:300]}
            self._add(
                Hit(GENERIC, "likely", self._origin(line), _clip(line.prefix.text), fields, frames), key, line
            )

    def _origin(self, line: Line) -> Origin:
        prefix, scan = line.prefix, self.scan
        return Origin(
            file=scan.name,
            line=line.number,
            rank=prefix.rank if prefix.rank is not None else scan.path_rank,
            local_rank=prefix.local_rank if prefix.local_rank is not None else scan.path_local,
            host=prefix.host or scan.path_host,
            pid=prefix.pid,
            time=prefix.time,
            stream="kernel" if prefix.kernel else prefix.stream or scan.stream,
            attempt=scan.path_attempt + scan.attempts,
        )

    # blocks

    def _traceback(self, line: Line, stop: int) -> None:
        trace = blocks.traceback(line, self._lines(stop + 1, line.number))
        self._skip.update(a for a in trace.lines[1:] if trace.end is None or a != trace.end.at)
        if trace.end is not None and trace.frames:
            self._forced[trace.end.at] = (trace.end, trace.frames)

    def _flush_forced(self, at: int) -> None:
        """Exceptions that no gate met, up to `at`."""
        for place in sorted(a for a in self._forced if a < at):
            line, frames = self._forced.pop(place)
            self._piece(line, place + len(line.raw), [], frames)

    def _table(self, line: Line, stop: int) -> None:
        entry = blocks.table_entry(self._above(line.at, 8), line, self._lines(stop + 1, line.number))
        if entry is None:
            return
        origin = replace(self._origin(line), time=parse(entry.time), rank=entry.rank, host=entry.host or None)
        self.scan.exits.append(
            Exit(
                origin,
                entry.rank,
                entry.local_rank,
                entry.host or None,
                entry.pid,
                entry.code,
                "torchrun",
                entry.first,
                entry.told[:300],
            )
        )

    def _mark(self, code: str, fields: dict[str, str], line: Line, stop: int, key: Key) -> None:
        count = self._marks.get((code, key), 0)
        if count >= KEEP_MARKS:
            return
        self._marks[code, key] = count + 1
        frames: tuple[Frame, ...] = ()
        if code == markers.STACK or code == markers.MEMORY_STACK:
            following = self._lines(stop + 1, line.number)
            frames = blocks.pyspy(following) if code == markers.STACK else blocks.late_first(following, line)
            command, pid = "", None
            for above in self._above(line.at, 6):
                if found := blocks.PROCESS.match(above.raw):
                    pid, command = int(found["pid"]), found["cmd"][:300]
            if pid is None:
                pid = line.prefix.pid
            stack = ThreadStack(
                frames, self._origin(line), None, pid, fields["tid"], fields.get("which") != "Thread", command
            )
            if frames:
                self.scan.stacks.append((key, stack))
            return
        if code == markers.FRAME:
            below = next(self._lines(stop + 1, line.number), None)
            source = below.prefix.text.strip() if below is not None and below.key == line.key else ""
            frames = (
                Frame(
                    fields["fn"],
                    fields["file"],
                    int(fields["line"]),
                    "" if source.startswith("File ") else source[:200],
                ),
            )
        elif code == markers.CALL_SITE:
            frames = (Frame(fields["fn"], fields["file"], int(fields["line"])),)
        self.scan.marked.append(
            Marked(code, fields, key, self._origin(line), _clip(line.prefix.text), frames)
        )

    # JSON

    def _several(self, texts: list[str], prefix: Prefix, number: int) -> None:
        """The lines of one structured message are looked at as if they had been printed."""
        inner = Scanner(self.scan, self._matcher, self._year, self._style)
        inner._inherit, inner._fixed = prefix, number
        inner._kept, inner._counts, inner._marks = self._kept, self._counts, self._marks
        inner._window = "\n".join(texts)[: 4 * LONGEST].encode("utf-8", "replace")
        inner._look(final=True)

    # samples

    def _sampled(self, start: int, end: int) -> list[tuple[int, int]]:
        """Which bytes are looked at line by line."""
        if end - start <= WHOLE:
            return [(start, end)]
        step = (end - start) // SAMPLES
        return [(start + i * step, start + i * step + SAMPLE) for i in range(SAMPLES)] + [
            (end - 4 * SAMPLE, end)
        ]

    def _observe(self, low: int, high: int) -> None:
        """Who writes between two places, and what steps they report."""
        window = self._window
        if low > self._start:
            low = window.find(b"\n", low, high) + 1
            if low == 0:
                return
        number = self._count_to(low) if low >= self._counted else 0
        while low < high:
            stop = window.find(b"\n", low, high)
            stop = stop if stop >= 0 else high
            number += 1
            if stop > low:
                raw = window[low : min(stop, low + 2000)].decode("utf-8", "replace")
                self._note(self._whole(low, number if self._fixed is None else self._fixed, raw))
            low = stop + 1
        self._settle()

    def _note(self, line: Line) -> None:
        prefix, text = line.prefix, line.prefix.text
        key = _key(prefix, self.scan)
        if not text.strip():
            return
        seen = self.scan.seen.get(key)
        if seen is None:
            if len(self.scan.seen) >= KEEP_WRITERS:
                return
            seen = self.scan.seen[key] = Seen(_clip(text), self._origin(line), 0, line.number)
        seen.lines += 1
        noted = self._noted.setdefault(key, [])
        noted.append(line)
        if len(noted) >= NOTED:
            self._settle()
        if line.at not in self._skip:
            self._note_step(key, line, text)

    def _note_step(self, key: Key, line: Line, text: str) -> None:
        share = data_share(text)
        point = progress(text)
        if point is None and share is not None and (number := counted(text)) is not None:
            point = number, None
        if point is not None:
            points = self.scan.steps.setdefault(key, [])
            points.append(StepPoint(None, point[0], point[1], self._origin(line), share))
            thin(points)

    def _settle(self) -> None:
        """Of each writer the last line, and the last one of its own: only these are looked at closely."""
        for key, lines in self._noted.items():
            seen = self.scan.seen[key]
            seen.text, seen.origin = _clip(lines[-1].prefix.text), self._origin(lines[-1])
            for line in reversed(lines):
                text = line.prefix.text
                if line.at not in self._skip and not LOUD.search(text) and not LOUD.search(line.raw):
                    seen.own = _clip(text)
                    break
        self._noted.clear()


def _key(prefix: Prefix, scan: SourceScan) -> Key:
    rank = prefix.rank if prefix.rank is not None else scan.path_rank
    local = prefix.local_rank if prefix.local_rank is not None else scan.path_local
    return (rank, local, prefix.task, prefix.host or scan.path_host)


def _clip(text: str) -> str:
    text = text.rstrip()
    return text if len(text) <= TEXT else text[: TEXT - 1] + "…"


def _pieces(raw: str) -> list[str]:
    """The messages of one line: progress bars overwrite it, and ranks write into each other's lines."""
    if raw.startswith("{") and raw.rstrip().endswith("}"):
        return [raw.rstrip()]
    pieces = [p for p in raw.split("\r") if p.strip()] if "\r" in raw else [raw]
    if len(pieces) > 40:
        pieces = pieces[-40:]
    found: list[str] = []
    for piece in pieces:
        found += (
            INSIDE.split(piece)
            if piece.count("[rank") > 1 or (not piece.startswith("[") and "[rank" in piece)
            else [piece]
        )
    return found


def _said(raw: str) -> tuple[list[str], Prefix] | None:
    """The texts of a line of structured logging, and what it says of its writer; None where it is none."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    prefix = Prefix()
    texts = _unpack(value, prefix)
    return (texts, prefix) if texts else None


def _under(prefix: Prefix, outer: Prefix) -> Prefix:
    """What the layers around a message said, where the message says nothing itself."""
    for name in ("rank", "local_rank", "task", "host", "pid", "time", "stream"):
        if getattr(prefix, name) is None:
            setattr(prefix, name, getattr(outer, name))
    return prefix


def _unpack(value: dict[str, object], prefix: Prefix, depth: int = 0) -> list[str]:
    """The texts of a structured line; what it says of rank, host and time goes to `prefix`."""
    texts: list[str] = []
    for names, handle in ((MESSAGE_KEYS, True), (TRACE_KEYS, True)):
        for name in names:
            part = value.get(name)
            if isinstance(part, str) and handle:
                texts += part.rstrip("\n").split("\n")
            elif isinstance(part, dict) and depth < 3:
                texts += _unpack(part, prefix, depth + 1)
    extra = value.get("extraInfo")
    if isinstance(extra, dict) and depth < 3:
        texts += _unpack(extra, prefix, depth + 1)
    for name in RANK_KEYS:
        rank = value.get(name)
        if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 10**6:
            prefix.rank = prefix.rank if prefix.rank is not None else rank
    for name in HOST_KEYS:
        if isinstance(host := value.get(name), str) and len(host) < 200:
            prefix.host = prefix.host or host
    for name in TIME_KEYS:
        time = value.get(name)
        if prefix.time is None and isinstance(time, str):
            prefix.time = parse(time) or _epoch(time)
        elif prefix.time is None and isinstance(time, (int, float)) and not isinstance(time, bool):
            prefix.time = _epoch(str(time))
    if isinstance(stream := value.get("stream"), str) and stream in ("stdout", "stderr"):
        prefix.stream = stream
    return texts


def _epoch(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    if value > 1e17:
        value /= 1e9
    elif value > 1e11:
        value /= 1e3
    return value if 1e9 < value < 4e9 else None
