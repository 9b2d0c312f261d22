"""Hardware counters of this machine around a probe: adapters from sysfs, GPUs from NVML."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fsdp_doctor import process
from fsdp_doctor.facts.live import binding
from fsdp_doctor.facts.source import Source, number
from fsdp_doctor.tables.probe_counters import IB_COUNTERS, IB_HW_COUNTERS

INFINIBAND = "/sys/class/infiniband"
NETWORK = "/sys/class/net"
NET_COUNTERS = ("rx_bytes", "tx_bytes", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
CHILD = Path(__file__).absolute().parent / "counters_child.py"
SECONDS = 8.0
"""Patience with NVML."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Counter -> value, named as in `fsdp_doctor.tables.probe_counters`."""

    host: Mapping[str, int] = field(default_factory=dict)
    """Of adapters and interfaces."""
    gpus: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By GPU UUID."""


def read(source: Source, *, gpus: bool) -> Counters:
    """All counters now; those that cannot be read are left out."""
    return Counters(adapters(source), _gpus() if gpus else {})


def adapters(source: Source) -> dict[str, int]:
    """Counters of RDMA ports and of interfaces with a device behind them."""
    found: dict[str, int] = {}
    for name in source.listdir(INFINIBAND):
        for port in source.listdir(f"{INFINIBAND}/{name}/ports"):
            for folder, counters in (("counters", IB_COUNTERS), ("hw_counters", IB_HW_COUNTERS)):
                for counter in counters:
                    value = number(source, f"{INFINIBAND}/{name}/ports/{port}/{folder}/{counter}")
                    if value is not None:
                        found[f"ib/{name}:{port}/{counter}"] = value
    for name in source.listdir(NETWORK):
        if name == "lo":
            continue
        for counter in NET_COUNTERS:
            value = number(source, f"{NETWORK}/{name}/statistics/{counter}")
            if value is not None:
                found[f"net/{name}/{counter}"] = value
    return found


def _gpus() -> Mapping[str, Mapping[str, int]]:
    outcome = process.run([sys.executable, "-I", str(CHILD), *binding()], SECONDS)
    return parse(outcome.stdout) if outcome.ok else {}


def parse(output: bytes) -> dict[str, dict[str, int]]:
    """What the child printed; anything that is not UUID -> counter -> number is left out."""
    try:
        told = json.loads(output)
    except ValueError:
        return {}
    if not isinstance(told, dict):
        return {}
    return {
        str(uuid): {str(k): v for k, v in values.items() if isinstance(v, int) and not isinstance(v, bool)}
        for uuid, values in told.items()
        if isinstance(values, dict)
    }
