"""What faults of the machine look like in the kernel log.

A signature names a literal that must occur in the line, so that a long log is searched fast; the
pattern decides. The wordings are those of Linux (kernel/watchdog.c, kernel/hung_task.c, mm/oom_kill.c,
arch/x86/kernel/cpu/mce, drivers/edac, drivers/nvme, fs/*, net/sunrpc) as printed by 4.18 to 6.x.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

CHECKED_ON = "2026-09-14"


@dataclass(frozen=True, slots=True)
class Signature:
    """One kind of message; `severe` ones are failures. Groups: `who` a process, `pid`, `where` a device."""

    name: str
    literal: str
    pattern: re.Pattern[str]
    severe: bool


def _s(name: str, literal: str, pattern: str, severe: bool) -> Signature:
    return Signature(name, literal, re.compile(pattern), severe)


LOCKUPS: tuple[Signature, ...] = (
    _s("hard lockup", "hard LOCKUP", r"hard LOCKUP on cpu (?P<where>\d+)", True),
    _s("soft lockup", "soft lockup", r"soft lockup - (?P<where>CPU#\d+) stuck for \d+s", True),
    _s("kernel oops", "BUG: ", r"\bBUG: (?:unable to handle|kernel NULL pointer)", True),
    _s("kernel oops", "Oops: ", r"\bOops: [0-9a-f]{4}\b", True),
    _s("kernel bug", "kernel BUG at ", r"\bkernel BUG at \S+", True),
    _s("RCU stall", "detected", r"\brcu_\w+ (?:self-)?detected (?:expedited )?stalls?\b", False),
)
HUNG_TASK = _s(
    "hung task",
    "blocked for more than",
    r"task (?P<who>.{1,32}?):(?P<pid>\d+) blocked for more than (?P<seconds>\d+) seconds",
    False,
)

OOM_KILL = _s(
    "OOM kill",
    "illed process ",
    r"[Kk]illed process (?P<pid>\d+)[^(]{0,40}\((?P<who>[^)]{1,32})\)",
    True,
)

HARDWARE: tuple[Signature, ...] = (
    _s("machine check exception", "achine ", r"\bMachine Check Exception\b|\bFatal machine check\b", True),
    _s(
        "uncorrected hardware error",
        "[Hardware Error]",
        r"\[Hardware Error\].*\b(?:[Uu]ncorrected|fatal|recoverable)\b",
        True,
    ),
    _s("uncorrected memory error", "EDAC ", r"\bEDAC (?P<where>[\w#]+): +[1-9]\d* UE\b", True),
    _s("memory failure", "Memory failure: ", r"\bMemory failure: 0x[0-9a-f]+", True),
    _s("corrected memory error", "EDAC ", r"\bEDAC (?P<where>[\w#]+): +[1-9]\d* CE\b", False),
    _s(
        "corrected hardware error",
        "[Hardware Error]",
        r"\[Hardware Error\].*\b(?:[Cc]orrected\b|Deferred error\b|Machine check events\b|Machine Check: )",
        False,
    ),
    _s(
        "processor throttled by temperature",
        "temperature above threshold",
        r"(?:[Cc]ore|[Pp]ackage) temperature above threshold",
        False,
    ),
)
"""In order: of a line, the first that matches counts."""

CRASH = _s(
    "crash in a library",
    " in lib",
    r"(?:^|[ :])(?P<who>[\w.+@/-]{1,32})\[(?P<pid>\d+)\]:? "
    r"(?:segfault at|general protection|trap invalid opcode).* in (?P<where>lib[\w.+-]+)\[",
    False,
)
CRASH_LIBRARIES = (
    "libnccl",
    "libcuda",
    "libnvidia",
    "libtorch",
    "libc10",
    "libcudnn",
    "libcublas",
    "libibverbs",
    "libmlx5",
    "libfabric",
)

NFS_SILENT = _s(
    "NFS server",
    "not responding",
    r"\bnfs: server (?P<where>\S+) not responding, (?P<how>still trying|timed out)",
    False,
)
NFS_BACK = _s("NFS server", " OK", r"\bnfs: server (?P<where>\S+) OK\b", False)
NETWORK_FS: tuple[Signature, ...] = (
    _s(
        "Lustre target lost",
        "was lost",
        r"\bLustre(?:Error)?: .*\bConnection to (?P<where>\S+) .*was lost",
        False,
    ),
    _s("Lustre client evicted", "evicted", r"\bLustreError: .*\bevicted\b", False),
    _s("CIFS server silent", "has not responded", r"\bCIFS: .*?(?P<where>\S+) has not responded in", False),
    _s(
        "Ceph server lost",
        "ceph: ",
        r"\b(?:lib)?ceph: (?P<where>mds\d+|osd\d+|mon\d+) .*\b(?:hung|down)\b",
        False,
    ),
    _s("NFS state lost", "NFS: ", r"\bNFS: .*\b(?:state recovery failed|lost \d+ locks)", False),
)

DISK: tuple[Signature, ...] = (
    _s(
        "file system turned read-only",
        "emounting filesystem read-only",
        r"(?:\((?P<where>[\w!-]+)\).*)?[Rr]emounting filesystem read-only",
        True,
    ),
    _s(
        "file system shut down",
        "XFS (",
        r"\bXFS \((?P<where>[^)]+)\): .*"
        r"(?:[Ss]hutting down|[Ss]hut down|[Cc]orruption (?:detected|of)|log I/O error)",
        True,
    ),
    _s("file system error", "-fs error", r"\bEXT[234]-fs error \(device (?P<where>[^)]+)\)", True),
    _s("file system error", "BTRFS", r"\bBTRFS:? (?:error|critical) \(device (?P<where>[^)]+)\)", True),
    _s("disk failed in its array", "Disk failure on", r"\bDisk failure on (?P<where>\w+), disabling", True),
    _s("medium error", "medium error", r"\bcritical medium error, dev (?P<where>\w+)", True),
    _s("I/O error", "I/O error, dev", r"\bI/O error, dev (?P<where>\w+)", True),
    _s("I/O error", "Buffer I/O error", r"\bBuffer I/O error on dev(?:ice)? (?P<where>[\w-]+)", True),
    _s(
        "NVMe controller lost",
        "nvme ",
        r"\bnvme (?P<where>nvme\d+): .*"
        r"(?:controller is down|Device not ready|Removing after probe failure|[Dd]isabling device)",
        True,
    ),
    _s("NVMe timeout", "nvme ", r"\bnvme (?P<where>nvme\d+): I/O (?:tag )?\d+.* timeout", False),
)
"""In order: of a line, the first that matches counts."""
DISK_IGNORED = ("fd", "sr", "loop", "ram", "zram")
"""Floppy and optical drives of virtual machines, and image files, report errors that concern no training."""


@dataclass(frozen=True, slots=True)
class Match:
    """A line that carries a signature, with its named groups ("" where it has none)."""

    signature: Signature
    line: str
    who: str = ""
    where: str = ""
    pid: str = ""
    seconds: float | None = None
    """Since boot."""


def match(line: str, signatures: tuple[Signature, ...]) -> Match | None:
    """The first signature that the line carries."""
    for signature in signatures:
        if signature.literal in line and (found := signature.pattern.search(line)):
            groups = found.groupdict()
            who, where, pid = ((groups.get(name) or "") for name in ("who", "where", "pid"))
            return Match(signature, line.strip(), who, where, pid)
    return None


def matches(
    lines: tuple[str, ...], signatures: tuple[Signature, ...], seconds: tuple[float | None, ...] = ()
) -> tuple[Match, ...]:
    """Every line that carries one of the signatures, in the log's order; `seconds` are the lines' times."""
    found = ((i, match(line, signatures)) for i, line in enumerate(lines))
    return tuple(replace(m, seconds=seconds[i]) if i < len(seconds) else m for i, m in found if m is not None)
