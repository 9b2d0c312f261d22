"""Write pickles by their opcodes: names of real classes, without importing one of them."""

from __future__ import annotations

import struct

from fsdp_doctor.ckpt.convert.model import ConvertError, Named

MARK, STOP = b"(", b"."
DEPTH = 200


class Pickle:
    """A pickle under construction. Names are written once and then referred to."""

    def __init__(self, protocol: int = 2) -> None:
        self.out = bytearray(b"\x80" + bytes([protocol]))
        self._names: dict[str, int] = {}

    def name(self, module: str, name: str) -> None:
        """A class or function."""
        known = self._names.get(f"{module} {name}")
        if known is not None:
            self.out += b"h" + bytes([known]) if known < 256 else b"j" + struct.pack("<I", known)
            return
        self.out += b"c" + f"{module}\n{name}\n".encode()
        number = self._names[f"{module} {name}"] = len(self._names)
        self.out += b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)

    def text(self, value: str) -> None:
        """A text; undecodable bytes of the source are surrogates."""
        raw = value.encode("utf-8", "surrogatepass")
        self.out += b"X" + struct.pack("<I", len(raw)) + raw

    def number(self, value: int) -> None:
        """An integer."""
        if 0 <= value < 256:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 65536:
            self.out += b"M" + struct.pack("<H", value)
        elif -(1 << 31) <= value < 1 << 31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            if len(raw) > 255:
                raise ConvertError("a whole number of more than 255 bytes")
            self.out += b"\x8a" + bytes([len(raw)]) + raw

    def numbers(self, values: tuple[int, ...]) -> None:
        """A tuple of integers."""
        if len(values) > 3:
            self.out += MARK
        for value in values:
            self.number(value)
        self.out += (b")", b"\x85", b"\x86", b"\x87", b"t")[min(len(values), 4)]

    def size(self, shape: tuple[int, ...]) -> None:
        """A torch.Size."""
        self.name("torch", "Size")
        self.numbers(shape)
        self.out += b"\x85R"

    def truth(self, value: bool) -> None:
        """True or False."""
        self.out += b"\x88" if value else b"\x89"

    def begin(self, module: str, name: str) -> None:
        """A dataclass; its fields follow as pairs, then `end`."""
        self.name(module, name)
        self.out += b")\x81}("

    def end(self) -> None:
        """Set the fields that were written since `begin`."""
        self.out += b"ub"

    def ordered(self) -> None:
        """An empty OrderedDict."""
        self.name("collections", "OrderedDict")
        self.out += b")R"

    def value(self, value: object, key: str, depth: int = 0) -> None:
        """A plain value. Raises `ConvertError` for what is none; `key` names it then."""
        if depth > DEPTH:
            raise ConvertError(f"{key[:100]!a} nests too deep")
        if value is None:
            self.out += b"N"
        elif isinstance(value, bool):
            self.truth(value)
        elif isinstance(value, int):
            self.number(value)
        elif isinstance(value, float):
            self.out += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            self.text(value)
        elif isinstance(value, bytes):
            self.name("_codecs", "encode")
            self.text(value.decode("latin1"))
            self.text("latin1")
            self.out += b"\x86R"
        elif isinstance(value, (list, tuple)):
            self.out += b"](" if isinstance(value, list) else MARK
            for inner in value:
                self.value(inner, key, depth + 1)
            self.out += b"e" if isinstance(value, list) else b"t"
        elif isinstance(value, set):
            self.name("__builtin__", "set")
            self.value(list(value), key, depth + 1)
            self.out += b"\x85R"
        elif isinstance(value, Named):
            self.named(value, key, depth)
        elif isinstance(value, dict):
            self.mapping(value, key, depth)
        else:
            self.other(value, key)

    def mapping(self, value: dict[object, object], key: str, depth: int) -> None:
        """A dictionary, or an OrderedDict."""
        from fsdp_doctor.ckpt.convert.model import Ordered

        if isinstance(value, Ordered):
            self.ordered()
        else:
            self.out += b"}"
        self.out += MARK
        for name, inner in value.items():
            self.value(name, key, depth + 1)
            self.value(inner, f"{key}.{name}" if key else str(name), depth + 1)
        self.out += b"u"

    def named(self, value: Named, key: str, depth: int) -> None:
        """A dtype, a device."""
        module, _, name = value.name.rpartition(".")
        self.name(module, name)
        if value.arguments is not None:
            self.value(value.arguments, key, depth + 1)
            self.out += b"R"

    def other(self, value: object, key: str) -> None:
        """What is no plain value: refused here."""
        raise ConvertError(
            f"{key[:100]!a} holds {getattr(value, 'name', type(value).__name__)}, no plain value"
        )

    def done(self) -> bytes:
        """The whole pickle."""
        return bytes(self.out + STOP)
