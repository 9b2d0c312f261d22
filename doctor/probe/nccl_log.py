"""What NCCL's INFO lines say of the way that bytes take: network, channels, NVLink SHARP, version."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fsdp_doctor.subjects.probe import Transports

VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
NETWORK = re.compile(r"Using network (\S+)")
CHANNEL = re.compile(
    r"Channel \d+(?:/\d+)? : \d+\[[^\]]*\] -> \d+\[[^\]]*\] (?:\[(?:send|receive)\] )?via (\S+)"
)
NVLS = re.compile(r"NVLS multicast support is (not )?available")
NVLS_USED = re.compile(r"\d+ nvls channels|Connected NVLS tree", re.IGNORECASE)
NO_NVLS = re.compile(r"\b0 nvls channels", re.IGNORECASE)
KEPT = 8
LONGEST = 240


def transports(texts: Iterable[str]) -> Transports | None:
    """The conclusions from the logs of several ranks; None where no line says anything."""
    network, version, nvls = None, None, None
    channels: dict[str, None] = {}
    lines: dict[str, None] = {}
    for line in (x for t in texts for x in t.splitlines()):
        if found := VERSION.search(line):
            version = version or found[1]
        elif found := NETWORK.search(line):
            network = network or found[1]
            lines.setdefault(_short(line))
        elif found := CHANNEL.search(line):
            if found[1] not in channels:
                lines.setdefault(_short(line))
            channels.setdefault(found[1])
        elif found := NVLS.search(line):
            nvls = (nvls is not False) and not found[1]
        elif NO_NVLS.search(line):
            nvls = False
        elif NVLS_USED.search(line):
            nvls = True if nvls is None else nvls
    if not (network or version or channels):
        return None
    return Transports(network, tuple(channels), nvls, version, tuple(lines)[:KEPT])


def _short(line: str) -> str:
    _, mark, said = line.partition("NCCL INFO ")
    return (said if mark else line).strip()[:LONGEST]
