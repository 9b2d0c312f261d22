"""The machine without its GPUs, from /proc, /sys and /etc."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fsdp_doctor.facts.cgroup import cgroup
from fsdp_doctor.facts.code_version import code_version
from fsdp_doctor.facts.containment import container, hypervisor
from fsdp_doctor.facts.parse import chosen, fields, integer, number_list, real
from fsdp_doctor.facts.processes import processes, shm_segments
from fsdp_doctor.facts.source import Source, number, text
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.host import Host, Limit

KIB = 1024
CPU = "/sys/devices/system/cpu"
NODE_FOLDERS = {"nvidia-caps", "nvidia-caps-imex-channels"}
NODE_LIMIT = 4096


def host(source: Source) -> Known[Host] | Unknown:
    """The machine; unknown where /proc shows nothing, as outside Linux."""
    cpuinfo = text(source, "/proc/cpuinfo") or ""
    status = fields(text(source, "/proc/self/status", 65536))
    memory = memory_sizes(text(source, "/proc/meminfo", 65536))
    limit_table = text(source, "/proc/self/limits", 65536)
    kernel = kernel_release(source)
    if not (cpuinfo or status or memory or limit_table or kernel):
        return Unknown("nothing of /proc could be read", enable="run on Linux with /proc mounted")
    allowed = number_list(status.get("Cpus_allowed_list"))
    nodes = device_nodes(source)
    home = _env(source).get("HOME") or None
    swap = memory.get("SwapTotal"), memory.get("SwapFree")
    balancing = number(source, "/proc/sys/kernel/numa_balancing")
    value = Host(
        hostname=hostname(source) or "unknown",
        kernel=kernel,
        architecture=architecture(source, cpuinfo),
        os_name=os_name(source),
        machine_id=text(source, "/etc/machine-id", 256) or None,
        boot_id=text(source, "/proc/sys/kernel/random/boot_id", 256) or None,
        boot_arguments=boot_arguments(text(source, "/proc/cmdline", 65536)),
        uptime=real(next(iter((text(source, "/proc/uptime", 256) or "").split()), None)),
        cpu_model=cpu_model(cpuinfo),
        cpus_online=cpus_online(source, cpuinfo),
        cpus_allowed=len(allowed) if allowed else None,
        numa_nodes=numa_nodes(source),
        mems_allowed=number_list(status.get("Mems_allowed_list")),
        cpu_mhz=cpu_mhz(cpuinfo),
        governors=governors(source),
        clocksource=text(source, "/sys/devices/system/clocksource/clocksource0/current_clocksource", 256),
        hypervisor=hypervisor(source, cpuinfo),
        container=container(source),
        memory_total=memory.get("MemTotal"),
        memory_available=memory.get("MemAvailable"),
        swap_total=swap[0],
        swap_used=swap[0] - swap[1] if swap[0] is not None and swap[1] is not None else None,
        shmem=memory.get("Shmem"),
        huge_pages_total=memory.get("HugePages_Total"),
        transparent_huge_pages=chosen(text(source, "/sys/kernel/mm/transparent_hugepage/enabled", 256)),
        free_blocks=free_blocks(text(source, "/proc/buddyinfo", 65536)),
        numa_balancing=None if balancing is None else balancing != 0,
        file_max=number(source, "/proc/sys/fs/file-max"),
        files_open=integer(next(iter((text(source, "/proc/sys/fs/file-nr", 256) or "").split()), None)),
        ptrace_scope=number(source, "/proc/sys/kernel/yama/ptrace_scope"),
        seccomp=integer(status.get("Seccomp")),
        capabilities=integer(status.get("CapEff"), 16),
        uid=effective_uid(status),
        home=home,
        home_writable=source.path_facts(home).writable if home else None,
        limits=limits(limit_table),
        cgroup=cgroup(source),
        port_range=port_range(text(source, "/proc/sys/net/ipv4/ip_local_port_range", 256)),
        remove_ipc=remove_ipc(source),
        iommu_groups=len(source.listdir("/sys/kernel/iommu_groups"))
        if source.exists("/sys/kernel/iommu_groups")
        else None,
        processes=processes(source),
        device_nodes=nodes,
        unreadable_nodes=tuple(n for n in nodes if source.openable(n) is False),
        shm_segments=shm_segments(source),
        systemd_units=dict(source.units()),
        allowed_cpus=allowed,
        huge_page_size=memory.get("Hugepagesize"),
        ipc_namespace=source.readlink("/proc/self/ns/ipc"),
        code_version=code_version(source, _env(source).get("PWD")),
    )
    return Known(value, "/proc and /sys")


def _env(source: Source) -> Mapping[str, str]:
    answer = source.env()
    return {} if isinstance(answer, Unknown) else answer.value


def hostname(source: Source) -> str | None:
    """The kernel's host name, else the configured one, else the recording's."""
    for path in ("/proc/sys/kernel/hostname", "/etc/hostname"):
        name = text(source, path, 1024)
        if name:
            return name.split()[0]
    return source.manifest.host


def kernel_release(source: Source) -> str | None:
    """Such as 5.15.0-140-generic."""
    release = text(source, "/proc/sys/kernel/osrelease", 1024)
    match = re.match(r"Linux version (\S+)", text(source, "/proc/version", 4096) or "")
    return release or (match.group(1) if match else None)


def architecture(source: Source, cpuinfo: str) -> str | None:
    """x86_64, aarch64, ppc64le, …; the kernel's own word where it has one (6.1 and newer)."""
    word = text(source, "/proc/sys/kernel/arch", 64)
    if word:
        return word
    for pattern, name in (
        (r"(?m)^flags\s*:", "x86_64"),
        (r"(?m)^CPU implementer\s*:", "aarch64"),
        (r"(?m)^cpu\s*:\s*POWER", "ppc64le"),
        (r"(?m)^isa\s*:\s*rv64", "riscv64"),
    ):
        if re.search(pattern, cpuinfo):
            return name
    return None


