"""The device nodes that CUDA opens."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_doctor.engine.devices import counted, gpu_subject, gpu_words
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, fail, ok, skip
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.subjects.host import Host

NODE = re.compile(r"/dev/nvidia\d+\Z")
CONTROL = "/dev/nvidiactl"
OPENED = (CONTROL, "/dev/nvidia-uvm")


def _node(gpu: Gpu) -> str:
    return f"/dev/nvidia{gpu.minor if gpu.minor is not None else gpu.index}"


@check("GPU003", Row.START, needs=(Gpus, Host), tags=("gpu", "container"))
def device_nodes(facts: Facts, options: Options) -> Iterator[Finding]:
    """Device nodes of the GPUs are missing or may not be opened.

    What: for each GPU of NVML there should be /dev/nvidiaN, besides /dev/nvidiactl, and this user should
        be able to open them and /dev/nvidia-uvm (whose absence has a check of its own).
    Why: CUDA opens these nodes. One that is missing from a container, or denied by its device cgroup,
        makes torch see fewer GPUs or none ("no CUDA-capable device", "CUDA unknown error").
    Fix: start the container with the NVIDIA runtime so that it passes all nodes, or correct the udev
        rules and groups of the machine.
    Sources: NVIDIA container toolkit documentation; NVIDIA driver README (device nodes); DCGM permissions
        check.
    """
    host, present = facts[Host], facts[Gpus].present
    nodes = set(host.device_nodes)
    kernel = (host.kernel or "").lower()
    if "microsoft" in kernel:
        yield skip("WSL gives the GPUs through /dev/dxg and has no /dev/nvidia nodes")
        return
    if not nodes:
        yield skip("no /dev/nvidia nodes were recorded", enable="run the check on the machine itself")
        return
    container = host.container is not None
    runtime = Fix(
        "Start the container with the NVIDIA runtime, so that every node is passed"
        if container
        else "Create the nodes with nvidia-modprobe, and let nvidia-persistenced or udev do it at boot",
        "docker run --gpus all …" if container else "sudo nvidia-modprobe -c 0 -u",
        Risk.DISRUPTIVE if container else Risk.NEEDS_ROOT,
        Owner.YOU if container else Owner.ADMIN,
    )
    missing = [g for g in present if _node(g) not in nodes]
    numbered = sorted(n for n in nodes if NODE.match(n))
    known = [g for g in present if g.minor is not None]
    if missing and (known or len(numbered) < len(present)):
        yield fail(
            f"no device node for {gpu_words(missing)} ({', '.join(_node(g) for g in missing)}); "
            f"/dev has {len(numbered)} for {counted(present)} of NVML",
            "one /dev/nvidiaN for each GPU",
            subject=gpu_subject(missing),
            fix=runtime,
        )
    absent = CONTROL not in nodes
    if absent:
        yield fail(
            f"{CONTROL} missing",
            "the control node of the driver",
            subject=Subject(path=CONTROL),
            fix=runtime,
        )
    wanted = {_node(g) for g in present} | set(OPENED)
    denied = sorted(wanted & set(host.unreadable_nodes))
    if denied:
        yield fail(
            f"this user may not open {', '.join(denied)}",
            "read and write permission on the device nodes",
            subject=Subject(path=denied[0]),
            fix=Fix(
                "Join the group that owns the nodes, or allow them in the container's or job's device cgroup",
                f"ls -l {' '.join(denied)}",
                Risk.SAFE,
                Owner.ADMIN,
            ),
        )
    if not missing and not absent and not denied:
        yield ok(f"{len(numbered)} GPU nodes and nvidiactl")
