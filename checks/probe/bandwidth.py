"""Large collectives against what the links allow."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.probe._common import FACTS, RERUN, evidence, size_words, subject
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Confidence, Finding, Fix, Row, Status, fail, ok, skip
from fsdp_doctor.subjects.fabric import Fabric, Figure, Shortfall
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.probe import ALL_REDUCE, WORLD, ProbeResult
from fsdp_doctor.tables.probe_thresholds import ABSOLUTE_FAIL, ABSOLUTE_FROM, ABSOLUTE_PASS


def _largest(fabric: Fabric) -> dict[str, Figure]:
    """Operation -> its largest measurement that is large enough for an absolute verdict."""
    best: dict[str, Figure] = {}
    for f in fabric.figures:
        large = f.group == WORLD and f.bytes >= ABSOLUTE_FROM
        if large and (f.op not in best or (f.bytes, f.busbw) > (best[f.op].bytes, best[f.op].busbw)):
            best[f.op] = f
    return best


def _reached(fabric: Fabric) -> str:
    best = _largest(fabric)
    expected = {e.op: e for e in fabric.expectations}
    return ", ".join(
        f"{op} {size_words(f.bytes)} {f.busbw:.0f} GB/s busbw (expected {expected[op].low_at(f.bytes):.0f} "
        f"to {expected[op].high:.0f})"
        for op, f in best.items()
        if op in expected
    )


@check("PRB013", Row.SLOW, needs=FACTS, tags=("probe", "bandwidth"), cost=Cost.MINUTES)
def below_expected(facts: Facts, options: Options) -> Iterator[Finding]:
    """Collectives are slower than the links allow.

    What: Compares the busbw of all-gather, reduce-scatter and all-reduce of 512 MiB or more with what the
        machine's NVLinks, PCIe slots and adapters give on healthy machines. busbw is nccl-tests' figure: the
        array over the time, times (n-1)/n, twice that for all-reduce.
    Why: FSDP hides its gathers behind compute only if they are fast enough; below that every step is longer
        by the difference. An all-reduce with NVLink SHARP may look healthy meanwhile and proves nothing.
    Fix: Compare transports and topology with NCCL_DEBUG=INFO; look at the findings on links and adapters.
    Sources: nccl-tests, doc/PERFORMANCE.md; ml-engineering (network benchmarks); azurehpc-health-checks.
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    if not fabric.expectations or (fabric.unexpected and not fabric.shortfalls):
        yield skip(f"no absolute verdict: {fabric.unexpected or 'nothing was expected'}")
        return
    short = [s for s in fabric.shortfalls if not s.detour]
    if short:
        yield _shortfall(probe, fabric, short)
    elif not fabric.shortfalls:
        absent = [e.op for e in fabric.expectations if e.op not in _largest(fabric)]
        if absent:
            yield skip(f"no large {', '.join(absent)} was measured", enable=RERUN)
        else:
            yield ok(_reached(fabric))
    else:
        yield ok("what is below is so far below that its path is wrong, which another check reports")


def _shortfall(probe: ProbeResult, fabric: Fabric, short: list[Shortfall]) -> Finding:
    worst = min(short, key=lambda s: s.ratio)
    fails = any(s.ratio < ABSOLUTE_FAIL and s.confirmed and s.expected.firm for s in short)
    said = ", ".join(f"{s.op} {size_words(s.bytes)} {s.busbw:.0f} GB/s busbw" for s in short)
    healthy = {e.op for e in fabric.expectations} - {s.op for s in fabric.shortfalls}
    note = " (the all-reduce reaches its own figure: NVLink SHARP and other algorithms serve it alone)"
    return Finding(
        Status.FAIL if fails else Status.WARN,
        said
        + (note if ALL_REDUCE in healthy else "")
        + ("" if worst.confirmed else "; measured once, run the probe again to confirm"),
        f"{worst.low:.0f} to {worst.expected.high:.0f} GB/s busbw at this size ({worst.expected.basis}); "
        f"{ABSOLUTE_PASS:.0%} of the low end passes",
        subject=subject(probe, ()),
        fix=Fix(
            "Compare the transports and rings that NCCL chose with a good machine's, and look for other jobs "
            "on the same links",
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING,NET fsdp-doctor probe",
        ),
        confidence=Confidence.HIGH if worst.confirmed and worst.expected.firm else Confidence.MEDIUM,
    )


@check("PRB014", Row.SLOW, needs=FACTS, tags=("probe", "bandwidth", "nccl"), cost=Cost.MINUTES)
def wrong_path(facts: Facts, options: Options) -> Iterator[Finding]:
    """Bytes take a slower path than the machine has.

    What: Reads the transports that NCCL says it uses; where it says nothing, takes collectives below 40 per
        cent of the expected bandwidth as another path and names which one fits: sockets instead of RDMA, one
        adapter of several, PCIe or host memory instead of NVLink.
    Why: FSDP runs without any error over TCP sockets or through host memory, ten to fifty times slower.
    Fix: Make the fast path work: RDMA devices and libraries in the container, P2P, and no variable that
        turns it off.
    Sources: NCCL user guide, environment variables and troubleshooting; nccl#841, nccl#1639.
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    for d in fabric.detours:
        variables = f"; set in the ranks: {', '.join(d.variables)}" if d.variables else ""
        yield fail(
            f"{d.path}{variables}",
            d.expected,
            subject=subject(probe, ()),
            fix=_path_fix(d.network, d.variables),
            confidence=Confidence.MEDIUM if "by its bandwidth" in d.path else Confidence.HIGH,
            evidence=evidence(d.evidence),
        )
    if fabric.detours:
        return
    if probe.world_size < 2:
        yield skip("one rank moves no bytes")
        return
    used = probe.transports
    between = len({r.host for r in probe.ranks}) > 1
    # Inside one node NCCL names a network too, of which it then uses nothing.
    if used is not None and (used.channels or (used.network and between)):
        yield ok(f"NCCL uses {', '.join((*used.channels, *((used.network,) if used.network else ())))}")
    elif fabric.expectations and not fabric.unexpected:
        reached = _reached(fabric)
        yield ok(reached) if reached else skip("no large collective was measured", enable=RERUN)
    else:
        reason = fabric.unexpected or "nothing was expected"
        yield skip(f"the transport is not known: the backend was not asked, and {reason}", enable=RERUN)


def _path_fix(network: bool, variables: tuple[str, ...]) -> Fix:
    if variables:
        names = " ".join(v.partition("=")[0] for v in variables)
        return Fix(f"Unset what turns the fast path off ({names}), and repeat the probe", f"unset {names}")
    if network:
        return Fix(
            "Give the job its RDMA devices: --device=/dev/infiniband, unlimited memlock and libibverbs in "
            "the container, or the network's NCCL plug-in; NCCL_DEBUG=INFO then says NET/IB or its name",
            "ls /dev/infiniband; ulimit -l; ibv_devinfo",
        )
    return Fix(
        "Make P2P work between the GPUs: fabric manager running in the driver's version, ACS off or "
        "iommu=pt, all GPUs of the node in one container",
        "nvidia-smi topo -p2p n; systemctl status nvidia-fabricmanager",
    )
