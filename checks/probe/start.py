"""How long ranks need to import torch and to connect."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.probe._common import FACTS, RERUN, rank_words, subject, unfinished
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Finding, Fix, Row, ok, skip, warn
from fsdp_doctor.subjects.fabric import Fabric
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.probe import ProbeResult

IMPORT_FIX = Fix(
    "Keep the Python environment on local disk or in a container image, not on the shared file system",
    "python -X importtime -c 'import torch' 2>&1 | sort -t'|' -k2 -n | tail -5",
)
INIT_FIX = Fix(
    "Look at name resolution of the nodes, at NCCL_SOCKET_IFNAME (an interface that leads nowhere is tried "
    "first), and at RDMA devices that time out",
    "getent hosts $MASTER_ADDR; NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP fsdp-doctor probe",
)


@check("PRB016", Row.START, needs=FACTS, tags=("probe", "start"), cost=Cost.MINUTES)
def slow_start(facts: Facts, options: Options) -> Iterator[Finding]:
    """Importing torch or connecting the ranks takes long.

    What: Times the import of torch and, from the moment all ranks are there, the process group and its first
        collective; also names ranks that need far longer than the others.
    Why: Every restart of an FSDP job pays this on all GPUs, and near the timeout a slow rank makes the start
        fail now and then.
    Fix: Local Python environment for slow imports; name resolution, interface and RDMA devices for slow
        connecting.
    Sources: PyTorch documentation, init_process_group (timeout); NCCL user guide, NCCL_SOCKET_IFNAME.
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    for s in fabric.starts:
        what = "importing torch" if s.what == "import" else "creating the process group and connecting"
        found = (
            f"{what} takes {rank_words(s.ranks)} {s.seconds:.1f} s"
            if s.ranks
            else f"{what} takes {s.seconds:.1f} s"
        )
        yield warn(
            found,
            f"at most {s.limit:.1f} s" + (" (5x the others)" if s.ranks else ""),
            subject=subject(probe, s.ranks),
            fix=IMPORT_FIX if s.what == "import" else INIT_FIX,
        )
    if fabric.starts:
        return
    untimed = [r for r in probe.ranks if r.import_seconds is None or r.init_seconds is None]
    if untimed or len(probe.ranks) < probe.world_size:
        yield skip(f"starting was not timed on all ranks: {unfinished(probe, fabric)}", enable=RERUN)
    elif fabric.started:
        yield ok(", ".join(fabric.started))
    else:
        yield skip("starting was not timed", enable=RERUN)
