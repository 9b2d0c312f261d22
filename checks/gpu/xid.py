"""Xid messages: the driver's reports of GPU errors in the kernel log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fsdp_doctor.engine.devices import RESTRICTION_USES, address, at_address, restriction
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import (
    Confidence,
    Evidence,
    Finding,
    Fix,
    Owner,
    Risk,
    Row,
    Status,
    Subject,
    fail,
    info,
    ok,
    warn,
)
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.subjects.kernel_log import KernelLog, Xid
from fsdp_doctor.tables.xid import (
    CHECKED_ON,
    FALLEN_OFF,
    NEWEST,
    RECOVERY_ACTION_CHANGED,
    ROW_REMAPPED,
    WORTH_A_WARNING,
    XIDS,
    Kind,
)

NO_ACTION = re.compile(r"to 0x0\b|\(None\)[^(]*\Z")
USES: tuple[type[object], ...] = (Gpus, *RESTRICTION_USES)
SHOWN = 4


def _kind(number: int) -> Kind | None:
    meaning = XIDS.get(number)
    return None if meaning is None else meaning.kind


def _by_number(xids: Sequence[Xid]) -> dict[int, list[Xid]]:
    groups: dict[int, list[Xid]] = {}
    for xid in xids:
        groups.setdefault(xid.number, []).append(xid)
    return groups


def _gpu(gpus: Gpus | None, xid: Xid) -> Gpu | None:
    return at_address(gpus.devices, xid.bdf) if gpus is not None else None


def _where(gpus: Gpus | None, xids: Sequence[Xid]) -> tuple[str, Subject]:
    """The GPUs of these messages by index where NVML knows the address, in words and as a subject."""
    addresses = list(dict.fromkeys(x.bdf for x in xids))
    indices = sorted({g.index for x in xids if (g := _gpu(gpus, x)) is not None})
    words = ", ".join(f"{a} (GPU {g.index})" if (g := _at(gpus, a)) else a for a in addresses[:SHOWN])
    words += f" and {len(addresses) - SHOWN} more" if len(addresses) > SHOWN else ""
    gpu = indices[0] if len(indices) == 1 else tuple(indices) or None
    return words, Subject(gpu=gpu, device=addresses[0] if len(addresses) == 1 else None)


def _at(gpus: Gpus | None, bdf: str) -> Gpu | None:
    return at_address(gpus.devices, bdf) if gpus is not None else None


def _elsewhere(facts: Facts, xids: Sequence[Xid]) -> bool:
    """Whether the messages are about GPUs that this process is not given (a container's or job's share)."""
    gpus = facts.find(Gpus)
    if gpus is None or restriction(facts) is None or any(g.bdf is None for g in gpus.devices):
        return False
    return all(address(x.bdf) is not None and _gpu(gpus, x) is None for x in xids)


def _finding(facts: Facts, number: int, xids: Sequence[Xid]) -> Finding:
    """The finding of one number, as a failure; callers lower it."""
    meaning, gpus = XIDS.get(number), facts.find(Gpus)
    words, subject = _where(gpus, xids)
    times = f"{len(xids)} times" if len(xids) > 1 else "once"
    what = meaning.what if meaning is not None else f"not in the table of {CHECKED_ON}"
    process = next((x.process for x in reversed(xids) if x.process), None)
    by = f", last by process {process}" if process else ""
    return fail(
        f"Xid {number} ({what}) {times} for {words}{by}",
        f"no Xid {number} in the kernel log",
        subject=subject,
        row=meaning.row if meaning is not None else None,
        fix=Fix(
            meaning.fix if meaning is not None else "Look the number up in NVIDIA's Xid catalogue",
            "sudo dmesg -T | grep -i xid",
            Risk.NEEDS_ROOT,
            meaning.owner if meaning is not None else Owner.ADMIN,
        ),
        evidence=tuple(Evidence("kernel log", x.text) for x in xids[-SHOWN:]),
    )


def _state_says(gpus: Gpus | None, number: int, xids: Sequence[Xid]) -> str | None:
    """The check of the present state that already reports what these messages announced."""
    if number == FALLEN_OFF and gpus is not None and all(_gpu(gpus, x) is None for x in xids):
        return "the GPU is missing now"
    return None


@check("GPU018", Row.NCCL, needs=(KernelLog,), uses=USES, tags=("gpu", "hardware", "kernel-log"))
def hardware_xid(facts: Facts, options: Options) -> Iterator[Finding]:
    """The kernel log has an Xid that points at the hardware.

    What: searches the kernel log since boot for Xid messages of the kinds that NVIDIA answers with a
        reset, a reboot or service: bus, memory, NVLink, GSP firmware, micro-controllers.
    Why: the rank on that GPU dies or hangs; all others then wait in a collective and report an NCCL
        timeout that names the wrong rank.
    Fix: each number has its own: mostly drain, reset, test with dcgmi, and replace the part if it returns.
    Sources: NVIDIA Xid errors catalogue; gpud; Azure HPC and imbue health checks.
    """
    gpus = facts.find(Gpus)
    found = False
    for number, xids in sorted(_by_number(facts[KernelLog].xids).items()):
        if _kind(number) is not Kind.HARDWARE:
            continue
        found = True
        finding = _finding(facts, number, xids)
        said = _state_says(gpus, number, xids)
        if _elsewhere(facts, xids) and number != FALLEN_OFF:
            yield info(f"{finding.found}: a GPU that this process is not given", subject=finding.subject)
        elif said is not None:
            yield info(f"{finding.found}: {said}", subject=finding.subject)
        else:
            yield finding
    if not found:
        yield ok("no hardware Xid in the kernel log")


@check("GPU019", Row.NCCL, needs=(KernelLog,), uses=USES, tags=("gpu", "kernel-log"))
def other_xid(facts: Facts, options: Options) -> Iterator[Finding]:
    """The kernel log has an Xid of a program, or one that needs watching.

    What: searches the kernel log for Xid messages that point at a program (illegal addresses, exceptions,
        clean-up of a killed process), for those that only inform, and for numbers newer than the table.
    Why: an earlier run on this machine crashed on the GPU: the same program will crash again, and its
        peers will report an NCCL timeout. It says little about the hardware.
    Fix: find the illegal access in the program (compute-sanitizer, CUDA_LAUNCH_BLOCKING=1).
    Sources: NVIDIA Xid errors catalogue; CUDA compute-sanitizer documentation.
    """
    gpus = facts.find(Gpus)
    found = False
    for number, xids in sorted(_by_number(facts[KernelLog].xids).items()):
        kind = _kind(number)
        if kind is Kind.HARDWARE:
            continue
        found = True
        finding = _finding(facts, number, xids)
        if _elsewhere(facts, xids):
            yield info(f"{finding.found}: a GPU that this process is not given", subject=finding.subject)
        elif number == RECOVERY_ACTION_CHANGED:
            yield from _recovery_changed(gpus, xids, finding)
        elif kind is Kind.INFORMATION and number not in (ROW_REMAPPED, *WORTH_A_WARNING):
            yield info(finding.found, subject=finding.subject, fix=finding.fix)
        elif number == ROW_REMAPPED and _remap_known(gpus, xids):
            yield info(
                f"{finding.found}: the state of the row remapper is judged by itself", subject=finding.subject
            )
        elif kind is None and number > NEWEST:
            yield info(f"{finding.found}: newer than this table", subject=finding.subject, fix=finding.fix)
        else:
            yield warn(
                finding.found,
                finding.expected,
                subject=finding.subject,
                fix=finding.fix,
                row=finding.row,
                confidence=Confidence.MEDIUM,
                evidence=finding.evidence,
            )
    if not found:
        yield ok("no other Xid in the kernel log")


def _remap_known(gpus: Gpus | None, xids: Sequence[Xid]) -> bool:
    """Whether NVML's counters hold what was announced: none at all means that a reset is still to come."""
    return all(_counts_a_row(_gpu(gpus, x)) for x in xids)


def _counts_a_row(gpu: Gpu | None) -> bool:
    rows = gpu.remapped if gpu is not None else None
    return rows is not None and bool(rows.correctable or rows.uncorrectable or rows.pending or rows.failure)


def _recovery_changed(gpus: Gpus | None, xids: Sequence[Xid], finding: Finding) -> Iterator[Finding]:
    """Xid 154 counts where the last message asks for an action that NVML does not report by itself."""
    known = [_gpu(gpus, x) for x in xids]
    if NO_ACTION.search(xids[-1].text) or any(g is not None and g.recovery_action for g in known):
        yield info(finding.found, subject=finding.subject)
    elif all(g is not None and g.recovery_action == 0 for g in known):
        found = f"{finding.found}; NVML asks for none now"
        yield replace(finding, status=Status.WARN, found=found, confidence=Confidence.MEDIUM)
    else:
        yield replace(finding, confidence=Confidence.MEDIUM)
