"""What the growth of a hardware counter during a probe means, by the counter's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

CHECKED_ON = "2026-12"
SOURCE = "NVML field values of nvidia-ml-py 13; Linux sysfs-class-infiniband and vendors' hw_counters"


class Growth(Enum):
    """What any growth says."""

    BROKEN = "a link failed or an error was not corrected"
    ERRORS = "bits were damaged and sent again"
    CONGESTION = "senders had to wait"
    HEAT = "clocks were lowered"
    TRAFFIC = "bytes"


@dataclass(frozen=True, slots=True)
class Counter:
    """A family of counters. `plain` is its name in words."""

    pattern: str
    growth: Growth
    plain: str


COUNTERS: tuple[Counter, ...] = (
    Counter(r"nvlink/recovery_failed", Growth.BROKEN, "failed NVLink recoveries"),
    Counter(r"nvlink/(recovery|recovery_ok|recovery_all)", Growth.ERRORS, "NVLink recoveries"),
    Counter(r"nvlink/(crc_flit|crc_data)", Growth.ERRORS, "NVLink CRC errors"),
    Counter(r"nvlink/(replay|discards)", Growth.ERRORS, "NVLink replays"),
    Counter(r"nvlink/(symbol_errors|effective_errors)", Growth.ERRORS, "NVLink symbol errors"),
    Counter(r"pcie/fatal", Growth.BROKEN, "fatal PCIe errors"),
    Counter(r"pcie/non_fatal", Growth.BROKEN, "non-fatal uncorrectable PCIe errors"),
    Counter(r"pcie/(replay|replay_rollover|correctable|nak_rx|nak_tx|lcrc)", Growth.ERRORS, "PCIe replays"),
    Counter(r"clocks/(thermal|sw_thermal|hw_thermal)_ns", Growth.HEAT, "time with clocks lowered by heat"),
    Counter(r"clocks/power_brake_ns", Growth.HEAT, "time with clocks lowered by the power brake"),
    Counter(r"ib/[^/]+/link_downed", Growth.BROKEN, "times that the link went down"),
    Counter(
        r"ib/[^/]+/(link_error_recovery|symbol_error|port_rcv_errors|local_link_integrity_errors)",
        Growth.ERRORS,
        "link errors",
    ),
    Counter(
        r"ib/[^/]+/(out_of_sequence|packet_seq_err|local_ack_timeout_err|rnr_nak_retry_err|roce_adp_retrans)",
        Growth.ERRORS,
        "lost or repeated packets",
    ),
    Counter(
        r"ib/[^/]+/(port_xmit_wait|np_cnp_sent|rp_cnp_handled|np_ecn_marked_roce_packets)",
        Growth.CONGESTION,
        "congestion",
    ),
    Counter(r"ib/[^/]+/port_xmit_data", Growth.TRAFFIC, "words of four bytes sent"),
    Counter(r"ib/[^/]+/port_rcv_data", Growth.TRAFFIC, "words of four bytes received"),
    Counter(r"net/[^/]+/(rx|tx)_bytes", Growth.TRAFFIC, "bytes"),
    Counter(r"net/[^/]+/(rx|tx)_(errors|dropped)", Growth.ERRORS, "damaged or dropped packets"),
)
"""First match wins. Power capping (`clocks/power_cap_ns`) is normal under full load and not listed."""

NVML_FIELDS: Mapping[str, int] = {
    "nvlink/crc_flit": 38,
    "nvlink/crc_data": 45,
    "nvlink/replay": 52,
    "nvlink/recovery": 59,
    "nvlink/discards": 212,
    "nvlink/recovery_ok": 213,
    "nvlink/recovery_failed": 214,
    "nvlink/effective_errors": 219,
    "nvlink/symbol_errors": 221,
    "pcie/replay": 94,
    "pcie/replay_rollover": 95,
    "pcie/correctable": 173,
    "pcie/nak_rx": 174,
    "pcie/nak_tx": 177,
    "pcie/non_fatal": 179,
    "pcie/fatal": 180,
    "pcie/lcrc": 182,
    "clocks/power_cap_ns": 74,
    "clocks/thermal_ns": 75,
    "clocks/sw_thermal_ns": 269,
    "clocks/hw_thermal_ns": 270,
    "clocks/power_brake_ns": 271,
}
"""Counter -> NVML field id to ask for it."""

IB_COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_xmit_wait",
    "port_rcv_errors",
    "port_xmit_data",
    "port_rcv_data",
)
IB_HW_COUNTERS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "np_cnp_sent",
    "rp_cnp_handled",
    "roce_adp_retrans",
)
"""Files under /sys/class/infiniband/*/ports/*/counters and …/hw_counters."""


def counter(name: str) -> Counter | None:
    """The family of a counter; None for one whose growth says nothing."""
    return next((c for c in COUNTERS if re.fullmatch(c.pattern, name)), None)
