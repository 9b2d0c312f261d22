"""The units that a wrap plan makes of a model, read off the modules before anything is sharded."""

from __future__ import annotations

import difflib
import gc
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from .blocks import ROWS, held, repeated, runs, suggest
from .recurrent_weights import flattening

CHECKPOINTED, FSDP1 = "_checkpoint_wrapped_module", "_fsdp_wrapped_module"


def plan(model: nn.Module, job: dict[str, Any]) -> dict[str, Any]:
    """Everything about the plan of a job that can be read without running it."""
    wrap, ignored = job.get("wrap") or (), job.get("ignored") or ()
    kinds = {type(m).__name__ for m in model.modules()}
    others = [("--checkpoint-activations", n) for n in job.get("checkpoint") or ()]
    others += [("--ignored-modules", n) for n in ignored]
    named = {type(m) for m in model.modules() if type(m).__name__ in wrap}
    if job.get("api") == "fsdp1":  # its ModuleWrapPolicy asks isinstance
        named |= {type(m) for m in model.modules() if isinstance(m, tuple(named))}
    found = describe(model, named, ignored, again=job.get("api") != "fsdp1")
    units = suggest(model)
    return {
        **found,
        "torch": torch.__version__,
        "params": sum(p.numel() for p in model.parameters()),
        "repeated": repeated(model, units),
        "suggested": units,
        "left": list(_left(model, units, found["parameters"])),
        "missing": [name for name in wrap if name not in kinds],
        "unknown": [[flag, name] for flag, name in others if name not in kinds],
        "near": [[name, near(name, kinds)] for name in (*wrap, *(n for _, n in others)) if name not in kinds],
        "checkpointed": list(_checkpointed(model, job.get("checkpoint") or ())),
        "sharded": list(_sharded(model)),
        "optimizers": list(_optimizers(model)),
        "recurrent": list(flattening(model)),
    }


def near(name: str, kinds: Iterable[str]) -> list[str]:
    """Classes that are called nearly like one that is not there."""
    by_lower = {k.lower(): k for k in kinds}
    return [by_lower[k] for k in difflib.get_close_matches(name.lower(), sorted(by_lower), 2, 0.6)]


def describe(
    model: nn.Module, wrap: set[type[nn.Module]], ignored: Iterable[str] = (), again: bool = True
) -> dict[str, Any]:
    """Units, parameters and buffers. A parameter belongs to the nearest unit around its first place.

    `again`: a module that stands in a second place is the same unit there. FSDP1 wraps the first place alone.
    """
    units: list[dict[str, Any]] = [_unit("", model, None)]
    unit_of: dict[str, int] = {"": 0}
    modules: list[nn.Module] = [model]
    seen: set[int] = {id(model)}
    for path, module in model.named_modules():
        if path and type(module) in wrap and id(module) not in seen:
            seen.add(id(module))
            parent = unit_of[_nearest(path.rpartition(".")[0], unit_of)]
            unit_of[path] = len(units)
            units.append(_unit(path, module, parent))
            modules.append(module)
    of_module = {id(m): i for i, m in enumerate(modules)}
    for path, module in model.named_modules(remove_duplicate=False):
        if again and id(module) in of_module:
            unit_of[path] = of_module[id(module)]  # also where a unit stands a second time
    around = {id(m) for u in units for m in _above(model, str(u["name"]))}
    for unit, module in zip(units, modules, strict=True):
        unit["inner"], unit["deeper"] = _inside(module, seen, around)
    return {
        "units": units,
        "parameters": list(_parameters(model, unit_of, set(ignored))),
        "buffers": [[n, list(b.shape), b.numel() * b.element_size()] for n, b in model.named_buffers()],
    }


def unit_modules(model: nn.Module, units: list[dict[str, Any]]) -> dict[int, int]:
    """Index of each unit by the id of its module."""
    return {id(model.get_submodule(str(u["name"]))): i for i, u in enumerate(units)}


def _unit(path: str, module: nn.Module, parent: int | None) -> dict[str, Any]:
    return {
        "name": path,
        "kind": type(module).__name__,
        "parent": parent,
        "container": not runs(module),
    }


def _above(model: nn.Module, path: str) -> Iterator[nn.Module]:
    """The modules around one."""
    for name in path.split(".")[:-1]:
        yield model
        model = getattr(model, name)
    yield model


