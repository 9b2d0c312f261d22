"""Limits, sizes and names that checks of the machine judge by, each with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_doctor.tables.units import GIB, MIB

CHECKED_ON = "2026-09-14"

SHM_DOCKER_DEFAULT = 64 * MIB
"""Docker, `docker run --shm-size`: the size of /dev/shm where nothing is said."""
SHM_PER_RANK = 64 * MIB
"""A rank maps about 10 MB per communicator; DataLoader workers hand batches over through it as well
(pytorch/torchtitan#853: 64 MiB in all is too little for 8 ranks)."""
SHM_COMFORTABLE = 1 * GIB
"""NCCL user guide, troubleshooting, and ml-engineering: `--shm-size=1g` or more."""
SHM_FREE_PER_RANK = 32 * MIB
"""Three communicators (shard, replicate, world) of about 10 MB."""
SHM_USED_PERCENT = 90

MEMLOCK_ENOUGH = 4 * GIB
"""Registered host buffers of one rank stay below this; NCCL's user guide asks for unlimited."""
RDMA_ETHERNET_GBPS = 100.0
"""Slower RoCE-capable ports are the network adapter of a server or workstation, not its fabric."""

NOFILE_BASE = 256
NOFILE_PER_LOCAL_RANK = 64
NOFILE_PER_RANK = 32
"""NCCL user guide, troubleshooting: a process of a large job can need more than 32K descriptors, which
is what 32 for each of about 1000 ranks comes to."""
NOFILE_SERVER = 4096
NOFILE_SERVER_RANKS = 8
"""From this many local ranks on, the desktop default of 1024 is worth raising."""
FILES_OPEN_PERCENT = 90

STACK_FIXED_IN = (2, 28)
"""NCCL user guide, troubleshooting: NCCL sets the stack size of its threads itself from 2.28 on."""

NPROC_BASE = 512
NPROC_PER_RANK = 512
"""Threads of a CUDA rank: intra-op pool, autograd, NCCL proxies and watchdogs, DataLoader workers."""
NPROC_STARTS = 64
"""Below this many for each rank, ranks cannot create the threads that `import torch` and CUDA start."""

CORES_PER_RANK_LOW = 4.0
CORES_PER_RANK_MINIMUM = 1.0

MEMORY_PER_RANK = 4 * GIB
"""Host memory of a CUDA rank: libraries, CUDA context, pinned buffers, a few DataLoader workers."""
MEMORY_PER_RANK_MINIMUM = 1 * GIB
MEMORY_CPU_ONLY = 1 * GIB
FULL_STATE_FACTOR = 3
"""Parameters and the two moments of Adam, all in fp32."""

SWAP_USED_BYTES = 1 * GIB
SWAP_USED_PERCENT = 10

NUMA_CALLS_FIRST = (2, 24)
NUMA_CALLS_FIXED = (2, 26, 5)
"""NCCL user guide, troubleshooting: cuMem host memory is the default from 2.24 on
and tests itself from 2.26.5 on."""
NUMA_CALLS_DRIVER = 12060
NUMA_CALLS_RUNTIME = (12, 2)
"""The same: on by default where the driver is of CUDA 12.6 and the runtime of 12.2 or newer."""

GOVERNOR = "performance"
CPU_MHZ_LOW = 1200.0
"""Under the performance governor; gcm's health checks ask for 1498 MHz whatever the governor."""
CLOCKSOURCES_SLOW: Mapping[str, str] = {
    "hpet": "a read leaves the processor and takes about a microsecond",
    "acpi_pm": "a read is an I/O port access of about a microsecond",
    "jiffies": "it advances with the timer tick only",
    "refined-jiffies": "it advances with the timer tick only",
    "pit": "a read is a series of I/O port accesses",
}
CLOCKSOURCES_FINE = (
    "tsc",
    "tsc-early",
    "arch_sys_counter",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "hyperv_clocksource_msr",
    "xen",
    "timebase",
)

HUGE_ORDER = 9
"""2 MiB in pages of 4 KiB."""
HUGE_PAGE_DEFAULT = 2 * MIB
HUGE_RESERVED_PERCENT = 50
FRAGMENTATION_MEMORY = 64 * GIB
"""Smaller machines are not judged by their free lists."""

RECENT_BOOT_SECONDS = 600.0
"""gcm health checks."""

KERNEL_RECOMMENDED = (5, 5)
"""accelerate warns below 5.5.0 that a process can hang (accelerate.utils.other.check_os_kernel)."""
KERNEL_MAINTAINED = (".el8", ".el9", ".el10", "amzn2")
"""Releases of distributions that carry fixes back to an older version number."""

REMOVE_IPC_OFF_BY_DEFAULT = ("red hat", "rhel", "centos", "rocky", "alma", "fedora", "oracle linux", "suse")
"""Distributions whose systemd is built with RemoveIPC=no; upstream's default is yes."""
FIRST_USER_UID = 1000

CAP_SYS_PTRACE = 19
CAP_SYS_NICE = 23
CAP_IPC_LOCK = 14
SECCOMP_FILTER = 2

TRAINING_NAMES = ("python", "pt_main_thread", "pt_", "torchrun", "accelerate", "deepspeed", "ray::")
"""How processes of a training run are named in /proc/PID/comm and in kernel messages."""
DRIVER_NAMES = ("nvidia", "nv-", "nv_", "irq/nvidia", "nccl", "dcgm", "UVM ")
DISK_WAITS = (
    "io_schedule",
    "folio_wait",
    "wait_on_page",
    "wait_on_buffer",
    "bit_wait_io",
    "blk_",
    "blkdev",
    "jbd2",
    "ext4",
    "xfs_",
    "btrfs",
    "balance_dirty",
    "submit_bio",
    "do_page_fault",
    "filemap",
)
"""Wait channels of a process that reads or writes a local disk: the D state is then ordinary and short."""

OLD_EVENT_SECONDS = 14 * 86_400.0
"""Age from which what a process did once says little of the next job."""
