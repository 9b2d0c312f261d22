"""Whether the machine is virtual and whether this process runs in a container."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fsdp_doctor.facts.source import Source, text
from fsdp_doctor.subjects.fact import Unknown

VIRTUAL = re.compile(
    r"(?i)qemu|kvm|vmware|virtualbox|innotek|bochs|\bxen\b|parallels|virtual machine|standard pc|openstack"
    r"|nutanix|cloud hypervisor|firecracker|bhyve|\bhvm domu\b"
)
CLOUD = re.compile(r"(?i)amazon ec2|google|alibaba cloud|oraclecloud|tencent cloud|digitalocean")
BY_CGROUP = (
    (re.compile(r"kubepods"), "kubernetes"),
    (re.compile(r"/libpod(?:_pod)?[-_/]"), "podman"),
    (re.compile(r"/docker[-/][0-9a-f]{4}"), "docker"),
    (re.compile(r"/lxc(?:\.payload|/)"), "lxc"),
    (re.compile(r"/machine\.slice/machine-"), "systemd-nspawn"),
    (re.compile(r"/cri-containerd[-:/]|/containerd/[0-9a-f]{4}"), "containerd"),
    (re.compile(r"/crio-[0-9a-f]{4}"), "cri-o"),
)
"""Paths of containers; the service that runs them, such as docker.service, is none."""
APPTAINER = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "APPTAINER_NAME", "SINGULARITY_NAME")
INIT = {"systemd", "init", "runit", "openrc-init", "launchd"}


def hypervisor(source: Source, cpuinfo: str) -> bool | None:
    """True in a virtual machine; None where neither the processor nor the firmware says.

    The processor's flag decides on x86. A cloud's name in the firmware proves nothing there, since
    clouds rent bare metal too.
    """
    flags = re.search(r"(?m)^flags\s*:(.*)$", cpuinfo)
    if flags and "hypervisor" in flags.group(1).split():
        return True
    kind = text(source, "/sys/hypervisor/type", 64)
    if kind and kind.lower() != "none":
        return True
    names = [text(source, f"/sys/class/dmi/id/{n}", 256) for n in ("sys_vendor", "product_name")]
    firmware = " ".join(n for n in names if n)
    if VIRTUAL.search(firmware):
        return True
    if flags:
        return False
    if CLOUD.search(firmware):
        return "metal" not in firmware.lower()
    return False if firmware else None


def container(source: Source) -> str | None:
    """The kind of container around this process; None outside of one."""
    answer = source.env()
    env: Mapping[str, str] = {} if isinstance(answer, Unknown) else answer.value
    groups = " ".join(text(source, p, 65536) or "" for p in ("/proc/self/cgroup", "/proc/1/cgroup"))
    by_group = next((name for pattern, name in BY_CGROUP if pattern.search(groups)), None)
    if by_group == "kubernetes" or env.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if source.exists("/run/.containerenv"):
        return "podman"
    if source.exists("/.dockerenv"):
        return "docker"
    if any(env.get(name) for name in APPTAINER) or source.exists("/.singularity.d"):
        return "apptainer"
    if env.get("ENROOT_ROOTFS") or source.exists("/etc/enroot_entrypoint"):
        return "enroot"
    if by_group:
        return by_group
    named = env.get("container") or text(source, "/run/systemd/container", 64)
    if named:
        return named
    return "container" if _overlay_root(source) and not _has_init(source) else None


def _overlay_root(source: Source) -> bool:
    mounts = text(source, "/proc/self/mountinfo") or ""
    return any(re.match(r"\S+ \S+ \S+ \S+ / .* - overlay ", line) for line in mounts.splitlines()[:64])


def _has_init(source: Source) -> bool:
    """A disk-less node has an overlay as its root too, but a real init as process 1."""
    comm = text(source, "/proc/1/comm", 64)
    return comm is None or comm in INIT
