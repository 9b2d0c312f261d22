"""How even and how quick collectives are: spread at large sizes, latency at small ones."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.probe._common import FACTS, RERUN, size_words, subject
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Confidence, Finding, Fix, Row, Status, ok, skip, warn
from fsdp_doctor.subjects.fabric import Fabric
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.probe import WORLD, ProbeResult
from fsdp_doctor.tables.probe_thresholds import JITTER_FAIL, JITTER_FROM, JITTER_WARN


@check("PRB015", Row.SLOW, needs=FACTS, tags=("probe", "jitter"), cost=Cost.MINUTES)
def jitter(facts: Facts, options: Options) -> Iterator[Finding]:
    """The same collective takes very different times.

    What: Compares the 99th percentile (from 299 iterations on), else the maximum of at least 20, with the
        median of each large collective.
    Why: FSDP runs hundreds of collectives per step, and the step waits for each: rare slow ones happen in
        every step.
    Fix: Look for congestion and other jobs on the network, thermal throttling, and processes that share the
        ranks' cores.
    Sources: C4 (collisions of flows cost up to 30 per cent); Falcon.
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    if fabric.unsteady:
        yield skip(f"spread was not judged: {fabric.unsteady}")
        return
    if not fabric.jitters:
        large = [f for f in fabric.figures if f.group == WORLD and f.bytes >= JITTER_FROM and f.median > 0]
        most = max((f.maximum / f.median for f in large), default=None)
        yield (
            ok(f"slowest iteration {most:.2f}x the median")
            if most is not None
            else skip("no large collective was timed", enable=RERUN)
        )
        return
    worst = fabric.jitters[0]
    others = f", and {len(fabric.jitters) - 1} more" if len(fabric.jitters) > 1 else ""
    fails = worst.ratio > JITTER_FAIL and worst.confirmed
    yield Finding(
        Status.FAIL if fails else Status.WARN,
        f"{worst.op} {size_words(worst.bytes)}: {worst.measure} of {worst.count} iterations is "
        f"{worst.ratio:.1f}x the median{others}",
        f"below {JITTER_WARN}x (above {JITTER_FAIL:.0f}x in several collectives is a failure)",
        subject=subject(probe, ()),
        fix=Fix(
            "Repeat the probe while nothing else runs on these nodes and links; if it stays, look at the "
            "congestion counters of adapters and switches and at the GPUs' clocks",
            "nvidia-smi -q -d PERFORMANCE; rdma statistic show",
        ),
        confidence=Confidence.HIGH if worst.confirmed else Confidence.LOW,
    )


@check("PRB017", Row.SLOW, needs=FACTS, tags=("probe", "latency"), cost=Cost.MINUTES)
def latency(facts: Facts, options: Options) -> Iterator[Finding]:
    """Small collectives take long.

    What: Compares the median of collectives of at most 64 KiB with what ranks of one node or of several
        need, and with the number of ranks in the ring.
    Why: Every FSDP unit pays the latency twice per step and once more in backward; with many small units it
        is what a step consists of.
    Fix: Look at the transport (sockets, host memory), the CPU that launches the kernels, and power saving of
        adapters and cores; wrap fewer and larger units.
    Sources: nccl-tests, doc/PERFORMANCE.md; ml-engineering (network benchmarks).
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    if not fabric.latencies:
        yield skip(
            "one rank: no latency" if probe.world_size < 2 else "no small collective was measured",
            enable="" if probe.world_size < 2 else RERUN,
        )
        return
    slow = [x for x in fabric.latencies if x.seconds > x.limit]
    said = ", ".join(
        f"{x.op} {size_words(x.bytes)} {x.seconds * 1e6:.0f} us" for x in slow or fabric.latencies
    )
    if not slow:
        yield ok(said)
        return
    yield warn(
        said,
        f"at most {slow[0].limit * 1e6:.0f} us for {probe.world_size} ranks",
        subject=subject(probe, ()),
        fix=Fix(
            "Look at the transport that is used and at CPU contention on the nodes",
            "NCCL_DEBUG=INFO fsdp-doctor probe" if probe.backend == "nccl" else "top -b -n 1 | head -20",
        ),
    )
