"""The kernel's messages, and the Xid and SXid reports of NVIDIA's driver among them."""

from __future__ import annotations

import re

from fsdp_doctor.facts.kernel_stamps import BOOT, messages
from fsdp_doctor.facts.source import Source
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.kernel_log import KernelLog, SXid, Xid

LINE_LIMIT = 200_000
"""Messages that are kept: the youngest."""
BOOT_SECONDS = 1.0
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{5,20})[^)]{0,40}\): (\d{1,4})(?:, ?|$)")
SXID = re.compile(
    r"(nvidia-nvswitch\d+)?:? ?SXid \((?:PCI:)?([0-9A-Fa-f:.]{5,20})[^)]{0,40}\): (\d{1,6}),? ?"
)
PROCESS_ID = re.compile(r"pid=(?:'?<[^>]{0,40}>'?|(\d{1,10}))(?:, ?|$)")
PROCESS_NAME = re.compile(r"name=(?:'?<([^>]{0,40})>'?|([^,]{0,256}))(?:, ?|$)")
SEVERITY = re.compile(r"(?i)^(non-fatal|fatal)\b")
DETAIL = re.compile(r"^(?:Severity \d|Data \{|Engine instance)")


def kernel_log(source: Source) -> Known[KernelLog] | Unknown:
    """Messages without their stamps; unknown where the log may not be read."""
    answer = source.kernel_log()
    if isinstance(answer, Unknown):
        return answer
    found = this_boot(list(messages(answer.value)))
    complete = bool(found) and _from_boot(found[0]) and len(found) <= LINE_LIMIT
    found = found[-LINE_LIMIT:]
    return Known(
        KernelLog(
            lines=tuple(text for text, _ in found),
            xids=tuple(x for text, seconds in found if (x := xid(text, seconds)) is not None),
            sxids=tuple(s for text, _ in found if (s := sxid(text)) is not None),
            truncated=not complete,
            seconds=tuple(seconds for _, seconds in found),
        ),
        answer.source,
    )


def this_boot(found: list[tuple[str, float | None]]) -> list[tuple[str, float | None]]:
    """Messages from the last start of the kernel on: a saved journal may hold several boots."""
    last = max((i for i, (text, _) in enumerate(found) if text.startswith(BOOT)), default=0)
    return found[last:]


def _from_boot(first: tuple[str, float | None]) -> bool:
    """Whether the log still begins where the kernel started."""
    return first[0].startswith(BOOT) or (first[1] is not None and first[1] < BOOT_SECONDS)


def xid(line: str, seconds: float | None = None) -> Xid | None:
    """An Xid message of any driver: with and without a process id, a name or MIG's instance."""
    match = XID.search(line)
    if match is None:
        return None
    rest = line[match.end() :]
    pid_match = PROCESS_ID.match(rest)
    pid = pid_match.group(1) if pid_match else None
    rest = rest[pid_match.end() :] if pid_match else rest
    name_match = PROCESS_NAME.match(rest)
    name = name_match.group(2) if name_match else None
    rest = rest[name_match.end() :] if name_match else rest
    return Xid(
        number=int(match.group(2)),
        bdf=pci_address(match.group(1)),
        text=rest.strip(),
        process=name.strip("' ") or None if name else None,
        pid=int(pid) if pid else None,
        seconds=seconds,
    )


def sxid(line: str) -> SXid | None:
    """An SXid message; the lines of detail that follow one are none of their own."""
    match = SXID.search(line)
    if match is None:
        return None
    rest = line[match.end() :].strip()
    if DETAIL.match(rest):
        return None
    severity = SEVERITY.match(rest)
    return SXid(
        number=int(match.group(3)),
        switch=match.group(1) or pci_address(match.group(2)),
        fatal=bool(severity and severity.group(1).lower() == "fatal"),
        text=rest,
    )


def pci_address(word: str) -> str:
    """An address as sysfs writes it: "0000:1B:00", "00000000:1B:00.0" and "1b:00.0" are the same."""
    place, dot, function = word.lower().partition(".")
    parts = [p for p in place.split(":") if p]
    if not 2 <= len(parts) <= 3:
        return word
    domain = parts[0].lstrip("0").rjust(4, "0") if len(parts) == 3 else "0000"
    return f"{domain}:{parts[-2].rjust(2, '0')}:{parts[-1].rjust(2, '0')}.{function if dot else '0'}"
