"""The groups of ranks of a running job, as a person reads them."""

from __future__ import annotations

from fsdp_doctor.diagnosis.live.words import does, ranks
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.stacks import LiveJob

SHOWN = 16


def live_text(job: LiveJob, style: Style) -> str:
    """One line per group of ranks that stand at the same place, and one per GPU."""
    page = Page(style)
    world = f" of {job.world_size}" if job.world_size is not None else ""
    page.paragraph([(f"{len(job.processes)}{world} ranks on {job.host}", "bold")])
    for group in job.groups[:SHOWN]:
        members = [p for p in job.processes if (p.rank if p.rank is not None else p.pid) in group.members]
        stopped = " (stopped)" if any(p.state in ("T", "t") for p in members) else ""
        page.paragraph(
            [(f"{ranks(group.members)}{stopped} ", "bold"), (does(group.place, len(members)), "")],
            first="  ",
            hang=4,
        )
    if len(job.groups) > SHOWN:
        page.paragraph([(f"… and {len(job.groups) - SHOWN} more places", "")])
    for gpu in job.gpus:
        busy = "?" if gpu.utilisation is None else str(gpu.utilisation)
        power = "" if gpu.power is None or gpu.limit is None else f", {gpu.power:.0f} of {gpu.limit:.0f} W"
        page.paragraph([(f"GPU {gpu.index} ", "bold"), (f"{busy} % busy{power}", "")], first="  ", hang=4)
    page.blank()
    return page.text()
