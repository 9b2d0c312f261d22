"""The blocks that a model is built of: what repeats, and which classes would be good units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from torch import nn

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
ROWS = (*CONTAINERS, nn.Sequential)
"""What lists modules that run one after another, and is no block itself."""
UNLIKE = 1.5
"""How many times larger than the smallest the largest is, where they are stages rather than blocks."""
ALIKE = 0.5
"""Part of its neighbours' usual size from which a module of another class is a layer like them."""
TOO_SMALL, TINY = 0.05, 1_000_000
"""Part of the elements, and elements of one, below both of which blocks are not worth units of their own."""


def runs(module: nn.Module) -> bool:
    """Whether the module has a forward; what has none is never called, and nothing would gather it."""
    forward = module.forward
    return getattr(forward, "__func__", forward) is not nn.Module.forward


def repeated(model: nn.Module, units: Iterable[str] | None = None) -> list[list[Any]]:
    """[class, how many, elements] of blocks that repeat or would be units, the largest together first."""
    units = suggest(model) if units is None else units
    kinds = {type(m).__name__ for row in model.modules() if isinstance(row, ROWS) for m in _own(row)}
    kinds.update(units)
    found: dict[str, list[int]] = {}
    for module in model.modules():
        if type(module).__name__ in kinds:
            entry = found.setdefault(type(module).__name__, [0, 0])
            entry[0] += 1
            entry[1] += held(module)
    return sorted(([n, c, e] for n, (c, e) in found.items() if c > 1 or n in units), key=lambda row: -row[2])


def suggest(model: nn.Module) -> list[str]:
    """Classes of blocks to wrap: the outermost that repeat, or those inside where they are stacks of blocks.

    Layers of torch itself are named only where the model has no blocks of its own.
    """
    return _suggested(model, own=True) or _suggested(model, own=False)


def held(module: nn.Module) -> int:
    """Elements of all parameters."""
    return sum(p.numel() for p in module.parameters())


def _suggested(model: nn.Module, own: bool) -> list[str]:
    found: dict[str, list[nn.Module]] = {}
    shared = _tied(model)
    tied = {type(m).__name__ for m in model.modules() if id(m) in shared}  # a plan names classes
    seen: set[int] = set()

    def visit(inside: nn.Module) -> None:
        row = list(_own(inside) if own else _any(inside))
        kept = {id(m) for m in _units(row, isinstance(inside, ROWS), own)}
        for child in inside.children():
            if id(child) in seen:
                continue
            seen.add(id(child))
            if id(child) in kept and type(child).__name__ not in tied:
                found.setdefault(type(child).__name__, []).append(child)
            else:
                visit(child)

    visit(model)
    total = held(model)
    weight = {k: sum(map(held, blocks)) for k, blocks in found.items()}
    kept = [k for k, n in weight.items() if n and (n >= TOO_SMALL * total or n >= TINY * len(found[k]))]
    return sorted(kept, key=lambda k: -weight[k])


def _units(row: list[nn.Module], listed: bool, own: bool) -> Iterator[nn.Module]:
    """Those of a row of siblings that are blocks; in a list they may be of several classes."""
    alike: dict[str, list[nn.Module]] = {}
    for module in row:
        alike.setdefault(type(module).__name__, []).append(module)
    several = [held(m) for blocks in alike.values() if len(blocks) > 1 for m in blocks]
    usual = min(several) if several else median(map(held, row)) if row else 0
    for blocks in alike.values():
        if len(blocks) < 2:
            one = blocks[0]
            if not (listed and own and len(row) > 1 and held(one) >= ALIKE * usual) or _deepest(one):
                continue
        elif _stacks(blocks):
            continue
        yield from blocks


def _stacks(blocks: list[nn.Module]) -> bool:
    """Whether they are stages or towers: as many layers in each as there are of them, or of unlike sizes."""
    sizes = [held(m) for m in blocks]
    deepest = max(_deepest(m) for m in blocks)
    return deepest >= len(blocks) or (deepest > 0 and max(sizes) > UNLIKE * min(sizes))


def _deepest(module: nn.Module) -> int:
    """The most layers of one class that stand side by side within a module; 0 where there are not two."""
    most = 0
    for inside in module.modules():
        number: dict[type[nn.Module], int] = {}
        for child in _own(inside):
            if _is_layer(child):
                number[type(child)] = number.get(type(child), 0) + 1
        most = max(most, *number.values(), 0)
    return most if most > 1 else 0


def _is_layer(module: nn.Module) -> bool:
    """A layer has several matrices and norms its input; an expert, a projection or a head does not."""
    shapes = [p.dim() for p in module.parameters()]
    normed = any(
        inside is not module and own and all(p.dim() == 1 for p in own)
        for inside, own in ((m, list(m.parameters(recurse=False))) for m in module.modules())
    )
    return normed and sum(d > 1 for d in shapes) > 1


def _own(inside: nn.Module) -> Iterator[nn.Module]:
    """Children as `_any` gives them, of classes that are not torch's."""
    for child in _any(inside):
        name = type(child).__name__
        if not type(child).__module__.startswith("torch.nn.modules") or name.startswith("Transformer"):
            yield child


def _any(inside: nn.Module) -> Iterable[nn.Module]:
    """Children, as often as they are listed, that have parameters and are called by their forward."""
    for child in inside._modules.values():
        if child is None or isinstance(child, ROWS) or not runs(child):
            continue
        if any(True for _ in child.parameters()):
            yield child


def _tied(model: nn.Module) -> set[int]:
    """Ids of modules that share a parameter with a place outside them: units of their own would break it."""
    places: dict[int, list[tuple[int, ...]]] = {}

    def visit(module: nn.Module, above: tuple[int, ...]) -> None:
        here = (*above, id(module))
        for p in module._parameters.values():
            if p is not None:
                places.setdefault(id(p), []).append(here)
        for child in module._modules.values():
            if child is not None:
                visit(child, here)

    visit(model, ())
    found: set[int] = set()
    for around in places.values():
        if len(around) > 1:
            found |= set().union(*around) - set(around[0]).intersection(*around[1:])
    return found
