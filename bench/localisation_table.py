"""The table of docs/probe-localisation.md, from the lines that the bench of localisation wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.faults import FAULTS, HEALTHY, HEALTHY_HOSTS

HEAD = """\
# How often the probe names the right rank or link

`python -m bench.probe localise` runs probes of 4 gloo ranks on CPU cores with a fault each; the order of the
runs, the rank with the fault and, for ranks that fall out, the step of it are random. Written by
`python -m bench.probe table` from what those runs recorded.

Right means: the rank with the fault is named, for what is wrong with it; of a slow cable both ends and the
direction; of healthy ranks nobody. Another one named means a finding about a rank that has no fault.
"""
LIMITS = """\
## What a probe cannot tell

- A rank that gets no more than its share of a core is not slower than the others where all of them get
  as little: on a machine with many more runnable processes than cores a starved rank is not named.
- On CPU cores a rank or link must be twice as slow as its peers, twice, to be a failure. Between GPUs, which
  nobody shares, 7 per cent are a warning and 15 per cent a failure.
- Of two hosts that are slow both ways it cannot be said which one is at fault, nor that they are slow at all:
  they have no peers. Where one way is slow the pair is reported, without naming an end.
"""
COLUMNS = (
    "fault of one rank",
    "probes",
    "right",
    "another one warned of",
    "another one failed",
    "did not run through",
)


def table(machines: Mapping[str, Sequence[Path]]) -> str:
    """The page; `machines` is a machine in words and the files with its lines."""
    parts = [HEAD]
    for machine, files in machines.items():
        lines = [json.loads(t) for f in files for t in f.read_text().splitlines() if t.strip()]
        if lines:
            parts.append(_section(machine, lines))
    return "\n".join([*parts, LIMITS])


def _section(machine: str, lines: Sequence[Mapping[str, object]]) -> str:
    days = sorted({str(x["at"])[:10] for x in lines})
    loads = sorted(_number(x["load"]) for x in lines)
    times = sorted(_number(x["seconds"]) for x in lines)
    rows = [
        f"## {machine}",
        "",
        f"{' and '.join(days)}; {_one(lines, 'cores')} cores, load average {loads[0]:.0f} to {loads[-1]:.0f} "
        f"(median {loads[len(loads) // 2]:.0f}); torch {_one(lines, 'torch')}, Python {_one(lines, 'python')}; "
        f"a probe took {times[0]:.0f} to {times[-1]:.0f} s (median {times[len(times) // 2]:.0f} s).",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "| --- |" + " ---: |" * (len(COLUMNS) - 1),
    ]
    for fault in FAULTS:
        own = [x for x in lines if x["fault"] == fault.name]
        if own:
            counts = [sum(bool(x[k]) for x in own) for k in ("right", "warned", "failed", "broken")]
            how = fault.how if fault in (HEALTHY, HEALTHY_HOSTS) else f"{fault.name}: {fault.how}"
            rows.append(f"| {how} | {len(own)} | " + " | ".join(str(c) for c in counts) + " |")
    return "\n".join([*rows, ""])


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _one(lines: Iterable[Mapping[str, object]], key: str) -> str:
    return " and ".join(sorted({str(x[key]) for x in lines}))
