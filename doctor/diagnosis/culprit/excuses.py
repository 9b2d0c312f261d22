"""Lines that name a cause by their form and are none here: old, of another process, outlived, said better."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_doctor.diagnosis.culprit.blame import pci_address
from fsdp_doctor.diagnosis.culprit.lines import (
    BY_SIGNAL,
    CACHE_FLUSHED,
    DEVICE_ASSERT,
    ECC,
    HOST_OOM,
    INTERRUPTED,
    KERNEL_FAILED,
    KERNEL_OOM,
    NOT_A_NUMBER,
    NOT_STARTED,
    OTHER_COLLECTIVE,
    RECOMPILES,
    SCHEDULER,
    STRAGGLER_NAMED,
    THROTTLED,
    WAITED,
    WORKER_DIED,
    XID,
)
from fsdp_doctor.diagnosis.culprit.signals import CRASHES, SIGKILL, signal_of
from fsdp_doctor.diagnosis.culprit.starting import ran_after
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.progress import progress
from fsdp_doctor.subjects.incident import LIKELY, ROOT, Hit
from fsdp_doctor.tables.log_signatures import SIGNATURES, Scope
from fsdp_doctor.tables.xid import XIDS, Kind

OF_A_PROGRAM = (ECC, KERNEL_FAILED, DEVICE_ASSERT)
"""Errors by which a program sees the fault that the driver reports as an Xid of its own making."""
SLOWS = {CACHE_FLUSHED: 3, THROTTLED: 1, RECOMPILES: 1, STRAGGLER_NAMED: 1}
"""Lines of a job that goes on, slower -> how often they have to come to matter."""
LONG_BEFORE = 7200.0
"""Seconds before the first consequence within which a fault of a device counts as its cause."""


def is_excused(view: View, hit: Hit) -> bool:
    """Whether a line is no cause here."""
    if hit.code == OTHER_COLLECTIVE:
        return True  # judged with all ranks' figures by `collectives`
    if hit.code == XID:
        return _is_other_fault(view, hit)
    if hit.code in HOST_OOM and view.is_accounted(hit):
        return True  # said with step and node by `accounted`
    if hit.code == KERNEL_OOM and _is_foreign(view, hit):
        return True
    if hit.code == BY_SIGNAL:
        return any(e.rank is not None and signal_of(e.code) in (SIGKILL, *CRASHES) for e in view.exits)
    if hit.code == SCHEDULER and _is_said_better(view, hit):
        return True
    if hit.code == WORKER_DIED and hit.fields.get("sig", "").startswith("Terminated"):
        # Its rank was told to stop, and told its workers.
        return any(h.kind in (ROOT, LIKELY) and h.code != WORKER_DIED for h in view.hits)
    if hit.code in SLOWS:
        return sum(h.count for h in view.hits if h.code == hit.code) < SLOWS[hit.code]
    signature = SIGNATURES.get(hit.code)
    if signature is not None and signature.scope is Scope.DEVICE and signature.weight >= 90:
        return False
    if hit.code == NOT_A_NUMBER:
        return _is_over(view, hit)
    if hit.code == INTERRUPTED and (view.consequences or view.failed_exits):
        return True
    if hit.code in NOT_STARTED and ran_after(view, hit):
        return True
    return view.survived(hit)


def _is_said_better(view: View, hit: Hit) -> bool:
    """Whether others tell why the scheduler ended the job: a failed task, or the accounting."""
    why = any(name.startswith("why") for name in hit.fields)
    return view.is_accounted(hit) or (not why and bool(view.failed_exits))


# devices


def _is_other_fault(view: View, hit: Hit) -> bool:
    """Whether an Xid is old, only informs, or is of a process or GPU that is not the job's."""
    meaning = XIDS.get(int(hit.fields["xid"]))
    first, time = view.first_consequence, hit.origin.time
    if first is not None and time is not None and time < first - LONG_BEFORE:
        return True
    if meaning is None or meaning.kind is Kind.HARDWARE:
        return _is_other_gpu(view, hit)
    if meaning.kind is Kind.INFORMATION or hit.fields["xid"] == "45" or _is_foreign(view, hit):
        return True
    # A program's own fault shows as an error of CUDA in that program.
    own = hit.fields.get("pid", "").isdigit() and int(hit.fields["pid"]) in view.incident.job.processes
    return bool(view.consequences) and not own and not any(h.code in OF_A_PROGRAM for h in view.hits)


def _is_foreign(view: View, hit: Hit) -> bool:
    """Whether a line is about a process that is none of the job's, all of which are known."""
    job, pid = view.incident.job, hit.fields.get("pid", "")
    if not pid.isdigit() or not job.world_size or len(job.processes) < job.world_size:
        return False
    killed = any(signal_of(e.code) == SIGKILL for e in view.exits) or any(
        h.code == WORKER_DIED for h in view.hits
    )
    return int(pid) not in job.processes and not killed


def _is_other_gpu(view: View, hit: Hit) -> bool:
    """Whether a GPU is none of the job's, all of which are known by their address."""
    job, address = view.incident.job, pci_address(hit.fields.get("bus", ""))
    known = job.world_size is not None and len(job.buses) >= job.world_size
    return known and address is not None and address not in job.buses


# what passes


def _is_over(view: View, hit: Hit) -> bool:
    """Whether a loss or norm became a number again, or the line is a text that speaks of such a thing."""
    mine = [h for h in view.hits if h.code == NOT_A_NUMBER and h.origin.rank == hit.origin.rank]
    if all(h.count == 1 for h in mine) and view.went_on(mine[-1]):
        return True
    steps = [p for p in view.incident.steps if p.origin.file == hit.origin.file]
    return bool(steps) and not hit.text.lstrip().startswith(("{", "[")) and progress(hit.text) is None


def hung_before(view: View, hits: Sequence[Hit]) -> bool:
    """Whether a job had failed or hung before it reached its time limit, which then was a consequence."""
    said = " ".join(value for h in hits for name, value in h.fields.items() if name.startswith("why"))
    if not any(word in said for word in ("TIME", "RUNLIMIT", "walltime")):
        return False
    before = [h for h in view.hits if h.order < hits[0].order and h.origin.rank is not None]
    return any(
        h.code in WAITED or (h.kind in (ROOT, LIKELY) and h.frames and not view.went_on(h)) for h in before
    )
