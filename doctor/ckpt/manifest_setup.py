"""How a training run is set up, asked of its own objects: API, strategy, wrapping, mesh, dtypes, order."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Protocol, cast

from fsdp_doctor.subjects.checkpoint_manifest import Manifest


class _Module(Protocol):
    def named_modules(self) -> Iterator[tuple[str, object]]: ...
    def named_parameters(self) -> Iterator[tuple[str, object]]: ...


def ranks() -> tuple[int, int | None]:
    """Own rank and world size: of torch.distributed where it is in use, else of the launcher's variables."""
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return torch.get_rank(), torch.get_world_size()
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "")
    return int(rank) if rank.isdigit() else 0, int(size) if size.isdigit() else None


def described(model: object, optimizer: object) -> Manifest:
    """What model and optimizer tell; fields of what is None stay empty."""
    torch = sys.modules.get("torch")
    version = str(torch.__version__) if torch is not None else None
    name = type(optimizer).__name__ if optimizer is not None else None
    if model is None:
        return Manifest(torch=version, optimizer=name)
    module = cast("_Module", model)
    units = [m for _, m in module.named_modules() if _unit(m)]
    mesh, mesh_names = _mesh(module, units)
    api = _api(model, units, mesh)
    return Manifest(
        api=api,
        strategy=_strategy(units, api, mesh),
        mesh=mesh,
        mesh_names=mesh_names,
        wrap=tuple(sorted({_inner(u) for u in units if u is not model})),
        use_orig_params=_flag(units[0], "_use_orig_params") if units and api != "fsdp2" else None,
        torch=version,
        optimizer=name,
        parameters=_order(module, optimizer),
        extra=_dtypes(units),
    )


def _names(value: object) -> tuple[str, ...]:
    return tuple(c.__name__ for c in type(value).__mro__)


def _unit(module: object) -> bool:
    return "FSDPModule" in _names(module) or "FullyShardedDataParallel" in _names(module)


def _inner(module: object) -> str:
    """The class that was wrapped: fully_shard makes FSDPBlock of Block, FSDP1 keeps the module within."""
    if "FSDPModule" in _names(module):
        own = next(c for c in type(module).__mro__[1:] if c.__name__ != "FSDPModule")
        return own.__name__
    return type(getattr(module, "module", module)).__name__


def _mesh(module: _Module, units: list[object]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    for _, parameter in module.named_parameters():
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            return _shape(mesh)
    for unit in units:
        mesh = getattr(unit, "_device_mesh", None)
        if mesh is not None:
            return _shape(mesh)
    return (), ()


def _shape(mesh: object) -> tuple[tuple[int, ...], tuple[str, ...]]:
    shape = getattr(mesh, "shape", ())
    names = getattr(mesh, "mesh_dim_names", None) or ()
    return tuple(int(n) for n in shape), tuple(str(n) for n in names)


def _api(model: object, units: list[object], mesh: tuple[int, ...]) -> str:
    if units:
        if any("FSDPModule" in _names(u) for u in units):
            return "fsdp2"
        return "fsdp1_mesh" if mesh else "fsdp1"
    return "ddp" if "DistributedDataParallel" in _names(model) else "plain"


def _strategy(units: list[object], api: str, mesh: tuple[int, ...]) -> str | None:
    if not units:
        return None
    if api != "fsdp2":
        name = getattr(getattr(units[0], "sharding_strategy", None), "name", None)
        return str(name) if name else None
    root = getattr(units[0], "_get_fsdp_state", lambda: None)()
    info = getattr(getattr(root, "_fsdp_param_group", None), "mesh_info", None)
    hybrid = "HSDP" in type(info).__name__ if info is not None else len(mesh) > 1
    return "HYBRID_SHARD" if hybrid else "FULL_SHARD"


def _flag(unit: object, name: str) -> bool | None:
    value = getattr(unit, name, None)
    return value if isinstance(value, bool) else None


def _dtypes(units: list[object]) -> Mapping[str, str]:
    """Dtypes of mixed precision."""
    if not units:
        return {}
    unit = units[0]
    policy = getattr(unit, "mixed_precision", None)
    state = getattr(unit, "_get_fsdp_state", None)
    if state is not None:
        policy = getattr(state(), "_mp_policy", None)
    found: dict[str, str] = {}
    for name in ("param_dtype", "reduce_dtype", "output_dtype", "buffer_dtype"):
        value = getattr(policy, name, None)
        if value is not None:
            found[name] = str(value).removeprefix("torch.")
    return found


def _order(module: _Module, optimizer: object) -> tuple[str, ...]:
    """Names of the parameters in the optimizer's order: what integer keys of its state mean."""
    groups = getattr(optimizer, "param_groups", None)
    if not isinstance(groups, list):
        return ()
    names = {id(p): _clean(n) for n, p in module.named_parameters()}
    found = [names.get(id(p)) for g in groups for p in g["params"]]
    return tuple(n for n in found if n is not None) if all(found) else ()


def _clean(name: str) -> str:
    for wrapper in ("_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module."):
        name = name.replace(wrapper, "")
    return name.removeprefix("module.")
