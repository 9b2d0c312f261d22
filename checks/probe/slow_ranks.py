"""Ranks that are slow by their own measure: their work, their pauses, their transfers, their copies."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.probe._common import FACTS, accuse, admin, subject, unnamed, who
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, ok, skip
from fsdp_doctor.subjects.fabric import COMPUTE, COPY, LATE, TRANSFER, Culprit, Fabric
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.probe import ProbeResult


def _of(fabric: Fabric, kind: str) -> tuple[Culprit, ...]:
    return tuple(c for c in fabric.culprits if c.kind == kind)


def _even(fabric: Fabric, what: str) -> Finding:
    figures = "; ".join(fabric.summary[:2])
    return ok(f"no rank's {what} stands out" + (f": {figures}" if figures else ""))


@check("PRB006", Row.SLOW, needs=FACTS, tags=("probe", "slow-rank"), cost=Cost.MINUTES)
def slow_compute(facts: Facts, options: Options) -> Iterator[Finding]:
    """A rank computes slower than the others.

    What: Runs the same matrix products on every rank at once, without communication, and compares wall
        and CPU time with the other ranks.
    Why: Every FSDP layer waits for the last rank's all-gather, so one slow GPU or starved process sets the
        speed of the whole job, and the healthy ranks look as if they waited for the network.
    Fix: On a GPU look at clocks, temperature and power cap; on CPU at the cores the process may use and at
        what else runs there.
    Sources: NVIDIA clocks event reasons (nvidia-smi -q -d PERFORMANCE); published studies of stragglers
        (Falcon, Guard).
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    for c in _of(fabric, COMPUTE):
        yield accuse(
            c,
            f"slow compute: {who(probe, c.ranks)} takes {c.ratio:.2f}x as long as the others for the same "
            f"work ({c.value:.3g} ms, others {c.reference:.3g} ms)",
            "the same time on every rank",
            _compute_fix(probe),
            subject(probe, c.ranks),
        )
    if not _of(fabric, COMPUTE):
        yield unnamed(probe, fabric, (COMPUTE,), "fixed work", _even(fabric, "own work"))


def _compute_fix(probe: ProbeResult) -> Fix:
    if probe.device == "cuda":
        return admin(
            "Look at the GPU's clocks event reasons, temperature and power limit; clean or replace the node "
            "if heat lowers the clocks",
            "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER",
        )
    return Fix(
        "Give the rank a CPU core of its own: end what else runs there, raise the container's CPU limit",
        "top -b -n 1 | head -20; cat /sys/fs/cgroup/cpu.stat",
    )


@check("PRB007", Row.SLOW, needs=FACTS, tags=("probe", "slow-rank"), cost=Cost.MINUTES)
def late_rank(facts: Facts, options: Options) -> Iterator[Finding]:
    """A rank comes late to every collective.

    What: Measures each rank's own pause from leaving one collective to entering the next. That needs no
        common clock and is blind to links.
    Why: The others spend the pause waiting inside FSDP's all-gather, where it looks like slow
        communication.
    Fix: Look at what the process's host does between steps: CPU contention, swapping, a debugger, slow
        Python start-up of threads.
    Sources: Holistic Trace Analysis documentation; pytorch#71303.
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    for c in _of(fabric, LATE):
        yield accuse(
            c,
            f"late: {who(probe, c.ranks)} spends {c.value:.3g} ms between collectives, "
            f"the others {c.reference:.3g} ms",
            "ranks that enter each collective together",
            Fix(
                "Find what holds the process between collectives: CPU contention, swapping, a profiler or "
                "debugger, data loading in the main process",
                "top -H -b -n 1 | head -30",
            ),
            subject(probe, c.ranks),
        )
    if not _of(fabric, LATE):
        yield unnamed(probe, fabric, (LATE,), "the ranks' pauses", _even(fabric, "pause"))


@check("PRB008", Row.SLOW, needs=FACTS, tags=("probe", "slow-rank", "link"), cost=Cost.MINUTES)
def slow_transfer(facts: Facts, options: Options) -> Iterator[Finding]:
    """A rank transfers slower than the others with every partner.

    What: Lets all pairs of ranks exchange data, each direction on its own, and compares each rank's best
        pair with the best pairs of others: a rank with a bad adapter or slot has no good pair.
    Why: FSDP's ring passes through every rank, so its all-gather runs at the speed of the worst. The
        collective itself cannot say whose that is.
    Fix: Look at the rank's adapter, PCIe slot and NVLinks, and at the counters of its switch port.
    Sources: C4 (latency matrix); superbenchmark's pair-wise patterns.
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    for c in _of(fabric, TRANSFER):
        yield accuse(
            c,
            f"slow transfer: {who(probe, c.ranks)} reaches {c.value:.3g} GB/s {c.scope} with its best "
            f"partner, others {c.reference:.3g} GB/s ({c.ratio:.2f}x slower)",
            "the same rate for every rank",
            Fix(
                "Look at this rank's path: PCIe width and speed, NVLink state and errors, and between nodes "
                "its network adapter, cable and switch port",
                "nvidia-smi nvlink -s; nvidia-smi -q -d PCIE; ibstat"
                if probe.device == "cuda"
                else "ip -s link",
                Risk.SAFE,
                Owner.HARDWARE,
            ),
            subject(probe, c.ranks),
        )
    if not _of(fabric, TRANSFER):
        yield unnamed(
            probe, fabric, (TRANSFER,), "the pairs of three or more ranks", _even(fabric, "transfer rate")
        )


@check("PRB012", Row.SLOW, needs=FACTS, tags=("probe", "slow-rank", "pcie"), cost=Cost.MINUTES)
def slow_copies(facts: Facts, options: Options) -> Iterator[Finding]:
    """A GPU's copies to or from host memory are slower than the others'.

    What: Copies pinned memory to and from each GPU alone and compares with the other GPUs of its kind.
    Why: Batches, CPU offload, checkpoints and RDMA through host memory all take this way. Eight healthy
        slots differ by less than one per cent, so a slow one is a narrow or slow PCIe link, or a process on
        the far socket.
    Fix: Bind the process to its GPU's NUMA node; if it stays slow, reseat the GPU or its riser.
    Sources: azurehpc-health-checks (GPU copy bandwidth); nvbandwidth.
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    if probe.device != "cuda":
        yield skip("the ranks ran on CPU: there are no copies to a GPU", enable="run the probe on GPUs")
        return
    for c in _of(fabric, COPY):
        way = "to" if c.scope == "h2d" else "from"
        yield accuse(
            c,
            f"slow copies: {who(probe, c.ranks)} moves {c.value:.3g} GB/s {way} its GPU ({c.scope}), "
            f"others {c.reference:.3g} GB/s",
            "the same rate for every GPU of the kind",
            admin(
                "Compare the PCIe width and speed under load, bind the process to the GPU's NUMA node, then "
                "reseat the GPU or its riser",
                "nvidia-smi -q -d PCIE; nvidia-smi topo -m",
            ),
            subject(probe, c.ranks),
        )
    if not _of(fabric, COPY):
        yield unnamed(probe, fabric, (COPY,), "copies", _even(fabric, "copy rate"))
