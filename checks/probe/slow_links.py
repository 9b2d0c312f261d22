"""Links, nodes and rails that are slow though their ranks are not."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.probe._common import FACTS, accuse, admin, rank_words, subject, unnamed, who
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, ok, skip
from fsdp_doctor.subjects.fabric import EITHER_END, LINK, NODE, RAIL, Culprit, Fabric
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.probe import ProbeResult


def _of(fabric: Fabric, kind: str) -> tuple[Culprit, ...]:
    return tuple(c for c in fabric.culprits if c.kind == kind)


def _direction(c: Culprit) -> str:
    arrow = "<->" if c.both_ways else "->"
    return f"{c.source} {arrow} {c.target}"


def _figures(c: Culprit) -> str:
    return f"{c.value:.3g} {c.unit}, others {c.reference:.3g} {c.unit} ({c.ratio:.2f}x slower)"


def _ends(probe: ProbeResult, c: Culprit) -> str:
    ends = [who(probe, (r,)) for r in (c.source, c.target) if r is not None]
    return " and ".join(ends) if c.both_ways else " to ".join(ends)


def _one_node(probe: ProbeResult) -> bool:
    return len({r.host for r in probe.ranks}) < 2


@check("PRB009", Row.SLOW, needs=FACTS, tags=("probe", "link"), cost=Cost.MINUTES)
def slow_link(facts: Facts, options: Options) -> Iterator[Finding]:
    """The link between two ranks is slow in one direction or both.

    What: Compares each direction of every pair with other pairs of its kind; a link is named where both of
        its ends have good pairs with others.
    Why: A ring that crosses the link runs at its speed. A fault of one direction slows FSDP's all-gather
        several times while an all-reduce that goes the other way round looks healthy.
    Fix: Look at the cable and the switch ports between the two, and at their error counters.
    Sources: C4 (hot cell of the latency matrix); NCCL user guide, troubleshooting.
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    for c in _of(fabric, LINK):
        yield accuse(
            c,
            f"slow link {_direction(c)}: {_ends(probe, c)} at {_figures(c)}",
            "the rate of other pairs at the same distance",
            Fix(
                "Look at the path between the two: cable, switch ports and routing between nodes; NVLink, "
                "PCIe switch and ACS inside one",
                None if probe.device == "cpu" else "nvidia-smi topo -m; nvidia-smi nvlink -e",
                Risk.SAFE,
                Owner.HARDWARE,
            ),
            subject(probe, c.ranks, device=f"link {_direction(c)}"),
        )
    if not _of(fabric, LINK):
        yield unnamed(
            probe,
            fabric,
            (LINK,),
            "the pairs of three or more ranks",
            ok("no link stands out" + (f": {fabric.summary[1]}" if len(fabric.summary) > 1 else "")),
        )


@check("PRB010", Row.SLOW, needs=FACTS, tags=("probe", "node"), cost=Cost.MINUTES)
def slow_node(facts: Facts, options: Options) -> Iterator[Finding]:
    """A node is slower than the others, to the outside or inside.

    What: Runs collectives inside every node at once and pairs between nodes; a node is named where all of
        its ranks are slow between nodes, or where its own collectives are slow.
    Why: One node of hundreds sets the pace of FSDP's all-gather for all. Acceptance tests of single GPUs do
        not see it.
    Fix: Take the node out of the job and compare driver, fabric manager, firmware and uplinks with a good
        one.
    Sources: superbenchmark; Imbue cluster-health; Guard.
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    if _one_node(probe):
        yield skip("one node: no other to compare it with", enable="run the probe over several nodes")
        return
    for c in _of(fabric, NODE):
        yield accuse(
            c,
            f"slow node {c.host}: {rank_words(c.ranks)} {c.scope} at {_figures(c)}",
            "the rate of the other nodes",
            admin(
                "Leave the node out (srun --exclude), and compare its fabric manager, driver, adapters' "
                "firmware and uplinks with a good node's"
            ),
            subject(probe, c.ranks, host=c.host),
        )
    if not _of(fabric, NODE):
        yield unnamed(
            probe,
            fabric,
            (NODE,),
            "nodes",
            ok(f"{len({r.host for r in probe.ranks})} nodes, none stands out"),
        )


@check("PRB011", Row.SLOW, needs=FACTS, tags=("probe", "rail"), cost=Cost.MINUTES)
def slow_rail(facts: Facts, options: Options) -> Iterator[Finding]:
    """One rail between the nodes is slow on all of them.

    What: Runs collectives over the ranks with the same local rank and pairs between them; a rail is named
        where one adapter index is slow on every node and the others are not.
    Why: NCCL spreads FSDP's traffic evenly over all rails, so that the slowest bounds the sum.
    Fix: Look at the rail's leaf switch, and whether the adapter of that index is set up like the others.
    Sources: NCCL user guide, environment variables (NCCL_IB_HCA, NCCL_CROSS_NIC); nccl-tests
        (NCCL_TESTS_SPLIT).
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    if _one_node(probe):
        yield skip("one node: no rails between nodes", enable="run the probe over several nodes")
        return
    for c in _of(fabric, RAIL):
        yield accuse(
            c,
            f"slow rail {c.rail}: {rank_words(c.ranks)} {c.scope} at {_figures(c)}",
            "the rate of the other rails",
            admin(
                "Look at the leaf switch of this rail and at the adapter of this index on each node: rate, "
                "firmware, PFC and ECN settings",
                "ibstat; rdma link show",
            ),
            subject(probe, c.ranks, device=f"rail {c.rail}"),
        )
    if not _of(fabric, RAIL):
        yield unnamed(probe, fabric, (RAIL,), "rails", ok("no rail stands out"))


@check("PRB019", Row.SLOW, needs=FACTS, tags=("probe", "link"), cost=Cost.MINUTES)
def either_end(facts: Facts, options: Options) -> Iterator[Finding]:
    """A pair of ranks is slow and its ends cannot be told apart.

    What: Reports a slow pair where an end has no other partner to compare with: two ranks, or one rank per
        rail on two nodes. Where nothing is slow, it says what was compared.
    Why: Which of two ranks is at fault cannot be known from their one connection; guessing sends the wrong
        machine to repair.
    Fix: Run the probe with a third rank or node.
    Sources: Google cluster health scanner (second pass with known-good partners).
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    for c in _of(fabric, EITHER_END):
        yield accuse(
            c,
            f"slow pair {_direction(c)}: {_ends(probe, c)} at {c.value:.3g} {c.unit} instead of "
            f"{c.reference:.3g} ({c.ratio:.2f}x slower); cannot tell which end it is",
            "both directions and pairs of a kind alike",
            Fix("Run the probe with a third rank or node, so that each end has another partner"),
            subject(probe, c.ranks, device=f"link {_direction(c)}"),
        )
    if _of(fabric, EITHER_END):
        return
    if fabric.culprits:
        named = "; ".join(f"{c.kind}: {rank_words(c.ranks)}" for c in fabric.culprits[:4])
        even = ok(f"every outlier could be named ({named})")
    else:
        even = ok("no outlier" + (f": {'; '.join(fabric.summary)}" if fabric.summary else ""))
    yield unnamed(probe, fabric, (EITHER_END,), "the pairs of ranks", even)
