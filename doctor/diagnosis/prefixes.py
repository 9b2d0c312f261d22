"""What stands before a line's own text, and what it tells: rank, host, process, time.

Launchers, log collectors and libraries each put something in front. `strip` takes these layers off from
the left, at most `LAYERS` of them, and keeps what they say.
"""

from __future__ import annotations

import re

from fsdp_doctor.diagnosis.prefix_layers import LAYERS as FORMS
from fsdp_doctor.diagnosis.prefix_layers import Prefix, Style

__all__ = ["Prefix", "Style", "rank_in_text", "strip", "style_of"]

LAYERS = 8
LABELLED_SHARE = 0.8
"""Of the first lines that must begin with a label for the label to count as one."""
SAMPLE_LINES = 400


_NUMBERED = re.compile(r" {0,6}(?P<n>\d{1,6}): ?")
_HOST_TASK = re.compile(r"(?P<host>[A-Za-z][\w.-]*\d[\w.-]*) (?P<n>\d{1,6}): ?")
_HOST_LABEL = re.compile(r"(?P<host>[A-Za-z][\w.-]*\d[\w.-]*): ")
_IN_TEXT = re.compile(r"\[?(?:PG[^\]]{0,80} )?\bRank (?P<n>\d{1,6})\]")


def style_of(sample: str, year: int) -> Style:
    """How a file's lines begin, from its first lines."""
    lines = [x for x in sample.splitlines()[:SAMPLE_LINES] if x.strip()]
    if len(lines) < 2:
        return Style(year, numbered=bool(lines) and re.match(r" {0,6}\d{1,6}: \S", lines[0]) is not None)
    numbered = sum(_NUMBERED.match(x) is not None for x in lines)
    tasks = sum(_HOST_TASK.match(x) is not None for x in lines)
    by_slurm = sum(x.startswith(("srun: ", "slurmstepd: ")) for x in lines)  # never labelled
    labels = [m["host"] for x in lines if (m := _HOST_LABEL.match(x))]
    hosts = frozenset(labels) if len(labels) >= LABELLED_SHARE * len(lines) else frozenset()
    return Style(
        year,
        numbered > 0 and numbered >= LABELLED_SHARE * (len(lines) - by_slurm),
        tasks > 0 and tasks >= LABELLED_SHARE * len(lines),
        hosts if len(hosts) <= 4096 else frozenset(),
    )


def strip(line: str, style: Style) -> Prefix:
    """Take the layers off. The text keeps its indentation where the last layer ended with one blank."""
    prefix = Prefix()
    at = 0
    if style.numbered and (found := _NUMBERED.match(line)):
        prefix.task, at = int(found["n"]), found.end()
    elif style.host_tasks and (found := _HOST_TASK.match(line)):
        prefix.host, prefix.rank, at = found["host"], int(found["n"]), found.end()
    elif style.hosts and (found := _HOST_LABEL.match(line)) and found["host"] in style.hosts:
        prefix.host, at = found["host"], found.end()
    for _ in range(LAYERS):
        end = _layer(prefix, line, at, style)
        if end is None:
            break
        at = end
    prefix.text = line[at:]
    return prefix


def _layer(prefix: Prefix, line: str, at: int, style: Style) -> int | None:
    """Take one layer at `at`; None where there is none."""
    start = line[at : at + 1]
    if not start or start == " ":
        return None
    bracket = start in "[("
    for first, pattern, take in FORMS:
        if first == start or (not first and not bracket):
            found = pattern.match(line, at)
            if found and found.end() > at:
                take(prefix, found, style)
                return found.end()
    return None


def rank_in_text(text: str) -> int | None:
    """The rank that torch's own messages name in the text, as in `[PG ID 0 ... Rank 3]`."""
    found = _IN_TEXT.search(text)
    return int(found["n"]) if found else None
