"""InfiniBand, RoCE and EFA adapters, from sysfs."""

from __future__ import annotations

import re

from fsdp_doctor.facts.parse import counters, pci_parts
from fsdp_doctor.facts.pci import driver
from fsdp_doctor.facts.source import Source, number, text
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.rdma import Hca, HcaPort, Rdma

FOLDER = "/sys/class/infiniband"
VERBS = "/sys/class/infiniband_verbs"
HCA_LIMIT = 512
PORT_LIMIT = 64
GID_LIMIT = 1024


def rdma(source: Source) -> Known[Rdma] | Unknown:
    """All adapters; absent where the kernel shows none."""
    names = source.listdir(FOLDER)[:HCA_LIMIT]
    if not names:
        if source.exists("/sys/class") or source.exists("/sys/bus"):
            return Unknown("the machine has no InfiniBand or RoCE adapter", absent=True)
        return Unknown("sysfs could not be read", enable="mount /sys in the container")
    verbs = {text(source, f"{VERBS}/{n}/ibdev", 256): n for n in source.listdir(VERBS)[:HCA_LIMIT]}
    return Known(Rdma(tuple(hca(source, n, verbs.get(n)) for n in names)), FOLDER)


def hca(source: Source, name: str, verbs: str | None) -> Hca:
    """One adapter with its ports."""
    folder = f"{FOLDER}/{name}"
    device = source.realpath(folder).rpartition("/infiniband/")[0]
    ports = [int(n) for n in source.listdir(f"{folder}/ports") if re.fullmatch(r"[0-9]{1,3}", n)]
    parts = pci_parts(device)
    netdevs = source.listdir(f"{device}/net") if device else ()
    lone = netdevs[0] if len(netdevs) == 1 and len(ports) == 1 else None
    return Hca(
        name=name,
        ports=tuple(port(source, f"{folder}/ports/{n}", n, lone) for n in sorted(ports)[:PORT_LIMIT]),
        firmware=text(source, f"{folder}/fw_ver", 256) or None,
        hca_type=text(source, f"{folder}/hca_type", 256) or None,
        board_id=text(source, f"{folder}/board_id", 256) or None,
        pci=parts[-1] if parts else None,
        numa_node=number(source, f"{device}/numa_node") if device else None,
        driver=driver(source, device) if device else None,
        verbs=verbs,
    )


def port(source: Source, folder: str, index: int, netdev: str | None) -> HcaPort:
    """One port. `netdev` is the interface to name where the port's GIDs name none."""
    gids = [g for g in source.listdir(f"{folder}/gids") if re.fullmatch(r"[0-9]{1,4}", g)]
    used = [g for g in sorted(gids, key=int)[:GID_LIMIT] if _is_set(text(source, f"{folder}/gids/{g}", 64))]
    types = {int(g): t for g in used if (t := text(source, f"{folder}/gid_attrs/types/{g}", 64))}
    named = (text(source, f"{folder}/gid_attrs/ndevs/{g}", 64) for g in used)
    return HcaPort(
        number=index,
        state=_word(text(source, f"{folder}/state", 64)),
        phys_state=_word(text(source, f"{folder}/phys_state", 64)),
        rate_gbps=rate(text(source, f"{folder}/rate", 64)),
        link_layer=text(source, f"{folder}/link_layer", 64) or None,
        lid=number(source, f"{folder}/lid"),
        sm_lid=number(source, f"{folder}/sm_lid"),
        counters=counters(source, f"{folder}/counters") | counters(source, f"{folder}/hw_counters"),
        gid_types=types,
        netdev=next((n for n in named if n), netdev),
    )


def rate(line: str | None) -> float | None:
    """Gb/s of "400 Gb/sec (4X NDR)"."""
    match = re.match(r"(\d{1,6}(?:\.\d{1,3})?)\s*Gb/sec", line or "")
    return float(match.group(1)) if match else None


def _word(line: str | None) -> str | None:
    """ACTIVE of "4: ACTIVE"."""
    return (line or "").partition(":")[2].strip() or line or None


def _is_set(gid: str | None) -> bool:
    """Whether a GID holds more than a prefix: an unused entry is zero, at times behind fe80."""
    parts = [p for p in (gid or "").split(":") if p]
    return any(p.strip("0") for p in parts[1:])
