from __future__ import annotations

import pytest

from fixtures import machines
from fixtures.memory import source_of
from fsdp_doctor.facts.cgroup import cgroup
from fsdp_doctor.facts.containment import container, hypervisor
from fsdp_doctor.facts.host import host
from fsdp_doctor.subjects.fact import Unknown
from fsdp_doctor.subjects.host import Cgroup, Host, Limit, Process
from tests.unit.facts.literal import known, source

GIB = 1 << 30


def host_of(machine: machines.Machine) -> Host:
    value = known(host(source_of(machine)))
    assert isinstance(value, Host)
    return value


def test_a_healthy_node() -> None:
    h = host_of(machines.h100())
    assert (h.hostname, h.kernel, h.architecture) == ("h100-node-a", "5.15.0-140-generic", "x86_64")
    assert h.os_name == "Ubuntu 22.04 LTS"
    assert h.boot_arguments[1:] == ("root=/dev/nvme0n1p2", "ro", "quiet")
    assert h.uptime == 864012.31
    assert h.cpu_model == "Intel(R) Xeon(R) Platinum 8480C"
    assert (h.cpus_online, h.cpus_allowed, h.cpu_mhz) == (224, 224, 2900.0)
    assert h.allowed_cpus == tuple(range(224))
    assert {n: (c[0], c[-1], len(c)) for n, c in h.numa_nodes.items()} == {
        0: (0, 111, 112),
        1: (112, 223, 112),
    }
    assert h.mems_allowed == (0, 1)
    assert h.governors == ("performance",)
    assert h.clocksource == "tsc"
    assert (h.hypervisor, h.container) == (False, None)
    assert h.memory_total == 2015 * GIB
    assert (h.swap_total, h.swap_used, h.shmem) == (0, 0, 20480 * 1024)
    assert (h.huge_pages_total, h.huge_page_size, h.transparent_huge_pages) == (0, 2 << 20, "madvise")
    assert (h.numa_balancing, h.file_max, h.files_open) == (False, 9223372036854775807, 21344)
    assert (h.ptrace_scope, h.seccomp, h.capabilities, h.uid) == (1, 0, 0, 1000)
    assert (h.home, h.home_writable) == ("/home/user", None)
    assert h.limits["locked memory"] == Limit(None, None)
    assert h.limits["open files"] == Limit(1048576, 1048576)
    assert h.limits["stack size"] == Limit(8388608, None)
    assert h.limits["core file size"] == Limit(0, None)
    assert h.cgroup == Cgroup()
    assert h.port_range == (32768, 60999)
    assert h.processes[-1] == Process(
        200,
        "nv-fabricmanager",
        cmdline=("/usr/bin/nv-fabricmanager", "-c", "/usr/share/nvidia/nvswitch/fabricmanager.cfg"),
    )
    assert [n for n in h.device_nodes if n.startswith("/dev/nvidia")] == [
        *(f"/dev/nvidia-nvswitch{i}" for i in range(4)),
        "/dev/nvidia-nvswitchctl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        *(f"/dev/nvidia{i}" for i in range(8)),
        "/dev/nvidiactl",
    ]
    assert [n for n in h.device_nodes if "infiniband" in n] == [
        f"/dev/infiniband/uverbs{i}" for i in range(8)
    ]
    assert (h.unreadable_nodes, h.shm_segments, dict(h.systemd_units)) == ((), (), {})


@pytest.mark.parametrize(
    ("machine", "cpus", "memory", "virtual", "inside", "open_files"),
    [
        (machines.a100(), 256, 2015, False, None, 1048576),
        (machines.l40s(), 224, 2015, False, None, 1048576),
        (machines.geforce(), 64, 251, False, None, 1048576),
        (machines.h200_vm(), 16, 125, True, None, 1048576),
        (machines.laptop(), 8, 16, False, None, 1024),
        (machines.h100_container(), 224, 2015, False, "docker", 1048576),
        (machines.job_node("n", "10.0.0.1/24"), 48, 503, True, None, 1048576),
    ],
    ids=["a100", "l40s", "geforce", "h200_vm", "laptop", "container", "job_node"],
)
def test_the_other_machines(
    machine: machines.Machine, cpus: int, memory: int, virtual: bool, inside: str | None, open_files: int
) -> None:
    h = host_of(machine)
    assert (h.cpus_online, h.memory_total) == (cpus, memory * GIB)
    assert (h.hypervisor, h.container) == (virtual, inside)
    assert h.limits["open files"].soft == open_files


