"""Inert stand-ins for everything that a pickle names: they keep what the file said and do nothing."""

from __future__ import annotations

import pickle
from typing import NoReturn, cast


class Inert(type):
    """The type of stub classes: a pickle can write neither into them nor into their instances."""

    def __setattr__(cls, name: str, value: object) -> NoReturn:
        """BUILD with a state of slots would come here."""
        raise pickle.UnpicklingError("the pickle sets an attribute of a class")


class Stub(metaclass=Inert):
    """What a call or a construction in the pickle stands for: its name, arguments and state.

    Equal only to itself and never shown by repr: contents may nest two million deep.
    """

    __slots__ = ("args", "items", "keywords", "state")
    stub_name = ""

    args: tuple[object, ...]
    keywords: dict[str, object] | None
    state: object
    items: dict[object, object] | list[object] | None

    def __new__(cls, *args: object, **keywords: object) -> Stub:
        """REDUCE, NEWOBJ, NEWOBJ_EX, INST and OBJ come here."""
        self = object.__new__(cls)
        self.args, self.keywords, self.state, self.items = args, keywords or None, None, None
        return self

    def __init__(self, *args: object, **keywords: object) -> None:
        """Nothing: `__new__` has kept it."""

    def __setstate__(self, state: object) -> None:
        """BUILD."""
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        """SETITEM and SETITEMS of a dictionary's subclass."""
        if not isinstance(self.items, dict):
            self.items = {}
        self.items[key] = value

    def append(self, value: object) -> None:
        """APPEND and APPENDS of a list's subclass."""
        if not isinstance(self.items, list):
            self.items = []
        self.items.append(value)

    def __repr__(self) -> str:
        """The name only."""
        return f"<{name_of(self)[:80]}>"


def stub_class(name: str) -> type[Stub]:
    """A new class that stands for a global of this name; `Stub.stub_name` has it."""
    return cast("type[Stub]", Inert("Stub", (Stub,), {"__slots__": (), "stub_name": name}))


def name_of(value: object) -> str:
    """The dotted name of a stub or a stub class, else ""."""
    if isinstance(value, (Stub, Inert)):
        name: object = getattr(value, "stub_name", "")
        return name if isinstance(name, str) else ""
    return ""


def last_name(value: object) -> str:
    """The last part of that name: "float32", "DTensor"."""
    return name_of(value).rsplit(".", 1)[-1]


def field(value: object, key: str) -> object:
    """A field of a stub's state, which is a dictionary or a pair of one and a dictionary of slots."""
    state = value.state if isinstance(value, Stub) else None
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict) and key in part:
            found: object = part[key]
            return found
    return None


def items_of(value: object) -> dict[object, object]:
    """The items of a dictionary or of a stub of one; empty for anything else."""
    box = value.items if isinstance(value, Stub) else value
    return box if isinstance(box, dict) else {}


def list_of(value: object) -> list[object]:
    """The elements of a list, a tuple or a stub of a list; empty for anything else."""
    box = value.items if isinstance(value, Stub) and value.items is not None else value
    if isinstance(box, Stub) and len(box.args) == 1 and isinstance(box.args[0], (list, tuple)):
        box = box.args[0]
    return list(box) if isinstance(box, (list, tuple)) else []


def numbers(value: object) -> tuple[int, ...] | None:
    """A tuple of non-negative integers such as a shape, else None."""
    if isinstance(value, Stub) and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, (tuple, list)):
        return None
    # A bool is an int in Python and none in a shape.
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in value) or len(value) > 64:
        return None
    return tuple(value)
