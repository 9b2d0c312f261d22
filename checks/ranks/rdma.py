"""RDMA adapters and network plug-ins of the hosts of a job against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fsdp_doctor.checks.ranks._groups import machines, split, subject
from fsdp_doctor.engine.interfaces import selector
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, fail, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.rank_set import RankAdapter, RankDigest, RankSet

ON = ("1", "true", "yes", "y", "t", "on")


def _used(rank: RankDigest) -> tuple[RankAdapter, ...] | None:
    """The active ports that NCCL would use there; None where they are not known."""
    if rank.adapters is None:
        return None
    text = rank.environment.get("NCCL_IB_HCA")
    if not text or "[redacted]" in text:
        return rank.adapters
    chosen = selector(text)
    return tuple(a for a in rank.adapters if chosen.takes(*_name(a)))


def _name(adapter: RankAdapter) -> tuple[str, int | None]:
    name, _, port = adapter.name.rpartition(":")
    return (name, int(port)) if name and port.isascii() and port.isdigit() else (adapter.name, None)


def _off(rank: RankDigest) -> bool:
    """Whether the rank's variables keep NCCL from using RDMA at all."""
    env = rank.environment
    return env.get("NCCL_IB_DISABLE", "").strip().lower() in ON or env.get("NCCL_NET", "").lower() == "socket"


def _set(adapters: tuple[RankAdapter, ...]) -> str:
    """Ports by kind, such as "8 x InfiniBand 400 Gb/s"."""
    kinds = Counter((a.link_layer or "unknown link", a.rate_gbps) for a in adapters)
    words = [
        f"{n} x {layer} {f'{rate:g} Gb/s' if rate is not None else 'unknown rate'}"
        for (layer, rate), n in sorted(kinds.items(), key=lambda k: (k[0][0], k[0][1] or 0.0))
    ]
    return " and ".join(words) or "none"


@check("RNK055", Row.NCCL, needs=(RankSet,), tags=("ranks", "net", "rdma"))
def adapters_differ(facts: Facts, options: Options) -> Iterator[Finding]:
    """Hosts have different RDMA adapters.

    What: compares number, rate and link layer of the active InfiniBand and RoCE ports that NCCL_IB_HCA
    leaves to NCCL. Ports that are there and down are left to the check of the host itself.
    Why: NCCL ends or hangs where one side has InfiniBand and the other has sockets or Ethernet alone; with
    fewer or slower ports on one host all wait for that host.
    Fix: find out why the odd hosts differ: driver not loaded, devices not passed to the container, another
    machine type.
    Sources: NCCL user guide, env.rst (NCCL_IB_HCA, NCCL_IB_DISABLE) and troubleshooting.
    """
    firsts = machines(facts[RankSet].ranks)
    if len(firsts) < 2:
        yield ok("all ranks are on one host")
        return
    if all(_off(r) for r in firsts):
        yield ok("NCCL is told not to use RDMA")
        return
    known = [r for r in firsts if _used(r) is not None]
    if len(known) < 2:
        yield skip("fewer than two hosts say which RDMA adapters they have")
        return
    groups = split(known, lambda r: _set(_used(r) or ()))
    if groups is None:
        yield ok(f"{_set(_used(known[0]) or ())} on every host")
        return
    if any(r.inactive_adapters for r in groups.odd) and len({_ports(r) for r in known}) == 1:
        yield ok(f"{_ports(known[0])} ports on every host; some are not active")
        return
    found = f"RDMA ports differ: {groups.words()}"
    fix = Fix("Look for the adapters of the odd hosts: ibv_devinfo, lspci, /dev/infiniband", "ibv_devinfo")
    none = [r for r in known if not _used(r)]
    layers = split(known, lambda r: ", ".join(sorted({a.link_layer or "" for a in _used(r) or ()})) or None)
    if none:
        yield fail(found, "RDMA on every host, or on none", subject=subject(none), fix=fix)
    elif layers is not None:
        yield fail(found, "one link layer on every host", subject=layers.subject, fix=fix)
    else:
        yield warn(found, "the same ports on every host", subject=groups.subject, fix=fix, row=Row.SLOW)


def _ports(rank: RankDigest) -> int:
    return len(rank.adapters or ()) + (rank.inactive_adapters or 0)


@check("RNK056", Row.SLOW, needs=(RankSet,), tags=("ranks", "net", "rdma"))
def adapter_firmware_differs(facts: Facts, options: Options) -> Iterator[Finding]:
    """RDMA adapters of one model run different firmware on different hosts.

    What: compares the firmware of the adapters, model by model, between hosts that have one version each.
    Why: versions differ in congestion control, adaptive routing and known faults: the odd host is slower,
    or drops connections under load.
    Fix: bring all adapters of a model to the same firmware.
    Sources: Linux Documentation/ABI/stable/sysfs-class-infiniband, fw_ver.
    """
    firsts = machines(facts[RankSet].ranks)
    models = sorted({a.hca_type for r in firsts for a in r.adapters or () if a.hca_type})
    for model in models:
        groups = split(firsts, lambda r, m=model: _firmware(r, m))  # type: ignore[misc]
        if groups is not None:
            yield warn(
                f"firmware of {model} differs: {groups.words()}",
                "one firmware per model of adapter",
                subject=groups.subject,
                fix=Fix(
                    "Update the firmware of the odd hosts (mlxfwmanager)", None, Risk.DISRUPTIVE, Owner.ADMIN
                ),
            )


def _firmware(rank: RankDigest, model: str) -> str | None:
    """The one version that a host's adapters of a model have; several are that host's own finding."""
    found = {a.firmware for a in rank.adapters or () if a.hca_type == model and a.firmware}
    return found.pop() if len(found) == 1 else None


@check("RNK057", Row.NCCL, needs=(RankSet,), tags=("ranks", "net", "nccl"))
def net_plugin_missing_somewhere(facts: Facts, options: Options) -> Iterator[Finding]:
    """A network plug-in of NCCL is there on some hosts only.

    What: compares whether the loader finds libnccl-net.so, or what NCCL_NET_PLUGIN names, on every host.
    Why: the plug-in (OFI for EFA, SHARP, FastSocket) speaks its own protocol: NCCL uses it where it is and
    something else where it is not, and the connection between the two fails or hangs.
    Fix: install the plug-in on all hosts, or switch it off everywhere with NCCL_NET_PLUGIN=none.
    Sources: NCCL user guide, env.rst (NCCL_NET_PLUGIN); NCCL issue 1634.
    """
    firsts = machines(facts[RankSet].ranks)
    if len(firsts) < 2:
        yield ok("all ranks are on one host")
        return
    known = [r for r in firsts if _plugin(r) is not None]
    if len(known) < 2:
        yield skip("fewer than two hosts say whether they have a network plug-in")
        return
    groups = split(known, _plugin)
    if groups is None:
        yield ok(f"{_plugin(known[0])} on every host")
        return
    without = [r for r in known if _plugin(r) == NONE]
    yield fail(
        f"NCCL's network plug-in differs: {groups.words()}",
        "the same plug-in on every host, or none",
        subject=subject(without) if without else groups.subject,
        fix=Fix("Install the plug-in on every host, or set NCCL_NET_PLUGIN=none on all of them"),
    )


NONE = "no plug-in"


def _plugin(rank: RankDigest) -> str | None:
    """What NCCL would load: the file's name, `NONE`, or None where it is not known."""
    asked = rank.environment.get("NCCL_NET_PLUGIN")
    if asked:
        return NONE if asked == "none" else asked.rpartition("/")[2]
    if rank.net_plugin is None:
        return None
    return "libnccl-net.so" if rank.net_plugin else NONE