def test_a_container_with_limits() -> None:
    h = host_of(machines.h100_container(cpu_max="350000 100000", memory_max=str(32 * GIB)))
    assert h.cgroup == Cgroup(cpu_quota=3.5, memory_max=32 * GIB, memory_current=6 * GIB, oom_kills=0)
    assert h.seccomp == 2
    assert h.capabilities == 0xA80425FB


def test_arm_has_no_model_name() -> None:
    machine = machines.Machine("grace", arch="aarch64")
    machine.os(144, 2, 960)
    h = host_of(machine)
    assert h.architecture == "aarch64"
    assert h.cpu_model == "implementer 0x41 part 0xd4f"
    assert h.cpus_online == 144


def test_nothing_to_read() -> None:
    assert host(source()) == Unknown("nothing of /proc could be read", "run on Linux with /proc mounted")


def test_little_to_read() -> None:
    h = known(host(source({"proc/self/status": "Name:\tx"})))
    assert isinstance(h, Host)
    assert (h.hostname, h.kernel, h.memory_total, h.cpus_online, h.iommu_groups) == (
        "literal",
        None,
        None,
        None,
        None,
    )


class TestCgroup:
    def test_the_tightest_of_the_nested_groups(self) -> None:
        top = "sys/fs/cgroup"
        found = cgroup(
            source(
                {
                    "proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0\n",
                    f"{top}/system.slice/slurmstepd.scope/job_7/step_0/memory.max": "max",
                    f"{top}/system.slice/slurmstepd.scope/job_7/step_0/memory.current": "100",
                    f"{top}/system.slice/slurmstepd.scope/job_7/step_0/memory.events": "oom 0\noom_kill 2\n",
                    f"{top}/system.slice/slurmstepd.scope/job_7/memory.max": "4096",
                    f"{top}/system.slice/slurmstepd.scope/job_7/memory.current": "200",
                    f"{top}/system.slice/slurmstepd.scope/job_7/cpu.max": "200000 100000",
                    f"{top}/system.slice/memory.max": "8192",
                    f"{top}/system.slice/cpu.max": "800000 100000",
                    f"{top}/system.slice/memory.events": "oom_kill 9\n",
                    f"{top}/system.slice/pids.max": "512",
                    f"{top}/system.slice/pids.current": "7",
                }
            )
        )
        assert found == Cgroup(2.0, 4096, 200, 2, 512, 7)

    def test_version_1(self) -> None:
        found = cgroup(
            source(
                {
                    "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n3:pids:/docker/abc\n",
                    # The container's own group is mounted as the root, so that /docker/abc is not there.
                    "sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824",
                    "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000",
                    "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1",
                    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000",
                    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
                    "sys/fs/cgroup/pids/pids.max": "max",
                    "sys/fs/cgroup/pids/pids.current": "3",
                }
            )
        )
        assert found == Cgroup(1.5, 1 << 30, 1000, 1, None, 3)

    def test_version_1_without_limits(self) -> None:
        found = cgroup(
            source(
                {
                    "proc/self/cgroup": "5:memory:/\n4:cpu:/\n",
                    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                }
            )
        )
        assert found == Cgroup()

    def test_a_path_out_of_the_name_space(self) -> None:
        files = {"proc/self/cgroup": "0::/../../other", "sys/fs/cgroup/memory.max": "77"}
        assert cgroup(source(files)).memory_max == 77


class TestContainer:
    @pytest.mark.parametrize(
        ("files", "env", "kind"),
        [
            ({".dockerenv": ""}, {}, "docker"),
            ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
            ({"run/.containerenv": 'engine="podman-4.9"'}, {}, "podman"),
            ({"proc/self/cgroup": "0::/kubepods.slice/pod1/cri-containerd-x"}, {}, "kubernetes"),
            ({"proc/self/cgroup": "1:cpu:/docker/0123"}, {}, "docker"),
            ({"proc/1/cgroup": "0::/lxc.payload.box"}, {}, "lxc"),
            ({}, {"container": "systemd-nspawn"}, "systemd-nspawn"),
            ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
            (
                {"proc/self/mountinfo": "1 0 0:1 / / rw - overlay o rw", "proc/1/comm": "bash"},
                {},
                "container",
            ),
            ({"proc/self/mountinfo": "1 0 0:1 / / rw - overlay o rw", "proc/1/comm": "systemd"}, {}, None),
            ({"proc/self/cgroup": "0::/system.slice/docker.service"}, {}, None),
            ({"proc/self/cgroup": "0::/user.slice/user-1.slice"}, {"container": ""}, None),
        ],
    )
    def test_kinds(self, files: dict[str, str], env: dict[str, str], kind: str | None) -> None:
        assert container(source(files, env=env)) == kind


