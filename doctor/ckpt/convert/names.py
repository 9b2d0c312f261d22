"""Which part of a tree is written, under which names and in which dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fsdp_doctor.ckpt.convert.cast import FLOATS
from fsdp_doctor.ckpt.convert.model import ConvertError, Ordered, Path, TensorLeaf, dotted, put, tensors
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, Kind

WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
Tree = dict[object, object]


@dataclass(frozen=True, slots=True)
class Wish:
    """What to change on the way."""

    strip: str = ""
    add: str = ""
    dtype: str | None = None
    model_only: bool = False


class Names:
    """The model's tensors within a tree."""

    def __init__(self, tree: Tree, index: CheckpointIndex) -> None:
        keys = {t.key for t in index.tensors if t.kind is Kind.MODEL}
        self.missing = set(keys)
        """Keys of the model that the tree does not hold as tensors."""
        root = index.model_root
        self.found: dict[Path, str] = {}
        """Path of each tensor of the model, and its name in the module."""
        for path, _ in tensors(tree):
            key = dotted(path)
            if key not in keys and not (len(path) > 1 and path[0] == "model" and dotted(path[1:]) in keys):
                continue
            self.missing.discard(key if key in keys else dotted(path[1:]))
            name = key.removeprefix(f"{root}.") if root else key
            self.found[path] = name if root or key in keys else dotted(path[1:])
        self.all = frozenset(self.found.values())


def apply(tree: Tree, names: Names, wish: Wish) -> tuple[Tree, Names]:
    """The tree as it is to be written. Raises `ConvertError` where names would meet or none is changed."""
    if wish.model_only:
        tree, kept = {}, tree
        for path, leaf in tensors(kept):
            if path in names.found:
                put(tree, tuple(str(p) for p in path), leaf)
        if not tree:
            raise ConvertError("no tensor of a model is in it")
        if names.missing:
            raise ConvertError(
                f"{min(names.missing)[:100]!a} of the model cannot be written: its parts make no whole tensor"
            )
    if wish.dtype is not None:
        to = wish.dtype
        tree = _mapped(tree, (), lambda path, leaf: _cast(leaf, to) if path in names.found else leaf)
    if not (wish.strip or wish.add):
        return tree, names
    change = {name: _renamed(name, wish) for name in sorted(names.all)}
    if all(old == new for old, new in change.items()):
        raise ConvertError(f"no name begins with {wish.strip!r}: the first is {min(names.all, default='')!a}")
    if len(set(change.values())) < len(change):
        raise ConvertError(f"without {wish.strip!r} two tensors would have one name")
    made = _rename(tree, change, False)
    assert isinstance(made, dict)
    after = Names.__new__(Names)
    after.found = {
        tuple(_element(p, change) for p in path): change[name] for path, name in names.found.items()
    }
    after.all = frozenset(change.values())
    after.missing = set()
    return made, after


def _renamed(name: str, wish: Wish) -> str:
    if wish.strip in WRAPPERS:  # wrappers stand within names, too: a compiled block, a checkpointed layer
        parts = f".{name}".split(f".{wish.strip}")
        name = ".".join(parts)[1:] if len(parts) > 1 else name
    elif wish.strip:
        name = name.removeprefix(wish.strip)
    return wish.add + name


def _cast(leaf: TensorLeaf, to: str) -> TensorLeaf:
    return replace(leaf, to=to) if leaf.dtype in FLOATS and leaf.dtype != to else leaf


def _mapped(tree: Tree, path: Path, change: Callable[[Path, TensorLeaf], TensorLeaf]) -> Tree:
    made = _walk(tree, path, change)
    assert isinstance(made, dict)
    return made


def _walk(value: object, path: Path, change: Callable[[Path, TensorLeaf], TensorLeaf]) -> object:
    if isinstance(value, TensorLeaf):
        return change(path, value)
    if isinstance(value, dict):
        pairs = {k: _walk(v, (*path, k if isinstance(k, int) else str(k)), change) for k, v in value.items()}
        return Ordered(pairs) if isinstance(value, Ordered) else pairs
    if isinstance(value, (list, tuple)):
        inner = [_walk(v, (*path, i), change) for i, v in enumerate(value)]
        return inner if isinstance(value, list) else tuple(inner)
    return value


def _element(step: str | int, change: dict[str, str]) -> str | int:
    """One step of a path: a name, or a name between `state.` or `param_groups.` and a state's name."""
    if isinstance(step, int) or step in change:
        return step if isinstance(step, int) else change[step]
    for root in ("state.", "param_groups."):
        if step.startswith(root):
            name = step[len(root) :]
            while "." in name:
                name = name.rpartition(".")[0]
                if name in change:
                    return root + change[name] + step[len(root) + len(name) :]
    return step


def _rename(value: object, change: dict[str, str], listed: bool) -> object:
    """`listed`: the value is a parameter group's list of names."""
    if isinstance(value, dict):
        pairs = {
            _element(k, change) if isinstance(k, str) else k: _rename(v, change, k == "params")
            for k, v in value.items()
        }
        return Ordered(pairs) if isinstance(value, Ordered) else pairs
    if isinstance(value, (list, tuple)):
        inner = [_rename(v, change, listed) for v in value]
        return inner if isinstance(value, list) else tuple(inner)
    return change.get(value, value) if listed and isinstance(value, str) else value
