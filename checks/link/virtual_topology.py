"""What NCCL can know of the topology: virtual machines and in-switch reduction."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.link._common import linked, meshed
from fsdp_doctor.engine.devices import MACHINE_USES, counted, virtual_machine
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Row, Subject, info, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.rdma import Rdma
from fsdp_doctor.tables.link_facts import NVLS_CAPABILITY, TOPOLOGY_FROM_PLUGIN
from fsdp_doctor.tables.nvml_codes import FABRIC_COMPLETED

TOPOLOGY = "NCCL_TOPO_FILE"
NVLS = "NCCL_NVLS_ENABLE"


@check(
    "LNK016",
    Row.SLOW,
    needs=(Gpus, Environment),
    uses=(Rdma, *MACHINE_USES),
    tags=("topology", "virtual"),
)
def hidden_topology(facts: Facts, options: Options) -> Iterator[Finding]:
    """NCCL sees a flat topology in a virtual machine.

    What: in a virtual machine with several GPUs, looks for a topology file (NCCL_TOPO_FILE, or a network
        plug-in that brings one).
    Why: a hypervisor shows a flat PCI tree. NCCL then takes the wrong adapter for a GPU and does not use
        GPUDirect RDMA between them: bandwidth between nodes is lost in silence.
    Fix: set NCCL_TOPO_FILE to the file that the cloud vendor gives for this machine type.
    Sources: NCCL user guide (NCCL_TOPO_FILE); Azure HPC images (topology files); aws-ofi-nccl.
    """
    gpus, env, rdma = facts[Gpus].present, facts[Environment], facts.find(Rdma)
    guest = virtual_machine(facts)
    value = env.nccl(TOPOLOGY)
    if not guest:
        if guest is None:
            yield skip("whether this is a virtual machine is not known")
        else:
            yield ok("bare metal: NCCL reads the real topology")
        return
    if len(gpus) < 2:
        yield ok("one GPU")
        return
    if value:
        yield ok(f"{TOPOLOGY}={value[:200]}")
        return
    drivers = {h.driver for h in rdma.hcas if h.driver is not None} if rdma is not None else set()
    if drivers & TOPOLOGY_FROM_PLUGIN:
        yield ok("the network plug-in of this cloud brings the topology")
        return
    adapters = len(rdma.hcas) if rdma is not None else 0
    if not adapters and linked(facts[Gpus]):
        yield info(f"{TOPOLOGY} is not set; {counted(gpus)} with NVLink and no adapter need none")
        return
    yield warn(
        f"a virtual machine with {counted(gpus)} and {adapters} RDMA adapters, and {TOPOLOGY} is not set",
        f"{TOPOLOGY} names the vendor's file for this machine type",
        subject=Subject(variable=TOPOLOGY),
        fix=Fix(f"Set {TOPOLOGY} to the vendor's topology file for this machine type", owner=Owner.YOU),
    )


@check("LNK017", Row.SLOW, needs=(Gpus, Environment), tags=("nvlink", "variables"))
def nvls(facts: Facts, options: Options) -> Iterator[Finding]:
    """In-switch reduction (NVLS) is switched off or cannot work.

    What: on GPUs with NVSwitches and compute capability 9.0 or newer, looks at NCCL_NVLS_ENABLE; on others,
        whether it asks for what the hardware lacks.
    Why: with NVLS the switches add and multicast: all-reduce and reduce-scatter of large tensors are faster
        and take fewer GPU cores. Switched off as a workaround, it is easily forgotten.
    Fix: unset the variable once the reason for the workaround is gone.
    Sources: NCCL user guide (NCCL_NVLS_ENABLE); pytorch#177472.
    """
    gpus, value = facts[Gpus], facts[Environment].nccl(NVLS)
    present = gpus.present
    capable = (
        len(present) > 1
        and all(g.capability is not None and g.capability >= NVLS_CAPABILITY for g in present)
        and meshed(present)
        and all(g.fabric is not None and g.fabric.state == FABRIC_COMPLETED for g in present)
    )
    subject = Subject(variable=NVLS)
    off = value is not None and value.strip() == "0"
    if capable and off:
        yield info(
            f"{NVLS}=0 on {counted(present)} with NVSwitch",
            expected="the variable not set: NCCL uses NVLS where it helps",
            subject=subject,
            fix=Fix("Unset it, unless a known fault of this NCCL version needs it", f"unset {NVLS}"),
        )
    elif not capable and value is not None and not off and value.strip() != "2":
        yield info(f"{NVLS}={value[:40]}, but these GPUs have no usable NVLS", subject=subject)
    elif capable:
        yield ok(f"NVLS can be used by {counted(present)}")
    else:
        yield ok("these GPUs have no NVLS, and nothing asks for it")
