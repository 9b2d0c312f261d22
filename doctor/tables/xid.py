"""NVIDIA's Xid numbers: what each one means, whose fault it is, and what to do.

The sorting into kinds follows the vendor's resolution buckets: a bucket that asks for a reset, a reboot
or support is hardware; one that asks to restart the program is the application's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from fsdp_doctor.findings import Owner, Row

CHECKED_ON = "2026-11"
SOURCE = "docs.nvidia.com/deploy/xid-errors (catalogue, numbers 1 to 172)"
NEWEST = 172
"""Numbers above it are newer than this table."""


class Kind(str, Enum):
    """Who or what an Xid points at."""

    HARDWARE = "hardware"
    APPLICATION = "application"
    INFORMATION = "information"


@dataclass(frozen=True, slots=True)
class XidMeaning:
    """One number. `fix` begins with a verb."""

    number: int
    what: str
    kind: Kind
    fix: str
    owner: Owner = Owner.ADMIN
    row: Row = Row.NCCL


RESET = "Drain the node and reset the GPU (or reboot), then run `dcgmi diag -r 3` before it is used again"
REBOOT = "Reboot the node; if it comes back, have the GPU, its riser and its power cables checked or replaced"
LINK = "Reset all GPUs of the node (on an HGX board with the fabric manager); if it returns, replace the part"
SUPPORT = "Reset the GPU, and report it to the vendor with nvidia-bug-report.sh if it returns"
DEBUG = "Look for the fault in the program: run it under compute-sanitizer, or with CUDA_LAUNCH_BLOCKING=1"
OTHER = "Look at the error before it in the log: this is the clean-up of a channel that had already failed"
RERUN = "Start the program again; if the same GPU repeats it with other programs, treat it as hardware"
WATCH = "Note it and watch the counter; nothing has to be done now"


def _hardware() -> Iterator[XidMeaning]:
    hw, replace = Kind.HARDWARE, Owner.HARDWARE
    yield XidMeaning(46, "GPU stopped processing", hw, RESET)
    yield XidMeaning(48, "uncorrectable (double-bit) ECC error", hw, RESET, row=Row.WRONG)
    yield XidMeaning(
        54, "auxiliary power is not connected", hw, "Connect the power cables", replace, Row.SLOW
    )
    yield XidMeaning(57, "memory link training failed", hw, SUPPORT, replace)
    yield XidMeaning(58, "GPU memory error", hw, SUPPORT, replace)
    yield XidMeaning(59, "internal micro-controller error", hw, SUPPORT)
    yield XidMeaning(61, "internal micro-controller breakpoint", hw, RESET)
    yield XidMeaning(62, "internal micro-controller halted", hw, RESET)
    yield XidMeaning(64, "a row could not be remapped (or a page not retired)", hw, RESET, replace)
    yield XidMeaning(74, "NVLink error", hw, LINK, replace)
    yield XidMeaning(79, "GPU has fallen off the bus", hw, REBOOT, replace)
    yield XidMeaning(81, "display subsystem error", hw, SUPPORT)
    yield XidMeaning(90, "level-2 cache error", hw, SUPPORT)
    yield XidMeaning(94, "contained uncorrectable memory error", hw, RESET, row=Row.NCCL)
    yield XidMeaning(95, "uncontained uncorrectable memory error", hw, RESET, row=Row.WRONG)
    yield XidMeaning(109, "context switch timeout", hw, RESET)
    yield XidMeaning(110, "security fault", hw, RESET)
    yield XidMeaning(119, "GSP firmware did not answer a call", hw, RESET)
    yield XidMeaning(120, "GSP firmware error", hw, RESET)
    for number, what in ((122, "reading"), (123, "writing"), (124, "erasing")):
        yield XidMeaning(number, f"{what} the board's flash failed", hw, SUPPORT, replace)
    yield XidMeaning(125, "inforom file system error", hw, SUPPORT, replace)
    yield XidMeaning(136, "link training failed", hw, LINK, replace)
    yield XidMeaning(140, "unrecovered ECC error", hw, RESET, row=Row.WRONG)
    yield XidMeaning(143, "GPU initialisation error", hw, RESET, row=Row.START)
    for number, unit in (
        (144, "SAW"),
        (145, "RLW"),
        (146, "TLW"),
        (147, "TREX"),
        (148, "NVLPW_CTRL"),
        (149, "NETIR"),
        (150, "MSE"),
    ):
        yield XidMeaning(number, f"NVLink 5 error in the {unit} unit", hw, LINK, replace)
    yield XidMeaning(155, "NVLink error defined by software", hw, LINK)
    yield XidMeaning(156, "a GPU resource waits for a reset to be retired", hw, RESET)
    yield XidMeaning(157, "a GPU resource could not be retired", hw, SUPPORT, replace)
    yield XidMeaning(158, "fatal timeout inside the GPU", hw, RESET)
    yield XidMeaning(161, "a memory channel could not be retired", hw, SUPPORT, replace)
    yield XidMeaning(165, "power smoothing circuit is at the end of its life", hw, SUPPORT, replace, Row.SLOW)
    yield XidMeaning(167, "fatal PCIe timeout", hw, REBOOT, replace)
    yield XidMeaning(168, "GPU memory capacity is reduced", hw, SUPPORT, replace, Row.OOM)
    yield XidMeaning(169, "security micro-controller halted", hw, RESET)
    yield XidMeaning(171, "uncorrectable DRAM error", hw, RESET, row=Row.WRONG)
    yield XidMeaning(172, "uncorrectable SRAM error", hw, RESET, row=Row.WRONG)


def _application() -> Iterator[XidMeaning]:
    app, you = Kind.APPLICATION, Owner.YOU
    yield XidMeaning(8, "GPU stopped processing a channel", app, RERUN, you)
    yield XidMeaning(11, "invalid or corrupted push buffer", app, DEBUG, you)
    yield XidMeaning(13, "graphics engine exception (illegal address or instruction)", app, DEBUG, you)
    yield XidMeaning(25, "invalid push buffer", app, DEBUG, you)
    yield XidMeaning(31, "GPU memory page fault (illegal address)", app, DEBUG, you)
    yield XidMeaning(32, "invalid or corrupted push buffer (DMA)", app, DEBUG, you)
    for number in (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)):
        yield XidMeaning(number, "copy engine exception", app, RERUN, you)
    yield XidMeaning(43, "GPU stopped processing after a fault of the program", app, DEBUG, you)
    yield XidMeaning(44, "graphics engine fault during a context switch", app, RERUN, you)
    yield XidMeaning(45, "channel removed after an earlier error, or the program was killed", app, OTHER, you)
    yield XidMeaning(60, "video processor exception", app, RERUN, you)
    yield XidMeaning(66, "illegal access by the driver", app, SUPPORT)
    yield XidMeaning(67, "illegal access by the driver", app, SUPPORT)
    yield XidMeaning(69, "graphics engine class error", app, DEBUG, you)
    yield XidMeaning(80, "corrupted data sent to the GPU", app, RERUN, you)
    for number in (68, 83, 84, 88, 89, 96, 97, 98):
        yield XidMeaning(number, "video decoder exception", app, RERUN, you)
    for number in (82, *range(99, 106)):
        yield XidMeaning(number, "JPEG engine exception", app, RERUN, you)
    for number in (65, 73, 142):
        yield XidMeaning(number, "video encoder exception", app, RERUN, you)
    for number in (86, 139):
        yield XidMeaning(number, "optical flow engine exception", app, RERUN, you)
    yield XidMeaning(138, "deep learning accelerator exception", app, RERUN, you)
    yield XidMeaning(141, "CUDA fast path error", app, RERUN, you)
    yield XidMeaning(151, "key rotation error (confidential computing)", app, "Restart the virtual machine")
    yield XidMeaning(152, "deep learning accelerator memory fault", app, RERUN, you)
    yield XidMeaning(153, "deep learning accelerator timeout", app, RERUN, you)
    yield XidMeaning(159, "coherent bus error from unified memory", app, DEBUG, you)
    yield XidMeaning(166, "NVLink traffic before encryption was set up", app, RERUN)
    yield XidMeaning(137, "NVLink privilege error: a peer accessed unmapped memory", app, DEBUG, you)
    yield XidMeaning(170, "NVLink interrupt in confidential computing mode", app, RERUN)


def _information() -> Iterator[XidMeaning]:
    info = Kind.INFORMATION
    yield XidMeaning(14, "channel marker, no error", info, WATCH)
    yield XidMeaning(37, "driver firmware error that was handled", info, WATCH)
    yield XidMeaning(38, "driver firmware watchdog", info, WATCH)
    yield XidMeaning(63, "a row was remapped or a page retired", info, "Reset the GPU at the next occasion")
    yield XidMeaning(
        78, "vGPU could not start", info, "Match the guest's driver to the host's", row=Row.START
    )
    yield XidMeaning(92, "high rate of corrected ECC errors", info, WATCH)
    yield XidMeaning(93, "inforom has been written more often than provisioned", info, WATCH)
    yield XidMeaning(106, "test message of the management bus", info, WATCH)
    yield XidMeaning(107, "test message of the management bus", info, WATCH)
    yield XidMeaning(108, "NVLink remote translation error", info, WATCH)
    yield XidMeaning(121, "corrected error of the chip-to-chip link to the CPU", info, WATCH)
    yield XidMeaning(154, "the driver changed the recovery action it asks for", info, "Do what it asks for")
    yield XidMeaning(160, "a memory channel was retired", info, WATCH)
    yield XidMeaning(162, "power smoothing is active again", info, WATCH)
    yield XidMeaning(163, "power smoothing is inactive", info, WATCH)
    yield XidMeaning(164, "power smoothing circuit is near the end of its life", info, WATCH)


XIDS: Mapping[int, XidMeaning] = {x.number: x for x in (*_hardware(), *_application(), *_information())}

FALLEN_OFF = 79
ROW_REMAPPED = 63
RECOVERY_ACTION_CHANGED = 154
WORTH_A_WARNING = frozenset((92, 121, 160, 164))
"""Handled by the driver, but signs of wear or of a weak link."""

SXID_INFORMATION = frozenset(
    (
        *(10005, 11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 19049, 19055, 19057, 19059),
        *(19062, 19065, 19068, 19071, 22013, 24001, 24002, 24003),
    )
)
"""NVSwitch numbers that the fabric manager user guide calls corrected or safe to ignore."""
