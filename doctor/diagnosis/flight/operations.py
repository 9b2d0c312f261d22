"""Which operations of different ranks belong together: what has to agree, and what may differ."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fsdp_doctor.subjects.flight import Operation

Key = tuple[object, ...]

_BARRIERS = frozenset({"barrier", "all_reduce_barrier"})
_BY_INPUT = frozenset(
    {
        "all_reduce", "allreduce", "allreduce_coalesced", "all_reduce_coalesced", "reduce", "_reduce_oop",
        "gather", "all_gather", "_all_gather_base", "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced", "all_gather_single", "_allgather_base", "allgather",
        "broadcast", "_broadcast_oop", "reduce_scatter_tensor_coalesced", "_reduce_scatter_base",
        "reduce_scatter_single", "reduce_scatter_tensor", "reduce_scatter",
    }
)  # fmt: skip
_BY_OUTPUT = frozenset(
    {"scatter", "reduce_scatter", "reduce_scatter_tensor_coalesced", "_reduce_scatter_base"}
)
_GATHERS = frozenset({"_all_gather_base", "all_gather_single", "all_gather_into_tensor", "_allgather_base"})
_SCATTERS = frozenset({"_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor"})
_UNEVEN = frozenset({"all_gather_v", "reduce_scatter_v"})
"""Sizes of these differ over ranks, as those of all_to_all do."""
_SYMMETRIC = (
    frozenset({"all_reduce", "allreduce", "allreduce_coalesced"})
    | _BARRIERS
    | _GATHERS
    | _SCATTERS
    | {"all_gather"}
)
"""No rank can be through before all others have come."""


def numel(shapes: Sequence[Sequence[int]]) -> int:
    """Elements of all tensors together."""
    return sum(prod(shape) for shape in shapes)


def is_symmetric(operation: Operation) -> bool:
    """Whether nobody finishes it before everybody has entered it."""
    return operation.name in _SYMMETRIC


def is_coalesced_end(operation: Operation) -> bool:
    """Whether this entry closes a coalesced group and carries its state; the members keep theirs for ever."""
    return operation.name == "coalesced" or operation.name.endswith("_coalesced")


def kind_key(operation: Operation) -> str:
    """What has to be the same first of all."""
    return operation.name


def size_key(operation: Operation) -> Key:
    """Sizes in elements that have to be the same; NCCL knows no shapes."""
    name = operation.name
    key: list[object] = []
    if name in _BY_INPUT:
        key.append(numel(operation.inputs) or numel(operation.outputs))
    if name in _BY_OUTPUT:
        key.append(numel(operation.outputs))
    return tuple(key)


def type_key(operation: Operation) -> Key:
    """Types that have to be the same."""
    if operation.name in _BARRIERS or is_coalesced_end(operation):
        return ()
    if operation.name in ("scatter", "broadcast", "_broadcast_oop"):
        return tuple(sorted(set(operation.output_types or operation.input_types)))
    return tuple(sorted(set(operation.input_types or operation.output_types)))


def match_key(operation: Operation, *, types: bool = True) -> Key:
    """All that has to be the same on every rank of the group."""
    return (kind_key(operation), size_key(operation), type_key(operation) if types else ())


def group_size(operation: Operation) -> int | None:
    """The number of ranks that an operation's own sizes tell."""
    inside, outside = numel(operation.inputs), numel(operation.outputs)
    if operation.name in _GATHERS | {"all_gather"} and inside and outside % inside == 0:
        return outside // inside
    if operation.name in _SCATTERS and outside and inside % outside == 0:
        return inside // outside
    return None


def describe(operation: Operation) -> str:
    """Such as `all_reduce of 1048576 x BFloat16 [1024, 1024]`."""
    sent = operation.name in ("send", "recv")
    pair = f" {operation.source}->{operation.target}" if sent else ""
    shapes = operation.inputs or operation.outputs
    if not shapes or operation.name in _BARRIERS:
        return operation.name + pair
    types = "/".join(dict.fromkeys(operation.input_types or operation.output_types))
    shown = ", ".join(str(list(s)) for s in shapes[:2]) + (
        f" and {len(shapes) - 2} more" if len(shapes) > 2 else ""
    )
    return f"{operation.name}{pair} of {shown}" + (f" {types}" if types else "")
