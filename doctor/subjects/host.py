"""The machine without its GPUs: kernel, processors, memory, limits, cgroup, processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Limit:
    """A resource limit; None is unlimited."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True, slots=True)
class Cgroup:
    """What the control group of this process allows; None is unlimited or unknown."""

    cpu_quota: float | None = None
    """Processors, such as 3.5 for `cpu.max` "350000 100000"."""
    memory_max: int | None = None
    memory_current: int | None = None
    oom_kills: int | None = None
    pids_max: int | None = None
    pids_current: int | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it; `state` is the one-letter code (R S D Z T …)."""

    pid: int
    name: str
    state: str | None = None
    ppid: int | None = None
    uid: int | None = None
    cmdline: tuple[str, ...] = ()
    wait_channel: str | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """One machine. Sizes in bytes, times in seconds; None where it could not be read."""

    hostname: str
    system: str = "Linux"
    kernel: str | None = None
    architecture: str | None = None
    os_name: str | None = None
    machine_id: str | None = None
    boot_id: str | None = None
    boot_arguments: tuple[str, ...] = ()
    uptime: float | None = None
    cpu_model: str | None = None
    cpus_online: int | None = None
    cpus_allowed: int | None = None
    """Processors this process may run on (Cpus_allowed_list)."""
    numa_nodes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """NUMA node -> its processors."""
    mems_allowed: tuple[int, ...] | None = None
    cpu_mhz: float | None = None
    governors: tuple[str, ...] = ()
    """Distinct cpufreq governors; empty where the kernel shows none."""
    clocksource: str | None = None
    hypervisor: bool | None = None
    container: str | None = None
    """docker, podman, kubernetes, lxc, …; None outside a container."""
    memory_total: int | None = None
    memory_available: int | None = None
    swap_total: int | None = None
    swap_used: int | None = None
    shmem: int | None = None
    huge_pages_total: int | None = None
    transparent_huge_pages: str | None = None
    free_blocks: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    """/proc/buddyinfo as (node, zone, free blocks per order)."""
    numa_balancing: bool | None = None
    file_max: int | None = None
    files_open: int | None = None
    ptrace_scope: int | None = None
    seccomp: int | None = None
    capabilities: int | None = None
    """CapEff as a bit mask."""
    uid: int | None = None
    home: str | None = None
    home_writable: bool | None = None
    limits: Mapping[str, Limit] = field(default_factory=dict)
    """By the kernel's names without "Max": "open files", "locked memory", "stack size", "processes"."""
    cgroup: Cgroup = field(default_factory=Cgroup)
    port_range: tuple[int, int] | None = None
    remove_ipc: bool | None = None
    """RemoveIPC of logind.conf; None where it is not set."""
    iommu_groups: int | None = None
    processes: tuple[Process, ...] = ()
    device_nodes: tuple[str, ...] = ()
    """Under /dev: nvidia*, infiniband/*, nvidia-caps-imex-channels/*; full paths."""
    unreadable_nodes: tuple[str, ...] = ()
    """Those of `device_nodes` that this user may not open; empty in a recording."""
    shm_segments: tuple[tuple[str, int, int | None], ...] = ()
    """Leftover (path, bytes, owner uid) of /dev/shm/nccl-*, torch_* and the like."""
    systemd_units: Mapping[str, str] = field(default_factory=dict)
    """Unit -> state where it was asked, such as nvidia-fabricmanager -> active."""
    allowed_cpus: tuple[int, ...] | None = None
    """The processors of Cpus_allowed_list by number."""
    huge_page_size: int | None = None
    """Bytes of one page that `huge_pages_total` counts (Hugepagesize)."""
    ipc_namespace: str | None = None
    """The link /proc/self/ns/ipc, such as ipc:[4026531839]."""
    code_version: str | None = None
    """Commit of the git checkout that holds the working folder."""
