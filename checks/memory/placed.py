"""GPUs that a rehearsed script names by number."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.memory._common import at
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Confidence, Finding, Fix, Row, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.rehearsal import Rehearsal

SHOWN = 3


@check("MEM043", Row.START, needs=(Rehearsal,), tags=("script",), cost=Cost.SECONDS)
def works_on_another_gpu(facts: Facts, options: Options) -> Iterator[Finding]:
    """The script works on a GPU that is not its rank's.

    What: Looks for lines that rank 0, whose LOCAL_RANK is 0, works on cuda:1 or another but cuda:0 by. A
        rehearsal without a GPU takes cuda:0 for them.
    Why: Where a number is written into the script, all ranks of a node meet on one GPU: NCCL refuses
        ("Duplicate GPU detected"), or the GPU's memory runs out.
    Fix: Take the device from LOCAL_RANK, or call torch.cuda.set_device(local_rank) and say "cuda" afterwards.
    Sources: torch.distributed.run (LOCAL_RANK); NCCL's message.
    """
    found = facts[Rehearsal]
    if found.mode != "fake":
        yield skip("devices are looked at in a rehearsal on fake tensors", enable="--device fake")
        return
    if not found.elsewhere:
        yield ok("rank 0 works on cuda:0")
        return
    for line in found.elsewhere[:SHOWN]:
        yield warn(
            f"rank 0, whose LOCAL_RANK is 0, works on {line.what}; cuda:0 was taken for it",
            "cuda:0, or a device that follows LOCAL_RANK",
            subject=at(line.place),
            fix=Fix('Take the device from LOCAL_RANK: torch.device("cuda", int(os.environ["LOCAL_RANK"]))'),
            confidence=Confidence.MEDIUM,
        )
    if len(found.elsewhere) > SHOWN:
        yield warn(
            f"{len(found.elsewhere) - SHOWN} more lines (data.other_gpus has all)",
            "cuda:0, or a device that follows LOCAL_RANK",
        )
