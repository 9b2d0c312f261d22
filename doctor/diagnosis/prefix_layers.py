"""The layers that may stand before a line's own text, each with what it tells."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from fsdp_doctor.diagnosis.clocks import DATE_TIME, MONTHS, from_groups, without_year


@dataclass(slots=True)
class Prefix:
    """What the layers said; `text` is what is left."""

    text: str = ""
    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    """The number that srun or a similar launcher gives: a rank where one task is one rank."""
    host: str | None = None
    pid: int | None = None
    time: float | None = None
    stream: str | None = None
    device: int | None = None
    severity: str | None = None
    kernel: bool = False


@dataclass(frozen=True, slots=True)
class Style:
    """What is known of a file as a whole."""

    year: int = 1970
    numbered: bool = False
    """Lines begin with `N: `."""
    host_tasks: bool = False
    """Lines begin with `HOST N: `."""
    hosts: frozenset[str] = field(default_factory=frozenset)
    """Lines begin with one of these and a colon."""


Take = Callable[[Prefix, re.Match[str], Style], None]


def _number(name: str) -> Take:
    def take(prefix: Prefix, found: re.Match[str], style: Style) -> None:
        if getattr(prefix, name) is None:
            setattr(prefix, name, int(found["n"]))

    return take


def _iso(prefix: Prefix, found: re.Match[str], style: Style) -> None:
    if prefix.time is None:
        prefix.time = from_groups(found.groupdict())


def _kubernetes(prefix: Prefix, found: re.Match[str], style: Style) -> None:
    _iso(prefix, found, style)
    prefix.stream = found["stream"]


def _glog(prefix: Prefix, found: re.Match[str], style: Style) -> None:
    if prefix.time is None:
        digits = found["md"]
        prefix.time = without_year(int(digits[:-2] or 0), int(digits[-2:]), found["clock"], style.year)
    prefix.severity = prefix.severity or found["sev"]
    if prefix.pid is None and found["pid"]:
        prefix.pid = int(found["pid"])


def _nccl(prefix: Prefix, found: re.Match[str], style: Style) -> None:
    prefix.host = prefix.host or found["host"]
    prefix.pid = int(found["pid"])
    if found["dev"] is not None:
        prefix.device = int(found["dev"])


def _syslog(prefix: Prefix, found: re.Match[str], style: Style) -> None:
    month = MONTHS.get(found["mon"])
    if prefix.time is None and month is not None:
        prefix.time = without_year(month, int(found["d"]), found["clock"], style.year)
    prefix.host = prefix.host or found["host"]
    prefix.kernel = prefix.kernel or found["who"].startswith("kernel")


def _dmesg(prefix: Prefix, found: re.Match[str], style: Style) -> None:
    month = MONTHS.get(found["mon"])
    if prefix.time is None and month is not None:
        prefix.time = without_year(month, int(found["d"]), found["clock"], int(found["y"]))
    prefix.kernel = True


def _kernel(prefix: Prefix, found: re.Match[str], style: Style) -> None:
    prefix.kernel = True


def _pod(prefix: Prefix, found: re.Match[str], style: Style) -> None:
    prefix.host = prefix.host or found["host"]


def _ray(prefix: Prefix, found: re.Match[str], style: Style) -> None:
    prefix.pid = int(found["pid"])
    if found["ip"]:
        prefix.host = prefix.host or found["ip"]
    if found["rank"]:
        prefix.rank = prefix.rank if prefix.rank is not None else int(found["rank"])


def _mpi(prefix: Prefix, found: re.Match[str], style: Style) -> None:
    prefix.rank = prefix.rank if prefix.rank is not None else int(found["n"])
    prefix.stream = found["stream"]
    prefix.host = prefix.host or found["host"]


def _level(prefix: Prefix, found: re.Match[str], style: Style) -> None:
    prefix.severity = prefix.severity or found["sev"][0].upper()


def _stream(prefix: Prefix, found: re.Match[str], style: Style) -> None:
    prefix.stream = found["stream"]


def _nothing(prefix: Prefix, found: re.Match[str], style: Style) -> None:
    return None


LAYERS: tuple[tuple[str, re.Pattern[str], Take], ...] = tuple(
    (first, re.compile(pattern), take)
    for first, pattern, take in (
        ("[", r"\[(?:[Gg]lobal[_ -]?)?(?:[Rr]ank|RANK)[ :=_]{0,2}(?P<n>\d{1,6})\]:? ?", _number("rank")),
        ("[", r"\[(?:local[_ -]?rank|LOCAL_RANK)[ :=_]{0,2}(?P<n>\d{1,5})\]:? ?", _number("local_rank")),
        ("[", r"\[R(?P<n>\d{1,6})\]:? ?", _number("rank")),
        ("(", r"\((?:[Rr]ank|RANK)[ :=_]{0,2}(?P<n>\d{1,6})\):? ?", _number("rank")),
        ("[", r"\[(?P<role>[A-Za-z_]{1,20})(?P<n>\d{1,5})(?:\|rank\d+)?\]: ?", _number("local_rank")),
        ("[", r"\[[^\]|]{1,30}\|rank(?P<n>\d{1,6})\]: ?", _number("rank")),
        (
            "[",
            r"\[\d+,(?:mpirank:)?(?P<n>\d{1,6})(?:,(?P<host>[\w.-]+))?\]<(?P<stream>stdout|stderr|stddiag)>:? ?",
            _mpi,
        ),
        ("[", r"\[pod/(?P<host>[^/\]]+)(?:/[^\]]*)?\] ?", _pod),
        (
            "[",
            r"\[(?P<sev>[IWEFDV])(?P<md>\d{3,4}) (?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?)(?: (?P<pid>\d+))? [\w./+-]+:\d+\] ?",
            _glog,
        ),
        ("[", r"\[" + DATE_TIME + r"\]:? ?", _iso),
        (
            "[",
            r"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<mon>[A-Z][a-z]{2}) +(?P<d>\d+) (?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?) (?P<y>\d{4})\] ?",
            _dmesg,
        ),
        ("[", r"\[ *\d{1,9}\.\d{2,9}\] ?(?=\S)", _kernel),
        ("[", r"\[(?P<sev>DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\]:? ?", _level),
        (
            "(",
            r"\((?:[\w.]+ )?(?:rank[ =](?P<rank>\d+),? ?)?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?\) ?",
            _ray,
        ),
        (
            "",
            r"(?P<sev>[IWEF])(?P<md>\d{4}) (?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?)(?: +(?P<pid>\d+))? [\w./+-]+:\d+\] ?",
            _glog,
        ),
        ("", DATE_TIME + r" (?P<stream>stdout|stderr) [FP] ", _kubernetes),
        ("", DATE_TIME + r"(?: UTC)?(?:[\s,|:-]+|$)", _iso),
        ("", r"(?:time|ts|timestamp)=\"?" + DATE_TIME + r"\"?,? ", _iso),
        (
            "",
            r"(?P<mon>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(?P<d>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?) (?P<host>[\w.-]+) (?P<who>[\w./-]+(?:\[\d+\])?): ",
            _syslog,
        ),
        (
            "",
            r"(?P<host>[\w.-]+):(?P<pid>\d+):\d+ (?:\[(?P<dev>-?\d+)\] )?(?=\S*:?\d* ?(?:NCCL|[\w./]+\.(?:cc|h|cu):))",
            _nccl,
        ),
        ("", r"rank(?P<n>\d{1,6})\[\d+\]\[[^\]]{1,60}\]: ", _number("rank")),
        ("", r"[\w.-]{1,120} \[(?P<stream>stdout|stderr)\] ", _stream),
        (
            "",
            r"(?:global_)?(?:rank|RANK)=(?P<n>\d{1,6})(?: ?[,;|] ?| )(?!.{0,40}?\bpid\b)(?:msg=\"?)?",
            _number("rank"),
        ),
        ("", r"(?:local_rank|LOCAL_RANK)=(?P<n>\d{1,5})(?:[,;] ?| )(?:msg=\"?)?", _number("local_rank")),
        ("", r"level=(?P<sev>[A-Za-z]+) ", _level),
        ("", r"(?:[Rr]ank|RANK)[ _:=-]?(?P<n>\d{1,6})(?:\]|:| \||\|| -) ?", _number("rank")),
        (
            "",
            r"(?P<sev>DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)(?:\s{0,8}[:|-] ?|\s+(?=\S))(?:(?![Rr]ank:|RANK:)[\w.]+:(?=\S)|[a-z_]\w*(?:\.[a-z_]\w*)+(?<!error)(?<!timeout): (?=\S))?",
            _level,
        ),
        ("", r"(?P<host>[\w.-]*\w-\d+) +\| ", _pod),
    )
)
"""First character of a layer (any where it is empty), its form, and what it tells."""
