"""Signatures of the kernel log find what they are for, gate on a literal that must occur, and stay fast."""

from __future__ import annotations

import pytest

from fsdp_doctor.tables import kernel_messages as table
from fsdp_doctor.tables.kernel_messages import Signature, match, matches

ALL: tuple[Signature, ...] = (
    *table.LOCKUPS,
    table.HUNG_TASK,
    table.OOM_KILL,
    *table.HARDWARE,
    table.CRASH,
    table.NFS_SILENT,
    table.NFS_BACK,
    *table.NETWORK_FS,
    *table.DISK,
)

LINES = {
    "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3": "hard lockup",
    "watchdog: BUG: soft lockup - CPU#12 stuck for 23s! [python:41823]": "soft lockup",
    "BUG: unable to handle page fault for address: ffffa1b2c3d4": "kernel oops",
    "BUG: kernel NULL pointer dereference, address: 0000000000000008": "kernel oops",
    "Oops: 0002 [#1] SMP NOPTI": "kernel oops",
    "kernel BUG at mm/slub.c:379!": "kernel bug",
    "rcu: INFO: rcu_sched self-detected stall on CPU": "RCU stall",
    "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:": "RCU stall",
    "INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 12-... }": "RCU stall",
    "INFO: task kworker/u8:2:123 blocked for more than 120 seconds.": "hung task",
    "Memory cgroup out of memory: Killed process 77 (pt_main_thread) total-vm:1kB": "OOM kill",
    "Killed process 12345, UID 1000, (python3.12) total-vm:1kB": "OOM kill",
    "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400": "machine check exception",
    "mce: [Hardware Error]: CPU 1: Machine Check: 0 Bank 7: 8c00004000010090": "corrected hardware error",
    "mce: [Hardware Error]: Machine check events logged": "corrected hardware error",
    "[Hardware Error]: Corrected error, no action required.": "corrected hardware error",
    "[Hardware Error]: Uncorrected, software restartable error.": "uncorrected hardware error",
    "{1}[Hardware Error]: event severity: fatal": "uncorrected hardware error",
    "{1}[Hardware Error]: event severity: corrected": "corrected hardware error",
    "EDAC MC0: 2 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0": "corrected memory error",
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0": "uncorrected memory error",
    "Memory failure: 0x1f3a2b: recovery action for dirty LRU page: Recovered": "memory failure",
    "CPU3: Core temperature above threshold, cpu clock throttled (total events = 1)": (
        "processor throttled by temperature"
    ),
    "python[41823]: segfault at 0 ip 7f sp 7f error 4 in libnccl.so.2.27.5[7f00+100]": "crash in a library",
    "traps: python3.12[9] trap invalid opcode ip:7f sp:7f error:0 in libtorch_cpu.so[7f+1]": "crash in a library",
    "nfs: server 10.30.0.5 not responding, still trying": "NFS server",
    "nfs: server fs-0123.efs.eu-west-1.amazonaws.com OK": "NFS server",
    "LustreError: 167-0: scratch-MDT0000: This client was evicted by scratch-MDT0000": "Lustre client evicted",
    "Lustre: scratch-OST0003-osc-ffff9a: Connection to scratch-OST0003 (at 10.0.0.3@o2ib) was lost; in progress": (
        "Lustre target lost"
    ),
    "libceph: osd12 (1)10.0.0.7:6801 down": "Ceph server lost",
    "NFS: nfs4_reclaim_open_state: state recovery failed for open file": "NFS state lost",
    "CIFS: VFS: \\\\nas has not responded in 180 seconds. Reconnecting...": "CIFS server silent",
    "EXT4-fs (nvme0n1p2): Remounting filesystem read-only": "file system turned read-only",
    "EXT4-fs error (device nvme0n1p2): ext4_lookup:1690: inode #2: comm python": "file system error",
    "BTRFS error (device sda2): bdev /dev/sda2 errs: wr 1, rd 0": "file system error",
    "XFS (md0): Corruption of in-memory data detected.  Shutting down filesystem": "file system shut down",
    "XFS (dm-0): log I/O error -5": "file system shut down",
    "md/raid1:md0: Disk failure on sdb1, disabling device.": "disk failed in its array",
    "critical medium error, dev nvme1n1, sector 812": "medium error",
    "I/O error, dev sda, sector 0 op 0x1:(WRITE) flags 0x800": "I/O error",
    "Buffer I/O error on dev dm-0, logical block 3, lost async page write": "I/O error",
    "nvme nvme0: Device not ready; aborting reset, CSTS=0x1": "NVMe controller lost",
    "nvme nvme0: I/O tag 12 (000c) opcode 0x1 (I/O Cmd) QID 3 timeout, aborting": "NVMe timeout",
}
HARMLESS = (
    "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.",
    "rcu: Hierarchical RCU implementation.",
    "mce: CPU supports 32 MCE banks",
    "EDAC MC: Ver: 3.0.0",
    "EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 IMC#0",
    "XFS (md0): Ending clean mount",
    "XFS (md0): Unmounting Filesystem",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
    "BTRFS info (device sda2): disk space caching is enabled",
    "nvme nvme0: 64/0/0 default/read/poll queues",
    "oom_reaper: reaped process 77 (python), now anon-rss:0kB",
    "gnome-shell[991]: segfault at 8 ip 7f sp 7f error 4 in gnome-shell[7f+1]",
    "NFS: Registering the id_resolver key type",
    "Lustre: scratch-OST0003: Connection restored to 10.0.0.3@o2ib",
    "ACPI: \\_SB_.PR00: Found 2 idle states",
)


@pytest.mark.parametrize("line", LINES)
def test_finds(line: str) -> None:
    found = match(line, ALL)
    assert found is not None
    assert found.signature.name == LINES[line]


@pytest.mark.parametrize("line", HARMLESS)
def test_leaves_alone(line: str) -> None:
    assert match(line, ALL) is None


def test_names_what_it_is_about() -> None:
    killed = match("Out of memory: Killed process 41823 (python) total-vm:1kB", ALL)
    assert killed is not None
    assert (killed.who, killed.pid) == ("python", "41823")
    crash = match(
        "traps: pt_main_thread[7] general protection fault ip:1 sp:2 error:0 in libcuda.so.1[7+1]", ALL
    )
    assert crash is not None
    assert (crash.who, crash.where) == ("pt_main_thread", "libcuda.so.1")


@pytest.mark.parametrize("signature", ALL, ids=lambda s: f"{s.name}-{s.literal}")
def test_literal_is_part_of_every_match(signature: Signature) -> None:
    own = [line for line in LINES if signature.pattern.search(line)]
    assert own
    assert all(signature.literal in line for line in own)


@pytest.mark.timeout(60)
def test_hostile_lines_are_searched_to_their_end() -> None:
    """A pattern that backtracks over such a line would run into the deadline."""
    parts = (
        "[Hardware Error]",
        "segfault at ",
        "in lib",
        "Lustre: ",
        "XFS (a): ",
        "CIFS: ",
        "EDAC MC0: ",
        "was lost",
    )
    lines = [p * (20_000 // len(p)) for p in parts]
    lines += ["nvme nvme0: " + "I/O " * 5000, "a[1] " * 4000]
    assert matches(tuple(lines), ALL) == ()
