"""GPUs that the node has and NVML no longer counts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_doctor.engine.devices import RESTRICTION_USES, address, counted, gpu_subject, gpu_words, restriction
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Confidence, Evidence, Finding, Fix, Owner, Risk, Row, Subject, fail, ok, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.host import Host
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
NODE = re.compile(r"/dev/nvidia\d+\Z")
SIGN = f"Xid {FALLEN_OFF}"


def _nodes(facts: Facts) -> int:
    """Device nodes of GPUs that this process has: the node of a lost GPU stays."""
    host = facts.find(Host)
    return sum(1 for n in host.device_nodes if NODE.match(n)) if host is not None else 0


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
    counted_by_nvml = max(len(gpus.devices), gpus.count or 0)
    if len(gone) <= unnamed or counted_by_nvml >= len(listed):
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
    words = "" if unnamed else "; missing: " + ", ".join(d.bdf for d in missing)
    registered = driver is not None and all(d.bdf in driver.proc_gpus for d in missing)
    theirs = why_fewer is not None and _nodes(facts) <= len(gpus.devices)
    say = warn if theirs else fail
    yield say(
        f"NVML counts {len(gpus.devices)} of {counted(listed)} that PCI lists{words}"
        + (f"; the kernel log says {SIGN}, GPU has fallen off the bus" if fell else "")
        + (f" ({why_fewer} may not have had it)" if theirs else ""),
        f"{counted(listed)}",
        subject=Subject(device=missing[0].bdf),
        fix=REBOOT,
        confidence=Confidence.HIGH if fell or registered else Confidence.MEDIUM,
        evidence=tuple(Evidence("kernel log", fallen[address(d.bdf)].text) for d in fell),
    )
