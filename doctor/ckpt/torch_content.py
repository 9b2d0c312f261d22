"""The dictionary in a torch.save file, flattened to keys as DCP and the loaders spell them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fsdp_doctor.ckpt.draft import EntryDraft
from fsdp_doctor.ckpt.limits import DEPTH, KEY_LENGTH, KEYS, NODES, TEXT
from fsdp_doctor.ckpt.pickled_tensor import Pickled, Storage, pickled_tensor, storage_of
from fsdp_doctor.ckpt.stub import Stub, last_name, name_of
from fsdp_doctor.subjects.checkpoint_state import Plain

Path = tuple[str, ...]
ELEMENTS = 200_000
"""Longest list of plain values that is kept, such as the parameters of a group."""
SCALARS = (int, float, bool, str, type(None))


@dataclass(slots=True)
class Content:
    """What one file holds."""

    tensors: list[tuple[Path, Pickled]] = field(default_factory=list)
    entries: list[EntryDraft] = field(default_factory=list)
    storages: dict[str, Storage] = field(default_factory=dict)
    top: str = ""
    """Type of the outermost object."""
    cut: bool = False


def content_of(value: object) -> Content:
    """Flatten what a pickle holds."""
    found = Content(top=_type(value))
    for path, leaf in _leaves(value, found):
        tensor = pickled_tensor(leaf)
        if tensor is not None:
            found.tensors.append((path, tensor))
            for piece in tensor.pieces:
                if piece.storage is not None:
                    _keep(found.storages, piece.storage)
            continue
        bare = storage_of(leaf)
        if bare is not None:
            _keep(found.storages, bare[0])
        found.entries.append(entry_of(path, leaf))
    return found


def _keep(storages: dict[str, Storage], storage: Storage) -> None:
    known = storages.get(storage.key)
    if known is None or known.bytes < storage.bytes:
        storages[storage.key] = storage


def key_of(path: Path) -> str:
    """The flat key."""
    return ".".join(path)[:KEY_LENGTH]


def entry_of(path: Path, leaf: object) -> EntryDraft:
    """A value that is no tensor. Objects are told by their class alone."""
    entry = EntryDraft(key_of(path), path, type=_type(leaf), value_read=True)
    entry.value = plain(leaf)
    if (
        isinstance(leaf, (list, tuple))
        and len(leaf) <= ELEMENTS
        and all(isinstance(v, SCALARS) for v in leaf)
    ):
        entry.elements = tuple(plain(v) for v in leaf)
    return entry


def plain(value: object) -> Plain:
    """A number, text or truth value; None for anything else. Texts are cut, numbers bounded."""
    if isinstance(value, str):
        return value[:TEXT]
    if type(value) is int:
        return value if abs(value) < 1 << 63 else None
    if isinstance(value, (bool, float)):
        return value
    if isinstance(value, Stub) and last_name(value) == "scalar" and name_of(value).startswith("numpy"):
        return None
    return None


def _type(value: object) -> str:
    if isinstance(value, Stub):
        return name_of(value)[:KEY_LENGTH]
    named = name_of(value)
    return f"class {named}"[:KEY_LENGTH] if named else type(value).__name__


def _leaves(top: object, found: Content) -> Iterator[tuple[Path, object]]:
    """All values that hold no others, with their paths, without recursion and each box once."""
    seen: set[int] = set()
    nodes = 0
    stack: list[tuple[Path, object]] = [((), top)]
    while stack:
        path, value = stack.pop()
        nodes += 1
        if nodes > NODES or len(found.tensors) + len(found.entries) > KEYS:
            found.cut = True
            return
        inner = _inner(value)
        if inner is None or len(path) >= DEPTH:
            found.cut |= len(path) >= DEPTH
            if path or inner is None:
                yield path, value
            continue
        if id(value) in seen:
            continue  # shared or endless
        seen.add(id(value))
        children = [((*path, _text(key)), child) for key, child in inner()]
        if not children:
            yield path, value
        stack.extend(reversed(children))


def _text(key: object) -> str:
    """A key's text; the key may be any object of the pickle."""
    if isinstance(key, str):
        return key[:KEY_LENGTH]
    if type(key) is int:
        return str(key) if abs(key) < 1 << 63 else "int"
    return f"<{_type(key)[:80]}>"


def _inner(value: object) -> Callable[[], Iterator[tuple[object, object]]] | None:
    """The values in a box; None where it is a leaf."""
    if isinstance(value, Stub):
        if isinstance(value.items, dict):
            box = value.items
            return lambda: iter(box.items())
        if pickled_tensor(value) is None and last_name(value) in ("OrderedDict", "defaultdict"):
            return lambda: iter(())
        return None
    if isinstance(value, dict):
        return lambda: iter(value.items())
    if isinstance(value, (list, tuple)) and any(not isinstance(v, SCALARS) for v in value):
        return lambda: iter(enumerate(value))
    return None
