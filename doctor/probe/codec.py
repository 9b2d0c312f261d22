"""Frozen dataclasses to JSON values and back; what does not fit its field is an error that names it."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


class FormatError(ValueError):
    """A JSON value does not have the form of the type; the message names the field."""


def to_json(value: object) -> object:
    """Dataclasses become objects, tuples arrays, mappings objects; numbers and text stay."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(v) for v in value]
    return value


def from_json(kind: type[T], value: object) -> T:
    """Build a `kind`. Defaults stand in, unknown names are ignored. Raises `FormatError`."""
    return cast("T", _read(kind, value, kind.__name__))


_HINTS: dict[type[object], dict[str, object]] = {}
"""Resolving a class's annotations costs more than reading a value of it."""


def _hints(kind: type[object]) -> dict[str, object]:
    if kind not in _HINTS:
        _HINTS[kind] = get_type_hints(kind)
    return _HINTS[kind]


def _read(kind: object, value: object, path: str) -> object:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _read(next(a for a in args if a is not type(None)), value, path)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise FormatError(f"{path}: found {type(value).__name__}, expected an array")
        return tuple(_read(args[0], v, f"{path}[{i}]") for i, v in enumerate(value))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise FormatError(f"{path}: found {type(value).__name__}, expected an object")
        return {str(k): _read(args[1], v, f"{path}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _object(kind, value, path)
    return _scalar(kind, value, path)


def _object(kind: type[object], value: object, path: str) -> object:
    if not isinstance(value, Mapping):
        raise FormatError(f"{path}: found {type(value).__name__}, expected an object")
    hints, made = _hints(kind), {}
    for f in dataclasses.fields(kind):  # type: ignore[arg-type]
        if f.name in value:
            made[f.name] = _read(hints[f.name], value[f.name], f"{path}.{f.name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise FormatError(f"{path}: {f.name} is missing")
    return kind(**made)


def _scalar(kind: object, value: object, path: str) -> object:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    wanted = kind.__name__ if isinstance(kind, type) else str(kind)
    raise FormatError(f"{path}: found {type(value).__name__}, expected {wanted}")
