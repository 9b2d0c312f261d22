"""A rehearsal for people: what was run, the peaks by step, what was not done and not written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from fsdp_doctor.memory.rehearsal.answers import typical_seconds
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.memory import MemoryForecast, StepMemory
from fsdp_doctor.subjects.rehearsal import Rehearsal, Unwritten
from fsdp_doctor.tables.units import memory_size as size

SHOWN = 6
MODES = {
    "gpu": "measured on the GPU here: real tensors, no communication",
    "fake": "best effort without a GPU: fake tensors, nothing is computed on them",
}


def render(found: Rehearsal, style: Style) -> str:
    """The figures above the findings."""
    page = Page(style)
    how = MODES.get(found.mode, "not started")
    if found.measured_on:
        how = f"measured on {found.measured_on}, torch {found.torch}: real tensors, no communication"
    page.paragraph([(f"{found.script} as rank 0 of {found.world_size}", "bold"), (f" ({how})", "")])
    lines = [
        f"{found.steps_done} of {found.steps_wanted} optimizer steps"
        + (f" of {', '.join(found.optimizers)}" if found.optimizers else "")
        + f", {found.communicators} communicator{'s' if found.communicators != 1 else ''}"
    ]
    if found.forecast is not None:
        lines += _figures(found, found.forecast)
    for line in lines:
        page.paragraph([(line, "")], first="  ", hang=4)
    for title, notes in (("done otherwise", found.handled),):
        if notes:
            page.paragraph([(title, "bold")])
            for n in notes[:SHOWN]:
                where = f" at {n.place}" if n.place else ""
                page.paragraph([(f"{n.what}{where}", "")], first="  ", hang=4)
            _more(page, len(notes))
    if found.unwritten:
        page.paragraph([("not written", "bold")])
        for u in found.unwritten[:SHOWN]:
            page.paragraph([(_words(u), "")], first="  ", hang=4)
        _more(page, len(found.unwritten))
    page.blank()
    return page.text()


def _figures(found: Rehearsal, f: MemoryForecast) -> list[str]:
    where = f"step {f.peak.step}, {f.peak.phase}" if f.peak.step else "before the first step"
    lines = [
        f"peak allocated {size(f.allocated)} ({where}"
        + (f", {f.peak.module}" if f.peak.module else "")
        + ")"
        + (f", of which cuBLAS workspaces {size(found.workspaces)}" if found.workspaces else "")
        + (", until memory ran out" if found.oom is not None else "")
    ]
    if f.peak.parts:
        lines.append("of which " + ", ".join(f"{p.name} {size(p.bytes)}" for p in f.peak.parts))
    lines += _steps(f.steps)
    low, high = size(f.reserved_low), size(f.reserved_high)
    between = f", between steps {size(f.steady)}" if f.steps else ""
    lines.append(
        f"before the first step {size(found.init_peak)}{between}, reserved "
        + (low if low == high else f"{low} to {high}")
    )
    seconds = typical_seconds(found.step_seconds)
    if seconds is not None:
        first = f" (the first {found.step_seconds[0]:.3f} s)" if len(found.step_seconds) > 1 else ""
        lines.append(f"{seconds:.3f} s per step without communication{first}")
    if found.oom is None:
        lines.append(_needed(found, f))
    if found.mode == "gpu":
        lines.append("which tensors make the peak is not measured: --device fake says it")
    return lines


def _steps(steps: Sequence[StepMemory]) -> list[str]:
    """One line for each step, or for several that are alike."""
    lines = []
    for step, same in groupby(enumerate(steps, 1), key=lambda s: s[1]):
        numbers = [i for i, _ in same]
        which = f"step {numbers[0]}" if len(numbers) == 1 else f"steps {numbers[0]} to {numbers[-1]}"
        lines.append(
            f"{which}: forward and backward {size(step.fwd_bwd_peak)}, after backward "
            f"{size(step.after_backward)}, optimizer {size(step.opt_peak)}"
        )
    return lines[:SHOWN]


def _needed(found: Rehearsal, f: MemoryForecast) -> str:
    o = f.overhead
    context = "CUDA context and libraries" if found.mode == "gpu" else "context"
    parts = [("margin", f.margin), (context, o.context), ("libraries", o.libraries), ("NCCL", o.nccl)]
    told = ", ".join(["allocated", *(f"{name} {size(n)}" for name, n in parts if n)])
    has = f"; {f.gpu} has {size(f.capacity)}" if f.capacity is not None else ""
    return f"needed {size(f.needed)}: {told} ({o.basis}){has}"


def _words(u: Unwritten) -> str:
    held = f", {size(u.bytes)} of tensors" if u.bytes else ""
    times = f", {u.times} times" if u.times > 1 else ""
    return f"{u.path} ({u.how}{held}{times})"


def _more(page: Page, count: int) -> None:
    if count > SHOWN:
        page.paragraph([(f"and {count - SHOWN} more (--format json has all)", "")], first="  ", hang=4)
