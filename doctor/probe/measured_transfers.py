"""The step model's collectives as a probe measured them: over all ranks, or within nodes and rails."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_doctor.probe.curve import Curve, Line
from fsdp_doctor.probe.figures import curves, largest
from fsdp_doctor.probe.step_model import Timed, Transfers
from fsdp_doctor.subjects.fabric import Figure
from fsdp_doctor.subjects.probe import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER

USUAL_LATENCY = 50e-6
"""Seconds of a collective in one node, where no small one was measured."""


def full_shard(figures: Sequence[Figure]) -> Transfers | None:
    """All-gather and reduce-scatter over every rank; None where one of them was not measured."""
    found = curves(figures)
    if ALL_GATHER not in found or REDUCE_SCATTER not in found:
        return None
    return Transfers(found[ALL_GATHER], found[REDUCE_SCATTER])


def hybrid_shard(figures: Sequence[Figure]) -> Transfers | None:
    """Both within the slowest node, and the all-reduce over the slowest rail.

    None where nodes and rails had no collectives of their own. A ring's all-reduce has the busbw of its
    all-gather, which is what rails measure.
    """
    gather, scatter = (_slowest(figures, op, "node:") for op in (ALL_GATHER, REDUCE_SCATTER))
    rail = _slowest(figures, ALL_GATHER, "rail:")
    if gather is None or scatter is None or rail is None:
        return None
    world = curves(figures).get(ALL_GATHER)
    latency = world.latency if isinstance(world, Curve) and world.latency is not None else USUAL_LATENCY
    between = Line(ALL_REDUCE, rail.ranks, latency, rail.busbw)
    return Transfers(_line(gather, USUAL_LATENCY), _line(scatter, USUAL_LATENCY), between)


def _slowest(figures: Sequence[Figure], op: str, prefix: str) -> Figure | None:
    names = {f.group for f in figures if f.group.startswith(prefix)}
    tops = [f for name in sorted(names) if (f := largest(figures, op, name)) is not None]
    return min(tops, key=lambda f: f.busbw, default=None)


def _line(figure: Figure, latency: float) -> Timed:
    return Line(figure.op, figure.ranks, latency, figure.busbw)
