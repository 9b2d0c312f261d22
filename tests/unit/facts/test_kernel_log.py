from __future__ import annotations

import pytest

from fixtures import machines
from fixtures.memory import source_of
from fsdp_doctor.facts.kernel_log import kernel_log, pci_address, sxid, xid
from fsdp_doctor.subjects.fact import Unknown
from fsdp_doctor.subjects.kernel_log import KernelLog, SXid, Xid
from tests.unit.facts.literal import known, source

FALLEN = "NVRM: Xid (PCI:0000:d1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
BOOT = "Linux version 6.8.0-60-generic"


def log_of(text: str | bytes) -> KernelLog:
    value = known(kernel_log(source(log=text)))
    assert isinstance(value, KernelLog)
    return value


def test_a_healthy_node() -> None:
    found = known(kernel_log(source_of(machines.h100())))
    assert isinstance(found, KernelLog)
    assert found.lines[0] == "Linux version 5.15.0-140-generic"
    assert found.lines[2] == "systemd[1]: Hostname set to <h100-node-a>."
    assert (found.xids, found.sxids, found.truncated) == ((), (), False)


def test_a_log_that_may_not_be_read() -> None:
    assert kernel_log(source_of(machines.laptop())) == Unknown("permission denied: dmesg_restrict is 1")


@pytest.mark.parametrize(
    ("first", "second", "seconds"),
    [
        (f"[    0.000000] {BOOT}", f"[712004.112873] {FALLEN}", 712004.112873),
        (f"[    0.000000][    T0] {BOOT}", f"[   12.500000][ T4711] {FALLEN}", 12.5),
        (f"<5>[    0.000000] {BOOT}", f"<3>[   12.500000] {FALLEN}", 12.5),
        (f"kern  :notice: [    0.000000] {BOOT}", f"kern  :err   : [   12.500000] {FALLEN}", 12.5),
        (
            f"2026-09-14T08:30:00,000000+02:00 {BOOT}",
            f"2026-09-14T08:31:30,250000+02:00 {FALLEN}",
            90.25,
        ),
        (
            f"2026-09-14T08:30:00+0000 host-a kernel: {BOOT}",
            f"2026-09-14T09:30:00+0000 host-a kernel: {FALLEN}",
            3600.0,
        ),
        (f"Feb 28 23:59:00 host-a kernel: {BOOT}", f"Mar  1 00:00:00 host-a kernel: {FALLEN}", 86460.0),
        (
            f"Sep 14 08:30:00 host-a kernel: [    0.000000] {BOOT}",
            f"Sep 14 08:31:00 host-a kernel: [   60.500000] {FALLEN}",
            60.5,
        ),
        (f"[Mon Sep 14 08:30:00 2026] {BOOT}", f"[Mon Sep 14 08:31:00 2026] {FALLEN}", None),
        (f"5,0,0,-;{BOOT}\n SUBSYSTEM=x", f"3,1203,61000000,-;{FALLEN}\n DEVICE=+pci:0000:d1:00.0", 61.0),
        (f"5,0,0,-,caller=T1;{BOOT}", f"3,1203,61000000,-,caller=T9;{FALLEN}", 61.0),
        (BOOT, FALLEN, None),
    ],
    ids=[
        "dmesg",
        "caller",
        "raw",
        "decoded",
        "dmesg-iso",
        "journal-iso",
        "journal-short",
        "syslog",
        "ctime",
        "kmsg",
        "kmsg-caller",
        "bare",
    ],
)
def test_formats(first: str, second: str, seconds: float | None) -> None:
    found = log_of(f"{first}\n{second}\n")
    assert found.lines == (BOOT, FALLEN)
    assert found.xids == (Xid(79, "0000:d1:00.0", "GPU has fallen off the bus.", seconds=seconds),)
    assert not found.truncated


def test_continuation_lines_belong_to_their_message() -> None:
    found = log_of(
        "[    0.100000] watchdog: BUG: soft lockup\n               stuck for 22s\n[    0.200000] next\n"
    )
    assert found.lines == ("watchdog: BUG: soft lockup stuck for 22s", "next")


