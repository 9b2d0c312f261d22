"""Read a pickle without importing or calling anything that it names.

The C unpickler does the work, for its speed; what it gets for every global is a stub. It runs in a child
under a memory limit (`memory.py`): twelve bytes of a pickle can ask for 64 GiB.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO, NoReturn, cast

from fsdp_doctor.ckpt.limits import GLOBALS, NAME_BYTES, PICKLE_BYTES
from fsdp_doctor.ckpt.memory import allow
from fsdp_doctor.ckpt.stub import Inert, Stub, name_of, stub_class

READ_ERRORS = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    ImportError,
    RecursionError,
    struct.error,
    OSError,
)
PLAIN: Mapping[str, type] = {"torch.Size": tuple, "builtins.set": set, "__builtin__.set": set}
LARGE = 16 << 20
"""Bytes from which on the unpickler's memo is worth its exact size: it doubles as it grows."""
GETATTR = ("builtins.getattr", "__builtin__.getattr")


class PickleError(Exception):
    """The pickle is damaged, or asks for what no checkpoint needs. The message says what."""

    def __init__(self, message: str, names: Mapping[str, int], memory: bool = False) -> None:
        super().__init__(message)
        self.names = dict(names)
        """The globals that were named before it failed."""
        self.memory = memory


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a pickle holds, with stubs for everything that it names."""

    value: object
    names: Mapping[str, int]
    """Globals -> how often they were named."""


class _Nested(metaclass=Inert):
    """getattr that joins names of stub classes: how protocol 2 spells nested classes and enum members."""

    __slots__ = ("_classes",)

    def __init__(self, classes: dict[str, type[Stub]]) -> None:
        self._classes = classes

    def __call__(self, owner: object, attribute: object) -> type[Stub]:
        """The class that the attribute stands for. Raises `UnpicklingError` for anything else."""
        if not (isinstance(owner, Inert) and isinstance(attribute, str) and name_of(owner)):
            raise pickle.UnpicklingError("getattr of something that is no class")
        return _class_of(f"{name_of(owner)}.{attribute}"[:NAME_BYTES], self._classes)

    def __setstate__(self, state: object) -> NoReturn:
        raise pickle.UnpicklingError("the pickle sets a state of getattr")


class _Unpickler(pickle.Unpickler):
    """Imports nothing and calls nothing from the file."""

    def __init__(
        self,
        file: BinaryIO,
        made: Mapping[str, type],
        watch: Callable[[pickle.Unpickler, str], None] | None,
    ) -> None:
        super().__init__(file, encoding="utf-8", errors="surrogateescape", buffers=())
        self.names: Counter[str] = Counter()
        self._classes: dict[str, type[Stub]] = {}
        self._made = {**PLAIN, **made}
        self._watch = watch

    def find_class(self, module: str, name: str) -> object:
        """A stand-in for a global; nothing is imported."""
        full = f"{module}.{name}"[:NAME_BYTES]
        self.names[full] += 1
        if self._watch is not None:
            self._watch(self, full)
        if len(self.names) > GLOBALS:
            raise pickle.UnpicklingError(f"it names more than {GLOBALS} classes and functions")
        if full in self._made:
            return self._made[full]
        return _Nested(self._classes) if full in GETATTR else _class_of(full, self._classes)

    def persistent_load(self, pid: object) -> Stub:
        """A storage of a torch.save file: ("storage", class, key, device, count) as arguments."""
        return _PERSISTENT(*pid) if isinstance(pid, tuple) else _PERSISTENT(pid)


PERSISTENT = "persistent id"
_PERSISTENT = stub_class(PERSISTENT)


def _class_of(name: str, classes: dict[str, type[Stub]]) -> type[Stub]:
    if name not in classes:
        classes[name] = stub_class(name)
    return classes[name]


def load(
    file: BinaryIO,
    size: int,
    *,
    made: Mapping[str, type] | None = None,
    watch: Callable[[pickle.Unpickler, str], None] | None = None,
    between: Callable[[], None] | None = None,
) -> Loaded:
    """Read one pickle of `size` bytes from an open file.

    `made` gives other stand-ins for some globals, which must be as inert as stubs. `between` is called each
    time that the unpickler reads on. Raises `PickleError`.
    """
    if size > PICKLE_BYTES:
        raise PickleError(f"a pickle of {size} bytes; at most {PICKLE_BYTES} are read", {})
    told = file if between is None else cast("BinaryIO", _Told(file, between))
    unpickler = _Unpickler(told, made or {}, watch)
    try:
        with allow(size):
            if size >= LARGE and isinstance(file, io.BufferedReader):
                _make_room(unpickler, file)
            return Loaded(unpickler.load(), unpickler.names)
    except MemoryError:
        raise PickleError(
            f"reading its {size} bytes takes more memory than they can need", unpickler.names, memory=True
        ) from None
    except READ_ERRORS as error:
        raise PickleError(_words(error), unpickler.names) from None


class _Told:
    """A file that tells when it is read."""

    def __init__(self, file: BinaryIO, between: Callable[[], None]) -> None:
        self._file, self._between = file, between
        self.readline = file.readline
        if hasattr(file, "peek"):
            self.peek = self._peek

    def read(self, size: int = -1) -> bytes:
        """Tell, and read."""
        self._between()
        return self._file.read(size)

    def readinto(self, buffer: bytearray) -> int:
        """Tell, and read; not all files can."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _peek(self, size: int) -> bytes:
        self._between()
        seen: bytes = self._file.peek(size)  # type: ignore[attr-defined]
        return seen


def _make_room(unpickler: pickle.Unpickler, file: io.BufferedReader) -> None:
    """Give the memo as many places as there are MEMOIZE opcodes at most, empty as they are in a new one."""
    began, count = file.tell(), 0
    while part := file.read(1 << 20):
        count += part.count(pickle.MEMOIZE)
    file.seek(began)
    # The C unpickler doubles the index that it is given, keeps the size when it clears, and copies it.
    other = pickle.Unpickler(io.BytesIO(b"\x80\x04Nr" + struct.pack("<I", count // 2 + 1) + b"."))
    other.load()
    other.memo.clear()
    unpickler.memo = other.memo


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())[:160]
    if isinstance(error, EOFError):
        return "it ends too early" + (f": {text}" if text else "")
    return text or type(error).__name__
