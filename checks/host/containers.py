"""What a container was started with: device nodes, limits, NVIDIA's runtime."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Risk, Row, Subject, fail, info, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.pci import Pci
from fsdp_doctor.subjects.stack import Stack, Torch

UVM = "/dev/nvidia-uvm"
CONTROL = "/dev/nvidiactl"


@check("HST031", Row.START, needs=(Host, Gpus), uses=(Driver, Torch), tags=("gpu", "container"))
def uvm_missing(facts: Facts, options: Options) -> Iterator[Finding]:
    """The unified-memory device is missing

    What: Looks for /dev/nvidia-uvm where other NVIDIA device nodes are. Without it and with no CUDA in
        torch, or in a container, this fails; on a host the driver makes the node at the first CUDA call.
    Why: NVML and nvidia-smi work without it, CUDA does not: torch.cuda.is_available() is False or the
        first call ends with "unknown error". NCCL uses unified memory for graphs from 2.23 on.
    Fix: Pass the device to the container or virtual machine; load the module with nvidia-modprobe.
    Sources: NCCL user guide, troubleshooting, unified memory; nvidia-modprobe(1); NVIDIA container
        toolkit documentation.
    """
    host, torch, driver = facts[Host], facts.find(Torch), facts.find(Driver)
    if not host.device_nodes:
        yield skip("the device nodes could not be read", enable="/dev")
        return
    if UVM in host.device_nodes:
        yield ok(f"{UVM} is there")
        return
    dead = torch is not None and torch.cuda is not None and torch.cuda_available is False
    loaded = driver is not None and any(m.startswith("nvidia_uvm") for m in driver.modules)
    found = f"no {UVM} beside {len(host.device_nodes)} other nodes"
    found += ", and torch.cuda.is_available() is False" if dead else ""
    expected = f"{UVM}, which CUDA opens at its first call"
    subject = Subject(path=UVM)
    works = torch is not None and torch.cuda_available
    if host.container is not None:
        text = f"Start the container with NVIDIA's runtime (--gpus all), or add --device {UVM}"
        yield fail(found, expected, subject=subject, fix=Fix(text, risk=Risk.DISRUPTIVE))
    elif dead or works:
        fix = Fix("Load the module and make its node", "sudo nvidia-modprobe -u -c=0", Risk.NEEDS_ROOT)
        say = fail if dead else warn
        yield say(found, expected, subject=subject, fix=fix)
    else:
        state = "loaded" if loaded else "not loaded"
        yield info(f"{found}; the nvidia_uvm module is {state} and the first CUDA program makes the node")


@check(
    "HST032",
    Row.START,
    needs=(Host,),
    uses=(Pci, Driver, Gpus, Torch, Stack, Environment),
    tags=("gpu", "container"),
)
def runtime_missing(facts: Facts, options: Options) -> Iterator[Finding]:
    """The container was started without its GPUs

    What: In a container on a machine with NVIDIA GPUs, looks for /dev/nvidiactl and libcuda.so.1. Both
        missing although the image holds a CUDA build of torch or asks for GPUs is a failure.
    Why: Without NVIDIA's container runtime neither the device nodes nor the driver's libraries are put
        into the container, and torch.cuda.is_available() is False although the machine is sound.
    Fix: Start the container with --gpus all, --runtime=nvidia, or nvidia.com/gpu in the pod's limits.
    Sources: NVIDIA container toolkit documentation; docker run, --gpus; Kubernetes device plugins.
    """
    host, pci, driver = facts[Host], facts.find(Pci), facts.find(Driver)
    if host.container is None:
        yield ok("not in a container")
        return
    if facts.find(Gpus) is not None or CONTROL in host.device_nodes:
        yield ok("the container holds NVIDIA's device nodes")
        return
    present = (pci is not None and bool(pci.gpus)) or (
        driver is not None and driver.kernel_version is not None
    )
    if not present:
        yield ok("the machine shows no NVIDIA GPU")
        return
    torch, stack, environment = facts.find(Torch), facts.find(Stack), facts.find(Environment)
    wanted = (
        (environment.get("NVIDIA_VISIBLE_DEVICES") or "").strip().lower() if environment is not None else ""
    )
    library = stack.dlopen.get("libcuda.so.1") if stack is not None else None
    count = f"{len(pci.gpus)} NVIDIA GPUs" if pci is not None and pci.gpus else "NVIDIA's driver"
    found = f"the machine shows {count}; in this container ({host.container}) there is no {CONTROL}"
    found += "" if library else " and no libcuda.so.1"
    if driver is not None and driver.nvml_error is not None:
        found += f", and NVML did not start ({driver.nvml_error})"
    asks = wanted not in ("", "void", "none") or (torch is not None and torch.cuda is not None)
    if wanted in ("void", "none") or not asks:
        yield info(f"{found}; none was asked for", subject=Subject(variable="NVIDIA_VISIBLE_DEVICES"))
        return
    yield fail(
        found,
        "device nodes and driver libraries, which NVIDIA's container runtime adds",
        subject=Subject(path=CONTROL),
        fix=Fix(
            "Start the container with --gpus all (docker), --device nvidia.com/gpu=all (podman) or "
            "nvidia.com/gpu in resources.limits (Kubernetes)",
            risk=Risk.DISRUPTIVE,
        ),
    )


@check("HST033", None, needs=(Host,), tags=("container",))
def no_limits(facts: Facts, options: Options) -> Iterator[Finding]:
    """The container has no memory or CPU limit

    What: Says where a container has no limit of memory or processors below the machine's.
    Why: Without a limit a leak in one rank takes the whole machine's memory, and the kernel then kills
        whatever is largest, also in other containers. With one, the failure stays where it began.
    Fix: Set docker run --memory and --cpus (or the pod's limits) to what the job needs, with room.
    Sources: docker documentation, resource constraints; FSDP guides that recommend --memory and --cpus.
    """
    host = facts[Host]
    if host.container is None:
        yield ok("not in a container")
        return
    total = host.memory_total
    limit = host.cgroup.memory_max
    missing = []
    if limit is None or (total is not None and limit >= total):
        missing.append("memory (--memory)")
    narrow = (
        host.cpus_allowed is not None
        and host.cpus_online is not None
        and host.cpus_allowed < host.cpus_online
    )
    if host.cgroup.cpu_quota is None and not narrow:
        missing.append("processors (--cpus)")
    if missing:
        yield info(
            f"no limit of {' and of '.join(missing)}", expected="limits with room above what the job needs"
        )
    else:
        yield ok("limits of memory and processors are set")