def os_name(source: Source) -> str | None:
    """PRETTY_NAME of os-release."""
    release = fields(
        text(source, "/etc/os-release", 65536) or text(source, "/usr/lib/os-release", 65536), "="
    )
    name = (release.get("PRETTY_NAME") or release.get("NAME") or "").strip("\"'")
    return name or None


def boot_arguments(line: str | None) -> tuple[str, ...]:
    """The kernel's command line; a quoted value keeps its blanks."""
    return tuple(re.findall(r'(?:[^\s"]|"[^"]*"?)+', line or ""))


def cpu_model(cpuinfo: str) -> str | None:
    """The model's name; on Arm, which has none there, its numbers."""
    found = fields(cpuinfo)
    name = found.get("model name") or found.get("cpu") or found.get("Model")
    if not name and "CPU implementer" in found:
        name = f"implementer {found['CPU implementer']} part {found.get('CPU part', '?')}"
    return name or None


def cpus_online(source: Source, cpuinfo: str) -> int | None:
    """Processors that the kernel schedules on."""
    online = number_list(text(source, f"{CPU}/online", 65536))
    return len(online) if online else len(re.findall(r"(?m)^processor\s*:", cpuinfo)) or None


def cpu_mhz(cpuinfo: str) -> float | None:
    """Mean frequency of all processors at this moment."""
    speeds = [v for v in map(real, re.findall(r"(?m)^cpu MHz\s*:\s*(\S+)", cpuinfo)) if v is not None]
    return sum(speeds) / len(speeds) if speeds else None


def numa_nodes(source: Source) -> dict[int, tuple[int, ...]]:
    """NUMA node -> its processors; nodes of memory only have none."""
    found: dict[int, tuple[int, ...]] = {}
    for name in source.listdir("/sys/devices/system/node"):
        match = re.fullmatch(r"node(\d{1,5})", name)
        cpus = number_list(text(source, f"/sys/devices/system/node/{name}/cpulist", 65536)) if match else None
        if match and cpus is not None:
            found[int(match.group(1))] = cpus
    return dict(sorted(found.items()))