def test_escapes_of_kmsg() -> None:
    found = log_of("6,1,5,-;a\\x0ab \\x5c \\x1b[2J\n")
    assert found.lines == ("a b \\  [2J",)


def test_what_is_cut() -> None:
    assert log_of("[  400.000000] late\n").truncated
    assert log_of("2026-09-14T08:30:00+0000 h kernel: late\n").truncated
    assert log_of("").truncated
    assert not log_of("[    0.000000] early\n").truncated
    late = log_of(f"2026-09-14T08:30:00+0000 h kernel: {FALLEN}\n")
    assert late.xids[0].seconds is None


def test_only_the_last_boot_counts() -> None:
    found = log_of(
        f"-- Boot 0123456789abcdef --\nSep 01 08:00:00 h kernel: {BOOT}\nSep 01 08:01:00 h kernel: {FALLEN}\n"
        f"-- Boot 123456789abcdef0 --\nSep 14 08:00:00 h kernel: {BOOT}\nSep 14 08:00:09 h kernel: fine\n"
    )
    assert found.lines == (BOOT, "fine")
    assert found.xids == ()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 31, pid=1234, name=python3, Ch 00000010, intr 10000000. MMU Fault",
            Xid(31, "0000:3b:00.0", "Ch 00000010, intr 10000000. MMU Fault", "python3", 1234),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 13, pid=77, Graphics SM Warp Exception",
            Xid(13, "0000:3b:00.0", "Graphics SM Warp Exception", None, 77),
        ),
        (
            "NVRM: Xid (0000:03:00): 48, An uncorrectable double bit error",
            Xid(48, "0000:03:00.0", "An uncorrectable double bit error"),
        ),
        (
            "NVRM: Xid (PCI:0000:9b:00 GPU-I:05): 94, pid=7194, name=python, Contained: CE User Channel",
            Xid(94, "0000:9b:00.0", "Contained: CE User Channel", "python", 7194),
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004a2 0x0)",
            Xid(149, "0018:01:00.0", "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004a2 0x0)"),
        ),
        (
            "NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            Xid(
                154, "0000:05:00.0", "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
            ),
        ),
        (
            "NVRM: Xid (PCI:0000:1b:00): 43, pid='<unknown>', name=<unknown>, Ch 8",
            Xid(43, "0000:1b:00.0", "Ch 8"),
        ),
        ("NVRM: Xid (PCI:0000:1b:00): 62", Xid(62, "0000:1b:00.0", "")),
        ("NVRM: GPU at PCI:0000:1b:00: GPU-0123", None),
        ("NVRM: Xid (PCI:0000:1b:00): many", None),
    ],
)
def test_xids(line: str, expected: Xid | None) -> None:
    assert xid(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 46 egress non-posted PRIV error",
            SXid(12028, "nvidia-nvswitch3", False, "Non-fatal, Link 46 egress non-posted PRIV error"),
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 24007, Fatal, Link 44 sourcetrack timeout error",
            SXid(24007, "nvidia-nvswitch0", True, "Fatal, Link 44 sourcetrack timeout error"),
        ),
        ("SXid (PCI:0000:05:00.0): 10, fatal", SXid(10, "0000:05:00.0", True, "fatal")),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 24007, Severity 1 Engine instance 44", None),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 24007, Data {0x1, 0x2}", None),
        ("nvidia-nvswitch0: open (major=510)", None),
    ],
)
def test_sxids(line: str, expected: SXid | None) -> None:
    assert sxid(line) == expected


@pytest.mark.parametrize(
    ("word", "address"),
    [
        ("0000:1B:00", "0000:1b:00.0"),
        ("00000000:1b:00.0", "0000:1b:00.0"),
        ("00010002:1b:00.1", "10002:1b:00.1"),
        ("1b:00.0", "0000:1b:00.0"),
        ("nonsense", "nonsense"),
    ],
)
def test_addresses(word: str, address: str) -> None:
    assert pci_address(word) == address


def test_a_log_of_any_bytes() -> None:
    assert log_of(b"[    0.000000] \xff\xfe\x00 odd\r\n").lines == ("\ufffd\ufffd\x00 odd",)
