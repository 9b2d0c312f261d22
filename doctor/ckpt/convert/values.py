"""What a pickle of the source holds, as a tree that can be written again."""

from __future__ import annotations

from collections.abc import Callable

from fsdp_doctor.ckpt.convert.model import ConvertError, Named, Opaque, Ordered
from fsdp_doctor.ckpt.limits import DEPTH, NODES
from fsdp_doctor.ckpt.stub import Inert, Stub, last_name, name_of
from fsdp_doctor.tables.torch_dtypes import ITEM_BITS

SCALARS = (int, float, bool, str, bytes, type(None))
Tensor = Callable[[Stub], object]
"""Makes a leaf of a stub; None where it is no tensor."""


class Tree:
    """Turns a pickled value into a tree, within bounds."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._nodes = 0

    def of(self, value: object, depth: int = 0) -> object:
        """The value with stubs made into leaves. Raises `ConvertError` for one that has no end."""
        self._nodes += 1
        if depth > DEPTH or self._nodes > NODES:
            raise ConvertError("values that nest too deep, or too many of them")
        if isinstance(value, SCALARS):
            return value
        if isinstance(value, dict):
            return {self._key(k): self.of(v, depth + 1) for k, v in value.items()}
        if isinstance(value, list):
            return [self.of(v, depth + 1) for v in value]
        if isinstance(value, tuple):
            return tuple(self.of(v, depth + 1) for v in value)
        if isinstance(value, set) and all(isinstance(v, SCALARS) for v in value):
            return value
        if isinstance(value, Stub):
            return self._stub(value, depth)
        name = name_of(value)
        if isinstance(value, Inert) and name.startswith("torch.") and last_name(value) in ITEM_BITS:
            return Named(name)
        return Opaque(name or type(value).__name__)

    def _key(self, key: object) -> object:
        if not isinstance(key, (str, int)):
            raise ConvertError(f"a dictionary with a key of type {name_of(key) or type(key).__name__}")
        return key

    def _stub(self, value: Stub, depth: int) -> object:
        name = name_of(value)
        if name == "collections.OrderedDict" and not value.args:
            items = value.items if isinstance(value.items, dict) else {}
            return Ordered((self._key(k), self.of(v, depth + 1)) for k, v in items.items())
        if name == "_codecs.encode" and len(value.args) == 2 and isinstance(value.args[0], str):
            try:
                return value.args[0].encode("latin1")
            except UnicodeEncodeError:
                return Opaque(name)
        if name == "torch.device" and all(isinstance(a, (str, int)) for a in value.args):
            return Named(name, tuple(value.args))
        if name in ("builtins.bytearray", "__builtin__.bytearray") and not value.args:
            return Opaque(name)
        found = self._tensor(value)
        return Opaque(name) if found is None else found