def governors(source: Source) -> tuple[str, ...]:
    """Distinct frequency governors in alphabetical order."""
    names = [n for n in source.listdir(CPU) if re.fullmatch(r"cpu\d{1,5}", n)]
    read = (text(source, f"{CPU}/{n}/cpufreq/scaling_governor", 64) for n in names)
    return tuple(sorted({g for g in read if g}))


def memory_sizes(meminfo: str | None) -> dict[str, int]:
    """/proc/meminfo in bytes; counts of huge pages stay counts."""
    sizes: dict[str, int] = {}
    for key, value in fields(meminfo).items():
        words = value.split()
        amount = integer(words[0]) if words else None
        if amount is not None:
            sizes[key] = amount * KIB if words[1:2] == ["kB"] else amount
    return sizes


def free_blocks(buddyinfo: str | None) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """(node, zone, free blocks per order)."""
    rows = re.findall(r"(?m)^Node\s+(\d+),\s+zone\s+(\S+)((?:[ \t]+\d+)+)[ \t]*$", buddyinfo or "")
    return tuple((n, z, tuple(c for v in b.split() if (c := integer(v)) is not None)) for n, z, b in rows)


def effective_uid(status: Mapping[str, str]) -> int | None:
    """The second number of "Uid: real effective saved file system"."""
    words = status.get("Uid", "").split()
    return integer(words[1] if len(words) > 1 else None)


def limits(table: str | None) -> dict[str, Limit]:
    """/proc/self/limits by name without "Max"; a row that does not parse is left out."""
    found: dict[str, Limit] = {}
    for name, *pair in re.findall(
        r"(?m)^Max ([a-z ]{1,40}?) {2,40}(\d+|unlimited) +(\d+|unlimited)\b", table or ""
    ):
        soft, hard = (None if word == "unlimited" else integer(word) for word in pair)
        found[name] = Limit(soft, hard)
    return found


def port_range(line: str | None) -> tuple[int, int] | None:
    """First and last ephemeral port."""
    words = [integer(w) for w in (line or "").split()]
    return (words[0], words[1]) if len(words) == 2 and words[0] is not None and words[1] is not None else None


def remove_ipc(source: Source) -> bool | None:
    """RemoveIPC of logind.conf: drop-ins in the order of their names override the main file."""
    drop_ins: dict[str, str] = {}
    for root in ("/usr/lib", "/usr/local/lib", "/run", "/etc"):
        folder = f"{root}/systemd/logind.conf.d"
        drop_ins |= {n: f"{folder}/{n}" for n in source.listdir(folder) if n.endswith(".conf")}
    main = next((p for r in ("/etc", "/usr/lib") if source.exists(p := f"{r}/systemd/logind.conf")), None)
    answer: bool | None = None
    for path in [*([main] if main else []), *(drop_ins[n] for n in sorted(drop_ins)[:256])]:
        for word in re.findall(
            r"(?mi)^[ \t]*RemoveIPC[ \t]*=[ \t]*(\S*)[ \t]*$", text(source, path, 65536) or ""
        ):
            answer = word.lower() in ("1", "yes", "y", "true", "t", "on") if word else None
    return answer


def device_nodes(source: Source) -> tuple[str, ...]:
    """Nodes of NVIDIA's driver, of RDMA and of IMEX channels; full paths."""
    found = [f"/dev/{n}" for n in source.listdir("/dev") if n.startswith("nvidia") and n not in NODE_FOLDERS]
    for folder in ("/dev/infiniband", "/dev/nvidia-caps-imex-channels"):
        found += [f"{folder}/{n}" for n in source.listdir(folder) if n not in ("by-path", "by-ibdev")]
    return tuple(found[:NODE_LIMIT])
