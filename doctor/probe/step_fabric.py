"""The collectives of a job: what was measured, carried over to its number of ranks and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsdp_doctor.probe.curve import Curve, Line
from fsdp_doctor.probe.expected import between_nodes
from fsdp_doctor.probe.figures import curves
from fsdp_doctor.probe.measured_transfers import USUAL_LATENCY, full_shard, hybrid_shard
from fsdp_doctor.probe.stats import bus_factor
from fsdp_doctor.probe.step_model import Timed, Transfers
from fsdp_doctor.subjects.fabric import Figure
from fsdp_doctor.subjects.probe import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, ProbeResult
from fsdp_doctor.tables.compute_rates import HOP_SECONDS


@dataclass(frozen=True, slots=True)
class Scaled:
    """A measured curve at another number of ranks: the same busbw, and a latency that grows with the ring."""

    curve: Curve
    ranks: int

    def seconds(self, size: float) -> float:
        """Seconds for an array of `size` bytes."""
        latency = min(self.curve.latency or 0.0, self.curve.seconds(size))
        moving = self.curve.seconds(size) - latency
        share = bus_factor(self.curve.op, self.ranks) / bus_factor(self.curve.op, self.curve.ranks)
        return latency + max(self.ranks - self.curve.ranks, 0) * HOP_SECONDS + moving * share


@dataclass(frozen=True, slots=True)
class JobFabric:
    """The collectives of one job, and how far they are from what was measured."""

    nodes: int
    full: Transfers
    hybrid: Transfers | None
    words: str
    assumptions: tuple[str, ...] = ()
    optimistic: bool = False
    """The way between nodes is not known; within a node nothing is slower than there."""


def job_fabric(
    result: ProbeResult, found: Sequence[Figure], world: int, between: float | None
) -> JobFabric | str:
    """The fabric of a job of `world` ranks, or in words why the measurements say nothing of it.

    `between` is a ring's busbw in GB/s between nodes, where that is known from elsewhere.
    """
    measured = full_shard(found)
    if result.world_size < 2:
        return "one rank moves no bytes, so that nothing of communication was measured"
    if measured is None:
        return "all-gather and reduce-scatter were not both measured"
    hosts = max(len({r.host for r in result.ranks}), 1)
    if hosts > 1:
        return _of_nodes(result, found, measured, hosts, world)
    if world <= result.world_size:
        return _of_one_node(result, found, measured, world)
    return _beyond_the_node(result, found, measured, world, between)


def _of_one_node(result: ProbeResult, found: Sequence[Figure], measured: Transfers, world: int) -> JobFabric:
    n = result.world_size
    if world == n:
        return JobFabric(1, measured, None, _words(found, n, 1))
    note = f"measured with {n} ranks, the job has {world}: the same busbw is assumed"
    return JobFabric(1, _scaled(found, world), None, _words(found, n, 1), (note,))


def _of_nodes(
    result: ProbeResult, found: Sequence[Figure], measured: Transfers, hosts: int, world: int
) -> JobFabric:
    n, per_node = result.world_size, max(result.world_size // hosts, 1)
    inside, words = hybrid_shard(found), _words(found, n, hosts)
    nodes = -(-world // per_node)
    if nodes == 1:
        if inside is None:
            note = "the job fits into one node, whose own collectives were not measured: those over all count"
            return JobFabric(1, _scaled(found, world), None, words, (note,))
        note = f"the job fits into one node of {per_node} ranks: the slowest node's own collectives count"
        return JobFabric(1, Transfers(inside.all_gather, inside.reduce_scatter), None, words, (note,))
    if world == n:
        return JobFabric(hosts, measured, inside, words)
    hybrid = None if inside is None or world % per_node else _between(inside, nodes)
    note = (
        f"{n} ranks on {hosts} nodes were measured, the job has {world} on {nodes}; assumed: the same busbw, "
        f"{HOP_SECONDS * 1e6:.0f} us of latency for each further rank, and no congestion by other jobs"
    )
    return JobFabric(nodes, _scaled(found, world), hybrid, words, (note,))


def _beyond_the_node(
    result: ProbeResult, found: Sequence[Figure], measured: Transfers, world: int, between: float | None
) -> JobFabric:
    n = result.world_size
    nodes, made = -(-world // n), curves(found)
    span = f"measured inside one node with {n} ranks, the job has {world} on {nodes} such nodes"
    words = _words(found, n, 1)
    rate, source = between, "given"
    if rate is None and result.links:
        reach = between_nodes(result.links[0], nodes)
        if reach is not None:
            rate, source = reach.low, f"expected of its adapters: {reach.basis}"
    if rate is None:
        note = (
            f"{span}: the way between nodes was not measured, and the node's own is assumed, which is the "
            "best that can be; probe several nodes, or give --between"
        )
        return JobFabric(nodes, _scaled(found, world), None, words, (note,), optimistic=True)
    full = Transfers(
        *(
            Line(op, world, _latency(made[op]) + (world - n) * HOP_SECONDS, min(rate, made[op].bandwidth))
            for op in (ALL_GATHER, REDUCE_SCATTER)
        )
    )
    hybrid = None
    if world % n == 0:
        # A node's GPUs share its adapters in the all-reduces of their replicas.
        line = Line(ALL_REDUCE, nodes, _latency(made[ALL_GATHER]), rate / n)
        hybrid = Transfers(measured.all_gather, measured.reduce_scatter, line)
    return JobFabric(nodes, full, hybrid, words, (f"{span}: {rate:.3g} GB/s busbw between nodes, {source}",))


def _between(inside: Transfers, nodes: int) -> Transfers:
    line = inside.all_reduce
    if not isinstance(line, Line):
        return inside
    return Transfers(
        inside.all_gather,
        inside.reduce_scatter,
        Line(line.op, nodes, line.latency_seconds, line.busbw_gbps),
    )


def _scaled(found: Sequence[Figure], world: int) -> Transfers:
    made: list[Timed] = [Scaled(curves(found)[op], world) for op in (ALL_GATHER, REDUCE_SCATTER)]
    return Transfers(made[0], made[1])


def _latency(curve: Curve) -> float:
    return USUAL_LATENCY if curve.latency is None else curve.latency


def _words(found: Sequence[Figure], ranks: int, hosts: int) -> str:
    said = [
        f"{op} {c.bandwidth:.3g} GB/s busbw"
        for op, c in curves(found).items()
        if op in (ALL_GATHER, REDUCE_SCATTER)
    ]
    return f"{', '.join(said)}, measured over {ranks} ranks on {hosts} host{'s' if hosts > 1 else ''}"
