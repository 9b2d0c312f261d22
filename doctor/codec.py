"""Frozen dataclasses to JSON values and back; what does not fit its field is an error that names it."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from functools import cache
from typing import TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Reader = Callable[[object], object]


class FormatError(ValueError):
    """A JSON value does not have the form of the type; the message names the field."""


def to_json(value: object) -> object:
    """Dataclasses become objects without fields at their default, tuples arrays, enums their values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {n: to_json(v) for n, default in _defaults(type(value)) if (v := getattr(value, n)) != default}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(v) for v in value]
    return value


def whole_json(value: object) -> object:
    """The same with every field, for readers that know no defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: whole_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): whole_json(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [whole_json(v) for v in value]
    return value.value if isinstance(value, Enum) else value


def from_json(kind: type[T], value: object) -> T:
    """Build a `kind`. Defaults stand in, unknown names are ignored. Raises `FormatError`."""
    try:
        return cast("T", _reader(cast("Hashable", kind))(value))
    except FormatError as error:
        raise FormatError(f"{kind.__name__}{error}") from None


@cache
def _defaults(kind: Hashable) -> tuple[tuple[str, object], ...]:
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    return tuple((f.name, _default(f)) for f in fields)


def _default(field: dataclasses.Field[object]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@cache
def _reader(kind: Hashable) -> Reader:
    """The function that reads one type; made once, since working a type out costs more than a value."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin is tuple:
        return _array(args)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(args[0], args[1])
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _object(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    if kind in (str, int, float, bool):
        return _scalar(cast("type[object]", kind))
    raise TypeError(f"no JSON form for {kind}")


def _union(args: tuple[Hashable, ...]) -> Reader:
    none = cast("Hashable", type(None))
    optional = none in args
    readers = [_reader(a) for a in args if a is not none]

    def read(value: object) -> object:
        if value is None and optional:
            return None
        for reader in readers[:-1]:
            try:
                return reader(value)
            except FormatError:
                continue
        return readers[-1](value)

    return read


def _array(args: tuple[Hashable, ...]) -> Reader:
    if args[-1] is Ellipsis:
        reader = _reader(args[0])

        def many(value: object) -> object:
            if not isinstance(value, (list, tuple)):
                raise FormatError(f": found {type(value).__name__}, expected an array")
            return tuple(_within(f"[{i}]", reader, v) for i, v in enumerate(value))

        return many
    readers = [_reader(a) for a in args]

    def fixed(value: object) -> object:
        if not isinstance(value, (list, tuple)) or len(value) != len(readers):
            raise FormatError(f": expected an array of {len(readers)}")
        return tuple(_within(f"[{i}]", r, v) for i, (r, v) in enumerate(zip(readers, value, strict=True)))

    return fixed


def _mapping(key: object, item: Hashable) -> Reader:
    reader = _reader(item)

    def read(value: object) -> object:
        if not isinstance(value, Mapping):
            raise FormatError(f": found {type(value).__name__}, expected an object")
        if key is item is str and _plain(value):
            return dict(value)
        return {_key(key, k): _within(f".{k}", reader, v) for k, v in value.items()}

    return read


def _plain(texts: Mapping[str, object]) -> bool:
    """Whether all values are ASCII texts."""
    return all(type(v) is str and v.isascii() for v in texts.values()) and all(map(str.isascii, texts))


def _key(kind: object, key: str) -> object:
    if kind is not int:
        return _text(key)
    if not (key.isascii() and key.isdigit() and len(key) < 16):
        raise FormatError(f": the name {key[:40]!r} is no number")
    return int(key)


def _object(kind: type[object]) -> Reader:
    hints = get_type_hints(kind)
    readers = [(n, _reader(hints[n]), d is dataclasses.MISSING) for n, d in _defaults(cast("Hashable", kind))]

    def read(value: object) -> object:
        if not isinstance(value, Mapping):
            raise FormatError(f": found {type(value).__name__}, expected an object")
        made = {}
        for name, reader, needed in readers:
            if name in value:
                made[name] = _within(f".{name}", reader, value[name])
            elif needed:
                raise FormatError(f": {name} is missing")
        return kind(**made)

    return read


def _enum(kind: type[Enum]) -> Reader:
    members = {m.value: m for m in kind}

    def read(value: object) -> object:
        found = members.get(value) if isinstance(value, str) else None
        if found is None:
            raise FormatError(f": {str(value)[:40]!r} is no {kind.__name__}")
        return found

    return read


def _scalar(kind: type[object]) -> Reader:
    def read(value: object) -> object:
        if type(value) is kind:
            return _text(value) if isinstance(value, str) else value
        if kind is float and type(value) is int and abs(value) < 1 << 1000:
            return float(value)
        raise FormatError(f": found {type(value).__name__}, expected {kind.__name__}")

    return read


def _text(value: str) -> str:
    """The text with "?" for halves of characters, which nothing could write: names of files may hold them."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _within(place: str, reader: Reader, value: object) -> object:
    try:
        return reader(value)
    except FormatError as error:
        raise FormatError(f"{place}{error}") from None
