"""A measurement beside its prediction, for people and as the report's figures."""

from __future__ import annotations

from dataclasses import asdict

from fsdp_doctor.cli.dryrun_text import size
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.memory_measured import MemoryMeasurement

HEAD = ("step", "moment", "predicted", "measured", "error", "left after", "measured", "error", "reserved")
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
    rows = [HEAD]
    last = len(found.moments) - 1 if found.oom else -1
    rows += [
        (
            str(m.step or "-"),
            m.phase,
            size(m.predicted_peak),
            size(m.measured_peak),
            "memory ran out" if i == last else _percent(error(m.predicted_peak, m.measured_peak)),
            size(m.predicted_after),
            size(m.measured_after),
            "-" if i == last else _percent(error(m.predicted_after, m.measured_after)),
            size(m.reserved),
        )
        for i, m in enumerate(found.moments)
    ]
    widths = [max(len(r[i]) for r in rows) for i in range(len(HEAD))]
    for row in rows:
        cells = [
            c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        page.paragraph([("  ".join(cells), "")], first="  ", hang=4)
    for line in _lines(found):
        page.paragraph([(line, "")], first="  ", hang=4)
    page.blank()
    return page.text()


def _lines(found: MemoryMeasurement) -> list[str]:
    device = found.device
    lines = [
        f"peak predicted {size(found.predicted)}, measured {size(found.measured)}"
        + (" until memory ran out" if found.oom else f", error {_percent(found.error)}")
        + f"; reserved {size(found.reserved)}"
    ]
    if device.taken is not None and device.nvml_before is not None and device.nvml_after is not None:
        lines.append(
            f"device memory {size(device.nvml_before)} before, {size(device.nvml_after)} after; the process "
            f"took {size(device.taken)} besides {size(device.reserved)} reserved; workspaces in the base "
            f"{size(device.base)}"
        )
    elif device.total:
        lines.append(
            f"outside the allocator {size(device.outside)}, other processes' memory included; workspaces in "
            f"the base {size(device.base)}"
        )
    lines.append(NOT_IN_IT)
    for d in found.differences:
        parts = ", ".join(f"{o.operator} {size(o.predicted)} / {size(o.measured)}" for o in d.operators)
        lines.append(
            f"at the peak, {d.module or 'outside modules'}: predicted {size(d.predicted)}, measured "
            f"{size(d.measured)} ({parts})"
        )
    if found.untraced and found.oom is None:
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