class TestHypervisor:
    @pytest.mark.parametrize(
        ("cpuinfo", "vendor", "product", "virtual"),
        [
            ("flags\t: fpu hypervisor sse", "Dell Inc.", "PowerEdge", True),
            ("flags\t: fpu sse", "Supermicro", "SYS-821GE-TNHR", False),
            ("flags\t: fpu sse", "Amazon EC2", "p5.48xlarge", False),
            ("flags\t: fpu sse", "QEMU", "Standard PC (Q35 + ICH9, 2009)", True),
            ("CPU implementer\t: 0x41", "Amazon EC2", "g5g.xlarge", True),
            ("CPU implementer\t: 0x41", "Amazon EC2", "c7g.metal", False),
            ("CPU implementer\t: 0x41", "NVIDIA", "GB200 NVL", False),
            ("", "", "", None),
        ],
    )
    def test_kinds(self, cpuinfo: str, vendor: str, product: str, virtual: bool | None) -> None:
        files = {"sys/class/dmi/id/sys_vendor": vendor, "sys/class/dmi/id/product_name": product}
        assert hypervisor(source(files), cpuinfo) is virtual


def part(files: dict[str, str | bytes], **more: object) -> Host:
    value = known(host(source({"proc/self/status": "Name:\tx"} | files, **more)))  # type: ignore[arg-type]
    assert isinstance(value, Host)
    return value


def test_removal_of_ipc_follows_the_drop_ins() -> None:
    main = "etc/systemd/logind.conf"
    assert part({main: "[Login]\n#RemoveIPC=yes\n"}).remove_ipc is None
    assert part({main: "[Login]\nRemoveIPC=no\n"}).remove_ipc is False
    over = {
        main: "[Login]\nRemoveIPC=yes\n",
        "usr/lib/systemd/logind.conf.d/10.conf": "[Login]\nRemoveIPC=yes",
        "etc/systemd/logind.conf.d/10.conf": "[Login]\nRemoveIPC=no",
        "etc/systemd/logind.conf.d/20.txt": "[Login]\nRemoveIPC=yes",
    }
    assert part(over).remove_ipc is False


def test_leftovers_of_shared_memory() -> None:
    files = {
        "dev/shm/nccl-Ab12": b"x" * 10,
        "dev/shm/torch_9_1_0": b"",
        "dev/shm/sem.mp-1": b"1",
        "dev/shm/mine": b"",
    }
    assert part(files).shm_segments == (
        ("/dev/shm/nccl-Ab12", 10, None),
        ("/dev/shm/sem.mp-1", 1, None),
        ("/dev/shm/torch_9_1_0", 0, None),
    )


def test_processes() -> None:
    found = part(
        {
            "proc/41/comm": "python",
            "proc/41/status": "Name:\tpython\nState:\tD (disk sleep)\nPPid:\t1\nUid:\t1001\t1001\t1001\t1001",
            "proc/41/cmdline": b"python\0train.py\0",
            "proc/41/wchan": "rpc_wait_bit_killable",
            "proc/42/status": "Name:\tworker\nState:\tS (sleeping)\nPPid:\t41",
            "proc/42/cmdline": b"python\0\xff\0",
            "proc/notapid/comm": "x",
        }
    ).processes
    assert found == (
        Process(41, "python", "D", 1, 1001, (), "rpc_wait_bit_killable"),
        Process(42, "worker", "S", 41, None, ("python", "�"), None),
    )


def test_imex_channels_and_no_folders() -> None:
    files = {
        "dev/nvidia0": "",
        "dev/nvidia-caps/nvidia-cap1": "",
        "dev/nvidia-caps-imex-channels/channel0": "",
        "dev/infiniband/uverbs0": "",
    }
    assert part(files).device_nodes == (
        "/dev/nvidia0",
        "/dev/infiniband/uverbs0",
        "/dev/nvidia-caps-imex-channels/channel0",
    )


def test_fragmentation_and_iommu() -> None:
    found = part(
        {
            "proc/buddyinfo": "Node 0, zone      DMA      1      0   3\nNode 1, zone   Normal   7  8  9  \ngarbage",
            "sys/kernel/iommu_groups/0/type": "DMA",
            "sys/kernel/iommu_groups/1/type": "identity",
        }
    )
    assert found.free_blocks == (("0", "DMA", (1, 0, 3)), ("1", "Normal", (7, 8, 9)))
    assert found.iommu_groups == 2


def test_quoted_boot_arguments() -> None:
    assert part({"proc/cmdline": 'ro iommu=pt dyndbg="file a +p" x'}).boot_arguments == (
        "ro",
        "iommu=pt",
        'dyndbg="file a +p"',
        "x",
    )
