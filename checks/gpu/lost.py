"""GPUs that the node has and NVML no longer counts."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.devices import RESTRICTION_USES, address, counted, gpu_subject, gpu_words, restriction
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Confidence, Evidence, Finding, Fix, Owner, Risk, Row, Subject, fail, ok
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.kernel_log import KernelLog
from fsdp_doctor.subjects.pci import Pci
from fsdp_doctor.tables.xid import FALLEN_OFF

REBOOT = Fix(
    "Reboot the node; if the GPU is missing again or drops out again, have it, its riser and its power "
    "cables replaced",
    "sudo systemctl reboot",
    Risk.DISRUPTIVE,
    Owner.HARDWARE,
)
SIGN = f"Xid {FALLEN_OFF}"


def _promised(facts: Facts) -> int:
    """GPUs that Slurm says this job has on this node; 0 where it does not say."""
    env = facts.find(Environment)
    value = (env.get("SLURM_GPUS_ON_NODE") if env is not None else None) or ""
    return int(value) if value.isascii() and value.isdigit() and len(value) < 5 else 0


@check(
    "GPU005",
    Row.NCCL,
    needs=(Gpus,),
    uses=(Pci, KernelLog, Driver, *RESTRICTION_USES),
    tags=("gpu", "hardware"),
)
def lost_gpus(facts: Facts, options: Options) -> Iterator[Finding]:
    """A GPU of this node is lost.

    What: compares the GPUs of the PCI bus with those of NVML, and looks for handles that answer
        GpuIsLost. Fewer in NVML is a fault only with a further sign: the driver logged that the GPU fell
        off the bus, or nothing restricts what this process may see. Containers, Slurm's cgroups and
        NVIDIA_VISIBLE_DEVICES hide GPUs on purpose.
    Why: the ranks of the lost GPU die or never start, and every other rank waits in its next collective
        until the NCCL timeout.
    Fix: reboot the node; a GPU that drops out again needs service.
    Sources: NVIDIA Xid errors (79); gpud gpu-counts; NVML API reference (GPU_IS_LOST).
    """
    gpus, pci, log, driver = facts[Gpus], facts.find(Pci), facts.find(KernelLog), facts.find(Driver)
    dead = [g for g in gpus.devices if g.lost is not None]
    if dead:
        errors = sorted({g.lost for g in dead if g.lost is not None})
        yield fail(
            f"{gpu_words(dead)} of {len(gpus.devices)} gives no handle: {', '.join(errors)}",
            "every GPU answers",
            subject=gpu_subject(dead),
            fix=REBOOT,
        )
    listed = [d for d in pci.gpus if d.driver in ("nvidia", None)] if pci is not None else []
    seen = {address(g.bdf) for g in gpus.devices}
    unnamed = sum(1 for g in gpus.devices if g.bdf is None)
    gone = [d for d in listed if address(d.bdf) not in seen]
    if len(gone) <= unnamed:
        if not dead:
            yield ok(f"{counted(gpus.devices)} answer")
        return
    fallen = {address(x.bdf): x for x in log.xids if x.number == FALLEN_OFF} if log is not None else {}
    fell = [d for d in gone if address(d.bdf) in fallen]
    why_fewer = restriction(facts)
    if why_fewer is not None and _promised(facts) > len(gpus.present):
        why_fewer = None
    if not fell and why_fewer is not None:
        if not dead:
            yield ok(
                f"{counted(gpus.devices)} answer; {len(gone)} more of the node are outside of {why_fewer}"
            )
        return
    missing = fell if why_fewer is not None else gone
    words = ", ".join(d.bdf for d in missing)
    registered = driver is not None and all(d.bdf in driver.proc_gpus for d in missing)
    yield fail(
        f"NVML counts {len(gpus.devices)} of {counted(listed)} that PCI lists; missing: {words}"
        + (f"; the kernel log says {SIGN}, GPU has fallen off the bus" if fell else ""),
        f"{counted(listed)}",
        subject=Subject(device=missing[0].bdf),
        fix=REBOOT,
        confidence=Confidence.HIGH if fell or registered else Confidence.MEDIUM,
        evidence=tuple(Evidence("kernel log", fallen[address(d.bdf)].text) for d in fell),
    )
