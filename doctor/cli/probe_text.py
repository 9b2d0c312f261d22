"""A probe's figures for people: one line per operation and size, then what the ranks did alone."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_doctor.probe.figures import curves, size_words
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.fabric import Fabric, Figure
from fsdp_doctor.subjects.probe import WORLD, ProbeResult
from fsdp_doctor.subjects.step import StepForecast

ROWS = 24
"""Sizes that are listed; the largest of each operation come first where there are more."""
HEAD = ("operation", "size", "min", "median", "p99", "algbw GB/s", "busbw GB/s", "data")


def render(result: ProbeResult, fabric: Fabric, style: Style, step: StepForecast | None = None) -> str:
    """The table, a summary, and the forecast of a job's step."""
    page = Page(style)
    versions = [f"torch {result.torch}" if result.torch else "", f"NCCL {result.nccl}" if result.nccl else ""]
    ranks = f"{result.world_size} rank{'s' if result.world_size > 1 else ''}"
    said = f"{ranks}, {result.backend} on {result.device}"
    page.paragraph([(", ".join([said, *filter(None, versions)]), "bold")])
    shown = _chosen([f for f in fabric.figures if f.group == WORLD and f.run == 0])
    if shown:
        _table(page, shown)
    for op, c in curves(fabric.figures).items():
        latency = "" if c.latency is None else f"latency {_time(c.latency)}, "
        page.paragraph([(f"{op}: {latency}bandwidth {c.bandwidth:.3g} GB/s busbw", "")], first="  ", hang=4)
    for line in fabric.summary[:2] if shown else ():
        page.paragraph([(line, "")], first="  ", hang=4)
    if fabric.started:
        page.paragraph([(", ".join(fabric.started), "")], first="  ", hang=4)
    page.blank()
    if step is not None:
        _step(page, step)
        page.blank()
    return page.text()


def _step(page: Page, step: StepForecast) -> None:
    carried = f", carried over from {step.measured_ranks}" if step.world_size != step.measured_ranks else ""
    nodes = f" on {step.nodes} nodes" if step.nodes > 1 else ""
    page.paragraph([(f"a training step on {step.world_size} ranks{nodes}{carried}", "bold")])
    for line in step.lines:
        page.paragraph([(line, "")], first="  ", hang=4)
    if step.hybrid is not None:
        page.paragraph(
            [
                (
                    f"FULL_SHARD {step.full.tokens_per_second:.0f}, HYBRID_SHARD "
                    f"{step.hybrid.tokens_per_second:.0f} tokens/s per GPU (±{step.band:.0%})",
                    "",
                )
            ],
            first="  ",
            hang=4,
        )
    for line in (f"{step.strategy}: {step.reason}", f"fabric: {step.fabric}", *step.assumptions):
        page.paragraph([(line, "")], first="  ", hang=4)


def _chosen(figures: Sequence[Figure]) -> list[Figure]:
    """As many as fit on a screen: small and large sizes rather than those between them."""
    sizes = sorted({f.bytes for f in figures})
    room = max(1, ROWS // max(1, len({f.op for f in figures})))
    if len(sizes) > room:
        sizes = [sizes[0], *sizes[len(sizes) - room + 1 :]]
    return [f for f in figures if f.bytes in sizes]


def _table(page: Page, figures: Sequence[Figure]) -> None:
    rows = [HEAD, *(_row(f) for f in figures)]
    widths = [max(len(r[i]) for r in rows) for i in range(len(HEAD))]
    for number, row in enumerate(rows):
        cells = [
            v.ljust(w) if i == 0 else v.rjust(w) for i, (v, w) in enumerate(zip(row, widths, strict=True))
        ]
        page.paragraph([("  ".join(cells), "dim" if number == 0 else "")], first="  ", hang=4)


def _row(f: Figure) -> tuple[str, ...]:
    data = {True: "right", False: "WRONG", None: "unchecked"}[f.correct]
    times = [_time(t) for t in (f.minimum, f.median, f.p99)]
    return (f.op, size_words(f.bytes), *times, f"{f.algbw:.3g}", f"{f.busbw:.3g}", data)


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
