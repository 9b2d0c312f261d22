"""What makes the peak as far as a change of the program would take it away: the loss, scores, activations.

Each is found by what the replay noted of tensors (operator, module, size, phase), and what it costs is the
peak of the same events without its tensors: another moment may be nearly as high.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fsdp_doctor.memory.events import ALLOCATE, FREE, MARK, USED, WAITED, EventList
from fsdp_doctor.memory.simulate import Living, simulate
from fsdp_doctor.subjects.memory import Cause

LOSS = ("log_softmax", "nll_loss", "cross_entropy", "logsumexp")
SCORES = ("aten::_softmax", "aten::_safe_softmax")
PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::matmul")
"""Products of queries and keys: in batches, one per head. A router's or a classifier's scores are no such."""
LOGITS = 2
"""Tensors of the logits' size that come before the loss: in float32, and as they came."""
SHARE = 0.1
"""Part of the peak from which a cause is looked at: each costs a simulation."""
BLOCK = re.compile(r"(.*?\.)?\d+(?=\.|\Z)")
"""A path up to the first number: a block of a list of blocks."""


def causes(
    events: EventList, held: Sequence[Living], activations: Mapping[int, bool], peak: int
) -> tuple[Cause, ...]:
    """Those that hold a tenth of the peak or more, by what they hold.

    `held` lives at the peak; `activations` says of its blocks which were made in forward for backward.
    """
    found: list[Cause] = []
    for name, some in (("loss", _of_the_loss(held)), ("scores", _scores(events, held))):
        if sum(b.size for b in some) >= SHARE * peak:
            places = (
                {b.module: _sizes(b.size) for b in some if b.operator in SCORES} if name == "scores" else {}
            )
            found.append(_cause(name, events, some, places))
    kept = [b for b in held if activations.get(b.block)]
    if sum(b.size for b in kept) >= SHARE * peak:
        found.append(_activations(events, kept))
    return tuple(sorted(found, key=lambda c: -c.bytes))


def block_of(module: str) -> str:
    """The block that a module is in, such as layers.3; empty outside of blocks."""
    found = BLOCK.match(module)
    return found[0] if found is not None else ""


def _of_the_loss(held: Sequence[Living]) -> list[Living]:
    """What the loss makes, and logits, which have the size of it: as they came, and in float32."""
    made = [b for b in held if any(word in b.operator for word in LOSS)]
    if not made:
        return []
    one = max(b.size for b in made)
    numbers = {b.block for b in made}
    alike: dict[tuple[str, int], list[Living]] = {}
    for b in held:
        if b.block not in numbers and b.size in (one, one // 2):
            alike.setdefault((b.operator, b.size), []).append(b)
    return [*made, *(b for group in alike.values() if len(group) <= LOGITS for b in group)]


def _scores(events: EventList, held: Sequence[Living]) -> list[Living]:
    """Results of the softmax of attention, and what has their size in the same modules."""
    made = [b for b in held if b.operator in SCORES and b.module]
    if not made:
        return []
    products = _products(events)
    made = [b for b in made if products.get(b.module, frozenset()) & _sizes(b.size)]
    sizes = {b.module: _sizes(b.size) for b in made}
    return [b for b in held if b.size in sizes.get(b.module, ())]


def _sizes(n: int) -> set[int]:
    """Of as many elements in another precision."""
    return {n, 2 * n, n // 2}


def _products(events: EventList) -> dict[str, set[int]]:
    """Sizes of the batched products of each module."""
    found: dict[str, set[int]] = {}
    numbers = {i for i, name in enumerate(events.operator_names) if name in PRODUCTS}
    for kind, _, size, _, operator, module in events.rows():
        if kind == ALLOCATE and operator in numbers:
            found.setdefault(events.module_names[module], set()).add(size)
    return found


def _cause(name: str, events: EventList, some: Sequence[Living], places: Mapping[str, set[int]]) -> Cause:
    """`places`: sizes that are not made in these modules either, whoever makes them."""
    keys = {(b.operator, b.module, b.size) for b in some}
    for kind, _, size, _, operator, module in events.rows() if places else ():
        where = events.module_names[module]
        if kind == ALLOCATE and size in places.get(where, ()):
            keys.add((events.operator_names[operator], where, size))
    return Cause(
        name,
        sum(b.size for b in some),
        len(some),
        tuple(dict.fromkeys(b.module for b in some if b.module)),
        without(events, keys),
    )


def _activations(events: EventList, kept: Sequence[Living]) -> Cause:
    """What forward keeps for backward; checkpointed blocks have those of one at a time."""
    blocks = tuple(dict.fromkeys(b for b in (block_of(k.module) for k in kept) if b))
    keys = {(k.operator, k.module, k.size) for k in kept if block_of(k.module) in blocks[1:]}
    inside = [k for k in kept if block_of(k.module)] if blocks else list(kept)
    return Cause(
        "activations",
        sum(k.size for k in inside),
        len(inside),
        blocks,
        without(events, keys, "forward") if keys else None,
    )


def without(events: EventList, keys: set[tuple[str, str, int]], phase: str = "") -> int:
    """The highest allocated bytes if tensors of these operators, modules and sizes were not made.

    `phase`: only those of this phase are left out.
    """
    gone: set[int] = set()
    rows: list[int] = []
    now = ""
    for row, (kind, block, size, _, operator, module) in enumerate(events.rows()):
        if kind == MARK:
            now = events.operator_names[operator]
        elif (
            kind == ALLOCATE
            and (not phase or now == phase)
            and (events.operator_names[operator], events.module_names[module], size) in keys
        ):
            gone.add(block)
        if kind == WAITED or (kind in (ALLOCATE, FREE, USED) and block in gone):
            continue
        rows.append(row)
    return simulate(events.of_rows(rows)).peak