def _inside(module: nn.Module, units: set[int], around: set[int]) -> tuple[list[list[Any]], list[list[Any]]]:
    """[class, how many, elements] of the next modules without units, the heaviest first; and of the heaviest
    class of them, the heaviest inside those and so on. Modules around units and lists are looked into.
    """
    rows = _next([module], units, around)
    inner = [_row(kind, found) for kind, found in rows[:6]]
    chain: list[list[Any]] = []
    while rows and len(chain) < 8:
        kind, found = rows[0]
        chain.append(_row(kind, found))
        rows = _next(found, units, around)
    return inner, chain


def _row(kind: str, found: list[nn.Module]) -> list[Any]:
    return [kind, len(found), sum(map(held, found))]


def _next(
    modules: Iterable[nn.Module], units: set[int], around: set[int]
) -> list[tuple[str, list[nn.Module]]]:
    """The next modules inside some, by class, the heaviest first."""
    found: dict[str, list[nn.Module]] = {}
    weight: dict[str, int] = {}

    def visit(inside: nn.Module) -> None:
        for child in inside.children():
            if id(child) in units:
                continue
            if id(child) in around or isinstance(child, ROWS):
                visit(child)
            elif elements := held(child):
                name = type(child).__name__
                found.setdefault(name, []).append(child)
                weight[name] = weight.get(name, 0) + elements

    for module in modules:
        visit(module)
    return sorted(found.items(), key=lambda kind: -weight[kind[0]])


def _parameters(model: nn.Module, unit_of: dict[str, int], ignored: set[str]) -> Iterator[dict[str, Any]]:
    places: dict[int, list[tuple[str, Any]]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append((path, parameter))
    kept_out = {
        id(p) for m in model.modules() if ignored and type(m).__name__ in ignored for p in m.parameters()
    }
    for found in places.values():
        units = [unit_of[_nearest(path.rpartition(".")[0], unit_of)] for path, _ in found]
        parameter = found[0][1]
        yield {
            "name": found[0][0],
            "shape": list(parameter.shape),
            "dtype": str(parameter.dtype).replace("torch.", ""),
            "item_bytes": parameter.element_size(),
            "trainable": bool(parameter.requires_grad),
            "unit": units[0],
            "other_names": [path for path, _ in found[1:]],
            "other_units": sorted({u for u in units[1:] if u != units[0]}),
            "device": parameter.device.type,
            "kind": type(parameter).__name__,
            "contiguous": parameter.is_contiguous(),
            "ignored": id(parameter) in kept_out,
        }


def _nearest(path: str, unit_of: dict[str, int]) -> str:
    while path and path not in unit_of:
        path = path.rpartition(".")[0]
    return path


def _checkpointed(model: nn.Module, classes: Iterable[str]) -> Iterator[str]:
    """Outermost modules under activation checkpointing, by the flag or by the model's own wrapper."""
    names = set(classes)
    inside: list[str] = []
    for path, module in model.named_modules():
        if path and any(path.startswith(p + ".") for p in inside[-1:]):
            continue
        if type(module).__name__ in names or hasattr(module, CHECKPOINTED):
            inside.append(path)
            yield path


def _sharded(model: nn.Module) -> Iterator[str]:
    for path, module in model.named_modules():
        if hasattr(module, FSDP1) or hasattr(module, "set_requires_gradient_sync"):
            yield path


def _left(model: nn.Module, kinds: Iterable[str], parameters: list[dict[str, Any]]) -> Iterator[list[Any]]:
    """[class, how many, elements] of suggested units, counting the elements that the root holds."""
    held_by_root = {p["name"] for p in parameters if p["unit"] == 0 and not p["ignored"]}
    sizes = {id(p): p.numel() for name, p in model.named_parameters() if name in held_by_root}
    for kind in kinds:
        modules = [m for m in model.modules() if type(m).__name__ == kind]
        elements = sum(sizes.get(id(p), 0) for m in modules for p in m.parameters())
        if elements:
            yield [kind, len(modules), elements]


def _optimizers(model: nn.Module) -> Iterator[str]:
    """Optimizers over the model's parameters: those that are its attributes by name, others by class."""
    known = {id(p) for p in model.parameters()}
    others = {
        id(o): o
        for o in gc.get_objects()
        if issubclass(type(o), torch.optim.Optimizer)  # isinstance asks lazy objects for their class
        and any(id(p) in known for group in o.param_groups for p in group["params"])
    }
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            listed = list(value.values()) if isinstance(value, dict) else value
            listed = listed if isinstance(listed, (list, tuple)) else (listed,)
            found = [v for v in listed if id(v) in others]
            for optimizer in found:
                del others[id(optimizer)]
            if found:
                yield f"{path}.{name}".lstrip(".")
    yield from (f"an {type(o).__name__} of the model's function" for o in others.values())
