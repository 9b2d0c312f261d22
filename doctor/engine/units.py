"""What each unit of a plan gathers, keeps and reduces, by the padding rules of FSDP2 and FSDP1. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_doctor.subjects.unit_plan import Parameter, UnitPlan

ITEM = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
ALIGNMENT = 16
"""Bytes to which FSDP1 aligns the parameters of a flat parameter (use_orig_params=True)."""


@dataclass(frozen=True, slots=True)
class UnitSize:
    """One unit; bytes of one rank."""

    elements: int
    """Of the parameters, without padding."""
    trainable: int
    """Elements of those that train."""
    padded: int
    """Elements of the gathered buffer, with padding."""
    gathered: int
    """Bytes of the gathered buffer."""
    shard: int
    """Bytes of this rank's shards, with padding."""
    reduced: int
    """Bytes of the buffer that reduces the unit's gradients; 0 where nothing trains."""
    dtypes: tuple[str, ...]

    @property
    def padding(self) -> float:
        """How many times larger the padded buffer is; 1 without padding."""
        return self.padded / self.elements if self.elements > 0 else 1.0

    @property
    def wasted(self) -> int:
        """Bytes of padding in the gathered buffer."""
        return self.gathered - self.gathered * self.elements // self.padded if self.padded > 0 else 0


def members(plan: UnitPlan) -> list[list[Parameter]]:
    """The sharded parameters of each unit, in the order of the model."""
    held: list[list[Parameter]] = [[] for _ in plan.units]
    for p in plan.parameters:
        if 0 <= p.unit < len(held) and not p.ignored:
            held[p.unit].append(p)
    return held


def sizes(plan: UnitPlan) -> tuple[UnitSize, ...]:
    """One entry per unit."""
    return tuple(_size(plan, held) for held in members(plan))


def padded_rows(p: Parameter, ranks: int) -> int:
    """Elements of a parameter after FSDP2 padded its first dimension to a multiple of `ranks`."""
    if not p.shape or p.shape[0] <= 0 or ranks <= 1:
        return p.elements
    return p.elements // p.shape[0] * -(-p.shape[0] // ranks) * ranks


def item(plan: UnitPlan, p: Parameter) -> int:
    """Bytes of one gathered element; mixed precision casts floating-point parameters alone."""
    return ITEM.get(plan.param_dtype or "", p.item_bytes) if p.dtype in ITEM else p.item_bytes


def _size(plan: UnitPlan, held: list[Parameter]) -> UnitSize:
    ranks = max(1, plan.shard_size)
    elements = sum(p.elements for p in held)
    trained = [p for p in held if p.trainable]
    dtypes = tuple(dict.fromkeys(p.dtype for p in held))
    if plan.api == "fsdp1":
        padded = _flat(plan, held, ranks)
        first = held[0] if held else None
        one = item(plan, first) if first is not None else 0
        kept = first.item_bytes if first is not None else 0
        reduced = ITEM.get(plan.reduce_dtype or "", one) * padded if trained else 0
        return UnitSize(
            elements,
            sum(p.elements for p in trained),
            padded,
            padded * one,
            padded // ranks * kept,
            reduced,
            dtypes,
        )
    rows = [padded_rows(p, ranks) for p in held]
    return UnitSize(
        elements,
        sum(p.elements for p in trained),
        sum(rows),
        sum(n * item(plan, p) for n, p in zip(rows, held, strict=True)),
        sum(n // ranks * p.item_bytes for n, p in zip(rows, held, strict=True)),
        sum(
            n * ITEM.get(plan.reduce_dtype or "", item(plan, p))
            for n, p in zip(rows, held, strict=True)
            if p.trainable
        ),
        dtypes,
    )


def _flat(plan: UnitPlan, held: Iterable[Parameter], ranks: int) -> int:
    """Elements of FSDP1's flat parameter: aligned starts, and a length that the ranks divide."""
    total = 0
    for p in held:
        one = item(plan, p)
        if plan.use_orig_params and one > 0:
            aligned = max(1, ALIGNMENT // one)
            total += -total % aligned
        total += p.elements
    return total + -total % ranks
