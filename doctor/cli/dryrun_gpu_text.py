"""A measurement beside its prediction, for people and as the report's figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.memory_measured import MemoryMeasurement
from fsdp_doctor.tables.units import memory_size as size

HEAD = ("step", "moment", "predicted", "measured", "error", "left after", "measured", "error", "reserved")
WHAT = "the peak of each moment and what is left after it; errors are predicted over measured, less one"
NOT_IN_IT = (
    "the process group moves no byte, so NCCL's buffers are in no measured figure; cuBLAS workspaces are in "
    "the base, the CUDA context is outside the allocator"
)


def error(predicted: int, measured: int) -> float | None:
    """Predicted over measured, less one; None where nothing was measured."""
    return predicted / measured - 1 if measured > 0 else None


def render(found: MemoryMeasurement, style: Style) -> str:
    """The table and what explains the difference."""
    page = Page(style)
    device = found.device
    page.paragraph(
        [
            (
                f"measured on {device.gpu or 'this device'}, torch {found.torch}"
                + (f", cuDNN {found.cudnn}" if found.cudnn else ""),
                "bold",
            )
        ]
    )
    page.paragraph([(WHAT, "")], first="  ", hang=4)
    for row in _fitting(_rows(found), page.width - 2):
        page.paragraph([(row, "")], first="  ", hang=4)
    for line in _lines(found):
        page.paragraph([(line, "")], first="  ", hang=4)
    page.blank()
    return page.text()


def _rows(found: MemoryMeasurement) -> list[tuple[str, ...]]:
    last = len(found.moments) - 1 if found.oom else -1
    return [
        HEAD,
        *(
            (
                str(m.step or "-"),
                m.phase,
                size(m.predicted_peak),
                size(m.measured_peak),
                "OOM" if i == last else _percent(error(m.predicted_peak, m.measured_peak)),
                size(m.predicted_after),
                size(m.measured_after),
                "OOM" if i == last else _percent(error(m.predicted_after, m.measured_after)),
                size(m.reserved),
            )
            for i, m in enumerate(found.moments)
        ),
    ]


def _fitting(rows: Sequence[tuple[str, ...]], room: int) -> list[str]:
    """The lines of a table without the columns that do not fit: what is left after, then reserved."""
    lines: list[str] = []
    for columns in (range(9), (0, 1, 2, 3, 4, 8), range(5)):
        widths = {c: max(len(r[c]) for r in rows) for c in columns}
        lines = [
            "  ".join(r[c].ljust(widths[c]) if c < 2 else r[c].rjust(widths[c]) for c in columns).rstrip()
            for r in rows
        ]
        if max(map(len, lines)) <= room:
            break
    return lines


def _lines(found: MemoryMeasurement) -> list[str]:
    device, oom = found.device, found.oom
    if oom is None:
        lines = [
            f"peak predicted {size(found.predicted)}, measured {size(found.measured)}, error "
            f"{_percent(found.error)}; reserved {size(found.reserved)}"
        ]
    else:
        stage = f" of {oom.stage}" if oom.stage.startswith("step") else ""
        asked = "" if oom.requested is None else f": {size(oom.requested)} more were asked for"
        free = "" if oom.free is None else f", {size(oom.free)} were free"
        lines = [
            f"memory ran out in {oom.phase}{stage}{asked}{free}; until then {size(found.measured)} "
            f"allocated, {size(found.reserved)} reserved; predicted for all steps {size(found.predicted)}"
        ]
    if device.taken is not None and device.nvml_before is not None and device.nvml_after is not None:
        lines.append(
            f"device memory {size(device.nvml_before)} before, {size(device.nvml_after)} after: "
            f"{size(device.reserved)} reserved by the allocator and {size(device.taken)} besides (CUDA "
            "context, libraries, other processes)"
        )
    elif device.total:
        lines.append(f"outside the allocator {size(device.outside)}, other processes' memory included")
    lines.append(
        f"not in these figures: cuBLAS workspaces ({size(device.base)}), which are made before, and NCCL's "
        "buffers, since the process group moves no byte"
    )
    for d in found.differences:
        parts = ", ".join(f"{o.operator} {size(o.predicted)} / {size(o.measured)}" for o in d.operators)
        lines.append(
            f"at the peak, {d.module or 'outside modules'}: predicted {size(d.predicted)}, measured "
            f"{size(d.measured)} ({parts})"
        )
    if found.untraced and oom is None:
        lines.append(f"no operators are named: {found.untraced}")
    return lines


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2%}"


def data(found: MemoryMeasurement) -> dict[str, object]:
    """JSON values; errors are predicted over measured, less one."""
    device = found.device
    return {
        "torch": found.torch,
        "cuda": found.cuda,
        "cudnn": found.cudnn,
        "moments": [
            {
                **asdict(m),
                "peak_error": error(m.predicted_peak, m.measured_peak),
                "after_error": error(m.predicted_after, m.measured_after),
            }
            for m in found.moments
        ],
        "peak": {"predicted_bytes": found.predicted, "measured_bytes": found.measured, "error": found.error},
        "reserved_bytes": found.reserved,
        "device": {**asdict(device), "taken": device.taken, "not_in_it": NOT_IN_IT},
        "oom": None if found.oom is None else asdict(found.oom),
        "differences": [asdict(d) for d in found.differences],
        "untraced": found.untraced,
    }
