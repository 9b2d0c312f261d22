"""A rehearsal for people: what was run, the peaks by step, what was not done and not written."""

from __future__ import annotations

from fsdp_doctor.memory.rehearsal.answers import typical_seconds
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.memory import MemoryForecast
from fsdp_doctor.subjects.rehearsal import Rehearsal, Unwritten

SHOWN = 6
MODES = {
    "gpu": "measured on a GPU: real tensors, no communication",
    "fake": "best effort without a GPU: fake tensors, nothing is computed on them",
}


def size(n: int) -> str:
    """Bytes in GiB, or MiB below one."""
    return f"{n / 2**30:.2f} GiB" if n >= 1 << 30 else f"{n / 2**20:.1f} MiB"


def render(found: Rehearsal, style: Style) -> str:
    """The figures above the findings."""
    page = Page(style)
    how = MODES.get(found.mode, "not started")
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
        f"peak allocated {size(f.allocated)} ({where}" + (f", {f.peak.module}" if f.peak.module else "") + ")"
    ]
    if f.peak.parts:
        lines.append("of which " + ", ".join(f"{p.name} {size(p.bytes)}" for p in f.peak.parts))
    lines += [
        f"step {i}: forward and backward {size(s.fwd_bwd_peak)}, after backward {size(s.after_backward)}, "
        f"optimizer {size(s.opt_peak)}"
        for i, s in enumerate(f.steps[:SHOWN], 1)
    ]
    low, high = size(f.reserved_low), size(f.reserved_high)
    lines.append(
        f"before the first step {size(found.init_peak)}, between steps {size(f.steady)}, reserved "
        + (low if low == high else f"{low} to {high}")
    )
    seconds = typical_seconds(found.step_seconds)
    if seconds is not None:
        lines.append(f"{seconds:.3f} s per step without communication")
    o = f.overhead
    needed = (
        f"needed {size(f.needed)}: allocated, margin {size(f.margin)}, context {size(o.context)}, "
        f"libraries {size(o.libraries)}, NCCL {size(o.nccl)} ({o.basis})"
    )
    if f.capacity is not None:
        needed += f"; {f.gpu} has {size(f.capacity)}"
    return [*lines, needed]


def _words(u: Unwritten) -> str:
    held = f", {size(u.bytes)} of tensors" if u.bytes is not None else ""
    times = f", {u.times} times" if u.times > 1 else ""
    return f"{u.path} ({u.how}{held}{times})"


def _more(page: Page, count: int) -> None:
    if count > SHOWN:
        page.paragraph([(f"and {count - SHOWN} more (--format json has all)", "")], first="  ", hang=4)
