"""The units that a wrap plan makes of a model, read off the modules before anything is sharded."""

from __future__ import annotations

from typing import Any

from torch import nn


def describe(model: nn.Module, wrap: set[type[nn.Module]]) -> dict[str, Any]:
    """Units, parameters and buffers. A parameter belongs to the nearest unit around its first place."""
    units: list[dict[str, Any]] = [
        {"name": "", "kind": type(model).__name__, "parent": None, "container": False}
    ]
    unit_of: dict[str, int] = {"": 0}
    seen: set[int] = {id(model)}
    for path, module in model.named_modules():
        if path and type(module) in wrap and id(module) not in seen:
            seen.add(id(module))
            parent = unit_of[_nearest(path.rpartition(".")[0], unit_of)]
            unit_of[path] = len(units)
            container = isinstance(module, (nn.ModuleList, nn.ModuleDict))
            units.append(
                {"name": path, "kind": type(module).__name__, "parent": parent, "container": container}
            )
    return {
        "units": units,
        "parameters": list(_parameters(model, unit_of)),
        "buffers": [[n, list(b.shape), b.numel() * b.element_size()] for n, b in model.named_buffers()],
    }


def _parameters(model: nn.Module, unit_of: dict[str, int]) -> Any:
    places: dict[int, list[tuple[str, Any]]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append((path, parameter))
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
        }


def _nearest(path: str, unit_of: dict[str, int]) -> str:
    while path and path not in unit_of:
        path = path.rpartition(".")[0]
    return path


def repeated(model: nn.Module) -> list[list[Any]]:
    """[class, how many, elements] of blocks that occur at least twice in a list, the largest first."""
    found: dict[str, list[int]] = {}
    for module in model.modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        for child in module:
            name = type(child).__name__
            if type(child).__module__.startswith("torch.nn.modules") and not name.startswith("Transformer"):
                continue
            entry = found.setdefault(name, [0, 0])
            entry[0] += 1
            entry[1] += sum(p.numel() for p in child.parameters())
    return sorted(([n, c, e] for n, (c, e) in found.items() if c > 1), key=lambda row: -row[2])
