"""SXid messages: the NVSwitches' reports of errors in the kernel log."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, Subject, fail, info, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.kernel_log import KernelLog, SXid
from fsdp_doctor.tables.xid import SXID_INFORMATION

SHOWN = 4
FIX = Fix(
    "Drain the node, restart the fabric manager and reset all GPUs together, or reboot; if it returns, have "
    "the board serviced",
    "sudo systemctl restart nvidia-fabricmanager && sudo nvidia-smi --gpu-reset",
    Risk.DISRUPTIVE,
    Owner.HARDWARE,
)


def _words(sxids: list[SXid]) -> str:
    numbers = sorted({s.number for s in sxids})
    switches = sorted({s.switch for s in sxids})
    return f"SXid {', '.join(map(str, numbers))} on {', '.join(switches[:SHOWN])}, {len(sxids)} messages"


@check("GPU020", Row.NCCL, needs=(KernelLog,), tags=("gpu", "nvlink", "kernel-log"))
def sxid(facts: Facts, options: Options) -> Iterator[Finding]:
    """The kernel log has an NVSwitch error.

    What: searches the kernel log for SXid messages. Fatal ones fail; of the others, those that the switch
        corrected are only mentioned.
    Why: a fatal error stalls the NVLink traffic of the GPUs behind the switch: collectives hang until the
        NCCL timeout, on ranks whose GPUs are healthy.
    Fix: restart the fabric manager and reset all GPUs of the board, or reboot.
    Sources: NVIDIA fabric manager user guide (NVSwitch SXid errors); gpud; imbue health checks.
    """
    messages = facts[KernelLog].sxids
    fatal = [s for s in messages if s.fatal]
    harmless = [s for s in messages if not s.fatal and s.number in SXID_INFORMATION]
    others = [s for s in messages if not s.fatal and s.number not in SXID_INFORMATION]
    if fatal:
        yield fail(
            f"fatal NVSwitch error: {_words(fatal)}",
            "no fatal SXid in the kernel log",
            subject=Subject(device=fatal[-1].switch),
            fix=FIX,
            evidence=tuple(Evidence("kernel log", s.text) for s in fatal[-SHOWN:]),
        )
    if others:
        yield warn(
            f"non-fatal NVSwitch error: {_words(others)}",
            "no SXid in the kernel log",
            subject=Subject(device=others[-1].switch),
            fix=Fix(
                "Watch it: have the board checked if the messages go on during training", owner=Owner.ADMIN
            ),
            evidence=tuple(Evidence("kernel log", s.text) for s in others[-SHOWN:]),
        )
    if harmless:
        yield info(
            f"corrected by the switch: {_words(harmless)}", subject=Subject(device=harmless[-1].switch)
        )
    if not messages:
        yield ok("no SXid in the kernel log")
