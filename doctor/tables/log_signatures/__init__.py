"""Signatures of the lines that failed jobs print: what each is to the cause, and what to do.

LOG1xx communication, LOG2xx processes and devices, LOG3xx memory, LOG4xx speed, LOG5xx saving, LOG6xx
loading, LOG7xx the program and its numbers. LOG0xx are conclusions that no single line gives; see
`fsdp_doctor.tables.log_conclusions`.
"""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_doctor.tables.log_signatures.devices import DEVICES
from fsdp_doctor.tables.log_signatures.fabric import FABRIC
from fsdp_doctor.tables.log_signatures.groups import GROUPS
from fsdp_doctor.tables.log_signatures.launchers import LAUNCHERS
from fsdp_doctor.tables.log_signatures.loading import LOADING
from fsdp_doctor.tables.log_signatures.memory import MEMORY
from fsdp_doctor.tables.log_signatures.model import Kind, Scope, Signature
from fsdp_doctor.tables.log_signatures.peers import PEERS
from fsdp_doctor.tables.log_signatures.processes import PROCESSES
from fsdp_doctor.tables.log_signatures.program import PROGRAM
from fsdp_doctor.tables.log_signatures.rendezvous import RENDEZVOUS
from fsdp_doctor.tables.log_signatures.saving import SAVING
from fsdp_doctor.tables.log_signatures.sharding import SHARDING
from fsdp_doctor.tables.log_signatures.slow import SLOW
from fsdp_doctor.tables.log_signatures.starting import STARTING
from fsdp_doctor.tables.log_signatures.timeouts import TIMEOUTS
from fsdp_doctor.tables.log_signatures.wrapping import WRAPPING

__all__ = ["CHECKED_ON", "SIGNATURES", "Kind", "Scope", "Signature"]

CHECKED_ON = "2026-12-02"

SIGNATURES: Mapping[str, Signature] = {
    s.code: s
    for s in (
        *TIMEOUTS,
        *PEERS,
        *FABRIC,
        *RENDEZVOUS,
        *GROUPS,
        *LAUNCHERS,
        *STARTING,
        *PROCESSES,
        *DEVICES,
        *MEMORY,
        *SLOW,
        *SAVING,
        *LOADING,
        *SHARDING,
        *PROGRAM,
        *WRAPPING,
    )
}
"""Code -> signature."""
