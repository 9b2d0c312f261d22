"""Memory that the GPU has taken out of use: remapped rows and retired pages."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.gpu._fixes import replace_gpu, reset, unanswered
from fsdp_doctor.engine.devices import counted, gpu_subject, gpu_words
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Row, fail, info, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.tables.gpu_thresholds import REMAP_UNCORRECTABLE_FAIL, RETIRED_FAIL, RETIRED_WARN
from fsdp_doctor.tables.nvml_codes import RECOVERY_ACTIONS, RESETS

REMAPPED = "nvmlDeviceGetRemappedRows"
RETIRED = "nvmlDeviceGetRetiredPages"


def _rows(gpu: Gpu) -> str:
    r = gpu.remapped
    return "" if r is None else f"{r.correctable} correctable, {r.uncorrectable} uncorrectable rows"


@check("GPU014", Row.NCCL, needs=(Gpus,), tags=("gpu", "hardware", "memory"))
def row_remap(facts: Facts, options: Options) -> Iterator[Finding]:
    """Rows of GPU memory wait to be remapped, or could not be.

    What: reads the row remapper: a remapping that waits for a reset, one that failed, banks without spare
        rows, and very many remapped rows. Rows remapped earlier are no fault.
    Why: until the reset the bad row stays in use. FSDP fills the memory, so a rank will meet the row and
        be killed, and the other ranks wait in a collective until the NCCL timeout.
    Fix: reset the GPU for a pending remapping; have the GPU replaced after a failed one.
    Sources: NVIDIA GPU memory error management (row remapping); gpud remapped-rows; DCGM; Azure HPC checks.
    """
    gpus = facts[Gpus].present
    known = [g for g in gpus if g.remapped is not None]
    if not known:
        yield unanswered(gpus, REMAPPED, "the state of the row remapper")
        return
    failed = [g for g in known if g.remapped is not None and g.remapped.failure]
    pending = [g for g in known if g.remapped is not None and g.remapped.pending and g not in failed]
    many = [
        g
        for g in known
        if g.remapped is not None
        and g.remapped.uncorrectable > REMAP_UNCORRECTABLE_FAIL
        and g not in failed
        and g not in pending
    ]
    spent = [
        g for g in known if g.remap_histogram and g.remap_histogram.get("none", 0) > 0 and g not in failed
    ]
    if failed:
        yield fail(
            f"row remapping failed on {gpu_words(failed)} ({'; '.join(_rows(g) for g in failed)})",
            "no failed remapping",
            subject=gpu_subject(failed),
            fix=replace_gpu("Take the GPU out of service and have it replaced: no spare row was left"),
        )
    if pending:
        asked = {a for g in pending if (a := g.recovery_action) in RESETS}
        action = f"; the driver asks for a {RECOVERY_ACTIONS[min(asked)][0]}" if asked else ""
        errors = [c for g in pending if (c := g.ecc.get(("uncorrected", "volatile")))]
        yield fail(
            f"row remap pending on {gpu_words(pending)} ({'; '.join(_rows(g) for g in pending)}"
            + (f"; {sum(errors)} uncorrectable ECC errors" if errors else "")
            + f"){action}",
            "no remapping waits for a reset",
            subject=gpu_subject(pending),
            fix=reset(pending),
            evidence=tuple(Evidence(REMAPPED, f"GPU {g.index}: {_rows(g)}, pending") for g in pending),
        )
    if many:
        yield fail(
            f"{gpu_words(many)}: {'; '.join(_rows(g) for g in many)} remapped",
            f"at most {REMAP_UNCORRECTABLE_FAIL} rows remapped for uncorrectable errors",
            subject=gpu_subject(many),
            fix=replace_gpu("Have the GPU replaced before its spare rows end"),
        )
    if spent:
        banks = ", ".join(str(g.remap_histogram["none"]) for g in spent if g.remap_histogram)
        yield warn(
            f"{gpu_words(spent)}: {banks} memory banks have no spare row left",
            "spare rows in every bank",
            subject=gpu_subject(spent),
            fix=replace_gpu("Have the GPU replaced: the next error in that bank cannot be remapped"),
            why="Nothing is wrong with the memory in use, but the next bad row of that bank stays in use, "
            "and the rank that meets it is killed.",
        )
    if not failed and not pending and not many and not spent:
        rows = sum(g.remapped.correctable + g.remapped.uncorrectable for g in known if g.remapped is not None)
        yield ok(f"{counted(known)}: no remapping waits or failed ({rows} rows remapped in all)")


@check("GPU015", Row.NCCL, needs=(Gpus,), tags=("gpu", "hardware", "memory"))
def retired_pages(facts: Facts, options: Options) -> Iterator[Finding]:
    """Many pages of GPU memory are retired, or a retirement waits for a reset.

    What: reads the retired pages of GPUs before Ampere. Newer ones remap rows instead and answer
        NotSupported.
    Why: a page whose retirement waits is still handed out, and a program that uses it dies. A GPU has
        room for 64 retirements.
    Fix: reload the driver or reset the GPU; have one near the limit replaced.
    Sources: NVIDIA dynamic page retirement; DCGM limits (15 soft, 63 hard).
    """
    gpus = facts[Gpus].present
    known = [g for g in gpus if g.retired_pages is not None or g.retired_pending is not None]
    if not known:
        yield unanswered(gpus, RETIRED, "the number of retired pages")
        return
    pending = [g for g in known if g.retired_pending]
    full = [g for g in known if (g.retired_pages or 0) >= RETIRED_FAIL and g not in pending]
    many = [g for g in known if RETIRED_WARN <= (g.retired_pages or 0) < RETIRED_FAIL and g not in pending]
    if pending:
        yield fail(
            f"page retirement pending on {gpu_words(pending)}",
            "no page waits to be retired",
            subject=gpu_subject(pending),
            fix=reset(pending),
        )
    for group, say in ((full, fail), (many, warn)):
        if group:
            yield say(
                f"{gpu_words(group)}: {', '.join(str(g.retired_pages) for g in group)} retired pages",
                f"fewer than {RETIRED_WARN}; {RETIRED_FAIL + 1} is all a GPU can hold",
                subject=gpu_subject(group),
                fix=replace_gpu("Have the GPU replaced"),
            )
    few = [g for g in known if 0 < (g.retired_pages or 0) < RETIRED_WARN and g not in pending]
    if few:
        yield info(
            f"{gpu_words(few)}: {', '.join(str(g.retired_pages) for g in few)} retired pages",
            subject=gpu_subject(few),
        )
    if len(known) and not pending and not full and not many and not few:
        yield ok(f"0 retired pages on {counted(known)}")
