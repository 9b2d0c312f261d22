"""A measured job as people read it: columns by the room there is, and memory that ran out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdp_doctor.cli.dryrun_gpu import with_figures
from fsdp_doctor.cli.dryrun_gpu_text import render
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.memory_measured import DeviceUse, MeasuredMoment, MeasuredOom, MemoryMeasurement

GIB, MIB = 1 << 30, 1 << 20
PHASES = ("forward", "backward", "after backward", "optimizer", "after optimizer")
MOMENTS = tuple(
    MeasuredMoment(step, phase, 334 * GIB + 7 * MIB, 138 * GIB, 318 * GIB, 138 * GIB, 138 * GIB)
    for step in (1, 2)
    for phase in PHASES
)
DEVICE = DeviceUse("NVIDIA H200", 90, 140 * GIB, 64 * MIB, GIB, GIB, 14 * GIB, 615 * MIB, 15 * GIB)
WHOLE = MemoryMeasurement(
    "2.11.0", "13.0", 91900, DEVICE, MOMENTS, predicted=12 * GIB, measured=12 * GIB, reserved=14 * GIB
)
OUT = with_figures(
    MeasuredOom(
        "backward",
        "step 2",
        "CUDA out of memory. Tried to allocate 2.69 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.50 GiB is "
        "free.",
    )
)


def table(found: MemoryMeasurement, width: int) -> list[str]:
    lines = render(found, Style(width=width)).splitlines()
    head = next(i for i, line in enumerate(lines) if line.strip().startswith("step  moment"))
    return lines[head : head + 1 + len(found.moments)]


@pytest.mark.parametrize("oom", [None, OUT], ids=["whole", "ran out"])
@pytest.mark.parametrize(
    ("width", "columns"),
    [(110, "left after  measured"), (80, "error    reserved"), (60, "measured")],
)
def test_no_row_of_the_table_is_broken(oom: MeasuredOom | None, width: int, columns: str) -> None:
    rows = table(replace(WHOLE, oom=oom), width)
    assert all(len(r) <= width and r.split()[0] in ("step", "1", "2") for r in rows), rows
    assert " ".join(columns.split()) in " ".join(rows[0].split())
    assert ("OOM" in rows[-1]) == (oom is not None) and not any("OOM" in r for r in rows[:-1])


def test_memory_that_ran_out_is_said_in_figures() -> None:
    shown = " ".join(render(replace(WHOLE, oom=OUT), Style()).split())
    assert "memory ran out in backward of step 2: 2.69 GiB more were asked for, 1.50 GiB were free" in shown
    assert "until then 12.00 GiB allocated, 14.00 GiB reserved; predicted for all steps 12.00 GiB" in shown


def test_what_is_not_in_the_figures_is_said() -> None:
    shown = " ".join(render(WHOLE, Style()).split())
    assert "cuBLAS workspaces (64.0 MiB), which are made before" in shown and "NCCL's buffers" in shown
    assert (
        "615.0 MiB before, 15.00 GiB after: 14.00 GiB reserved by the allocator and 409.0 MiB besides"
        in shown
    )
    unknown = replace(WHOLE, device=replace(DEVICE, nvml_before=None))
    assert "outside the allocator 1.00 GiB" in render(unknown, Style())
