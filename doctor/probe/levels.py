"""Collectives against expected values and against themselves: bandwidth, path, spread, latency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fsdp_doctor.probe.curve import SMALL
from fsdp_doctor.probe.expected import path_candidates
from fsdp_doctor.probe.figures import size_words
from fsdp_doctor.probe.stats import MIN_FOR_P99
from fsdp_doctor.subjects.fabric import Detour, Expectation, Figure, Jitter, Latency, Shortfall
from fsdp_doctor.subjects.probe import WORLD, ProbeResult
from fsdp_doctor.tables.fabric_figures import RDMA_KINDS, nvlink_product
from fsdp_doctor.tables.probe_thresholds import (
    ABSOLUTE_FROM,
    ABSOLUTE_PASS,
    JITTER_COUNT,
    JITTER_FAIL,
    JITTER_FROM,
    JITTER_WARN,
    LATENCY_CPU,
    LATENCY_HOP,
    LATENCY_NODES,
    LATENCY_ONE_NODE,
    WRONG_PATH,
)

PATH_VARIABLES = ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_NET_PLUGIN")
PEER_VARIABLES = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_CUMEM_ENABLE")


def judged(
    figures: Iterable[Figure], expected: Iterable[Expectation]
) -> tuple[tuple[Figure, Expectation], ...]:
    """The largest world-wide measurement of each operation, where it is large enough for an absolute verdict.

    An all-reduce is held against its own expectation only: with NVLink SHARP it exceeds the wire.
    """
    found = []
    for e in expected:
        large = [f for f in figures if f.op == e.op and f.group == WORLD and f.bytes >= ABSOLUTE_FROM]
        first = max((f for f in large if f.run == 0), key=lambda f: f.bytes, default=None)
        if first is not None:
            found.append((first, e))
    return tuple(found)


def shortfalls(figures: Sequence[Figure], expected: Sequence[Expectation]) -> tuple[Shortfall, ...]:
    """Operations below the expected low end, by their best run: what was reached once can be reached."""
    found = []
    for first, e in judged(figures, expected):
        same = [f for f in figures if (f.op, f.group, f.bytes) == (e.op, WORLD, first.bytes)]
        best = max(same, key=lambda f: f.busbw)
        low = e.low_at(best.bytes)
        ratio = best.busbw / low if low > 0 else 1.0
        if ratio < ABSOLUTE_PASS:
            confirmed = len({f.run for f in same}) > 1
            found.append(
                Shortfall(e.op, best.bytes, best.busbw, e, low, ratio, confirmed, detour=ratio < WRONG_PATH)
            )
    return tuple(found)


def detours(result: ProbeResult, short: Sequence[Shortfall]) -> tuple[Detour, ...]:
    """Wrong paths: those that the backend names itself, else what the bandwidth points to."""
    said = _named_detours(result)
    far = [s for s in short if s.detour]
    if said or not far:
        return tuple(_with(d, far) for d in said)
    worst = min(far, key=lambda s: s.ratio)
    fitting = [path for path, low, high in path_candidates(result) if low <= worst.busbw <= high]
    several = len({r.host for r in result.ranks}) > 1
    path = " or ".join(fitting) if fitting else "a slower path than the links offer"
    made = Detour(
        f"{path} (by its bandwidth)",
        worst.expected.basis,
        _set(result, PATH_VARIABLES if several else PEER_VARIABLES),
        several,
        _traffic(result),
    )
    return (_with(made, far),)


def _with(detour: Detour, far: Sequence[Shortfall]) -> Detour:
    figures = tuple(
        f"{s.op} {size_words(s.bytes)}: {s.busbw:.1f} GB/s busbw, expected {s.low:.0f} or more" for s in far
    )
    return Detour(
        detour.path, detour.expected, detour.variables, detour.network, (*figures, *detour.evidence)
    )


def _named_detours(result: ProbeResult) -> tuple[Detour, ...]:
    used = result.transports
    if used is None:
        return ()
    found = []
    several = len({r.host for r in result.ranks}) > 1
    rdma = sorted({n.nic_kind for n in result.links if n.nic_kind and n.nic_kind.lower() in RDMA_KINDS})
    sockets = [c for c in used.channels if c.upper().startswith("NET/SOCKET")]
    if several and rdma and (sockets or (used.network or "").lower() == "socket"):
        found.append(
            Detour(
                f"TCP sockets instead of {', '.join(rdma)}",
                f"NET/IB or the network's plug-in ({', '.join(rdma)} adapters are there)",
                _set(result, PATH_VARIABLES),
                True,
                (*used.lines[:3], *_traffic(result)),
            )
        )
    fast = any(nvlink_product(n.gpu_name) or n.nvlink_gbps for n in result.links)
    memory = [c for c in used.channels if c.upper().startswith("SHM")]
    direct = [c for c in used.channels if c.upper().startswith(("P2P", "NVLS"))]
    one_host = [c for c in used.channels if c.upper().startswith("NET")] if not several else []
    if fast and (memory or one_host) and not direct:
        way = "host memory (SHM)" if memory else "the network"
        found.append(
            Detour(
                f"{way} instead of NVLink between the GPUs of one node: P2P is off",
                "P2P over NVLink",
                _set(result, PEER_VARIABLES),
                False,
                used.lines[:3],
            )
        )
    return tuple(found)


def _set(result: ProbeResult, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{n}={result.environment[n]}" for n in names if n in result.environment)


def _traffic(result: ProbeResult) -> tuple[str, ...]:
    """Which adapters carried bytes during the probe, per host: all idle means sockets, one means one rail."""
    said = []
    for rank in sorted(result.ranks, key=lambda r: r.rank):
        sent = {
            name.split("/")[1]: 4 * (rank.counters_after[name] - before)
            for name, before in rank.counters_before.items()
            if name.startswith("ib/") and name.endswith("/port_xmit_data") and name in rank.counters_after
        }
        if sent:
            busy = [f"{n} {v / 1e9:.1f} GB" for n, v in sent.items() if v > 1e8]
            said.append(
                f"{rank.host}: {', '.join(busy) if busy else 'no adapter'} of {len(sent)} carried traffic"
            )
    return tuple(dict.fromkeys(said))[:4]


def jitters(result: ProbeResult, figures: Sequence[Figure]) -> tuple[tuple[Jitter, ...], str]:
    """Large collectives whose slowest iterations stand out, and "" — or none, and why that was not judged."""
    if result.device != "cuda":
        return (), "ranks on CPU cores share them: their spread says nothing about a network"
    if result.world_size < 2:
        return (), "one rank moves no bytes"
    series = [
        f
        for f in figures
        if f.group == WORLD and f.bytes >= JITTER_FROM and f.count >= JITTER_COUNT and f.median > 0
    ]
    if not series:
        return (), f"no collective of {size_words(JITTER_FROM)} or more ran {JITTER_COUNT} times"
    found = []
    for f in series:
        measure, value = ("p99", f.p99) if f.count >= MIN_FOR_P99 else ("max", f.maximum)
        if value / f.median >= JITTER_WARN:
            found.append(Jitter(f.op, f.bytes, value / f.median, measure, f.count, False))
    far = sum(j.ratio > JITTER_FAIL for j in found)
    marked = (Jitter(j.op, j.bytes, j.ratio, j.measure, j.count, far > 1) for j in found)
    return tuple(sorted(marked, key=lambda j: -j.ratio)), ""


def latencies(result: ProbeResult, figures: Iterable[Figure]) -> tuple[Latency, ...]:
    """The smallest collectives with the limit that each has on this kind of machine."""
    if result.world_size < 2:
        return ()
    several = len({r.host for r in result.ranks}) > 1
    base = LATENCY_CPU if result.device != "cuda" else LATENCY_NODES if several else LATENCY_ONE_NODE
    limit = base + LATENCY_HOP * (result.world_size - 1)
    best: dict[str, Figure] = {}
    for f in figures:
        if f.group == WORLD and f.bytes <= SMALL and (f.op not in best or f.median < best[f.op].median):
            best[f.op] = f
    return tuple(Latency(f.op, f.bytes, f.median, limit) for f in best.values())
