"""Pickles of plain data: dict, list, tuple, str, bytes, int, float, bool and None; no class, ever.

`load` uses C's unpickler with a `find_class` that refuses. A pickle that was cut is read again by `salvage`,
a small machine for the opcodes of plain data, which keeps what had been built when the bytes ended.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import struct


class Refused(Exception):
    """The pickle asks for a class, a function or an opcode that plain data does not need."""


class Cut(Exception):
    """The pickle ends before its data does."""


class Plain(pickle.Unpickler):
    """C's unpickler, which builds no class and follows no reference to the outside."""

    def find_class(self, module: str, name: str) -> object:
        """Refuse it."""
        raise Refused(f"it asks for {module}.{name}"[:200])

    def persistent_load(self, pid: object) -> object:
        """Refuse it."""
        raise Refused("it refers to data outside of itself")


def load(data: bytes) -> object:
    """The object of a pickle. Raises `Refused`, or `Cut` for anything that is not a whole pickle."""
    try:
        return Plain(io.BytesIO(data)).load()
    except Refused:
        raise
    except MemoryError:
        raise
    except Exception as error:  # truncated or corrupt: the unpickler raises whatever it stumbled over
        raise Cut(f"{type(error).__name__}: {error}"[:200]) from None


MARK = object()
"""Stands on the stack where a container's items begin."""
_FIXED = {
    b"N": None,
    b"\x88": True,
    b"\x89": False,
}
_NUMBERS = {b"K": "<B", b"M": "<H", b"J": "<i", b"G": ">d"}
_TEXTS = {b"X": "<I", b"\x8c": "<B", b"\x8d": "<Q", b"T": "<I", b"U": "<B"}
_BYTES = {b"B": "<I", b"C": "<B", b"\x8e": "<Q", b"\x96": "<Q"}
_PUTS = {b"q": "<B", b"r": "<I"}
_GETS = {b"h": "<B", b"j": "<I"}


class Machine:
    """Runs opcodes of plain data until STOP or the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0
        self.stack: list[object] = []
        self.memo: dict[int, object] = {}

    def _take(self, count: int) -> bytes:
        part = self._data[self.at : self.at + count]
        if len(part) < count:
            raise Cut("the bytes end")
        self.at += count
        return part

    def _number(self, form: str) -> int:
        value: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return value

    def step(self) -> bool:
        """Run one opcode; false at STOP."""
        code = self._take(1)
        if code == b".":
            return False
        self._run(code)
        return True

    def _run(self, code: bytes) -> None:
        stack = self.stack
        if code in _FIXED:
            stack.append(_FIXED[code])
        elif code in _NUMBERS:
            stack.append(self._number(_NUMBERS[code]))
        elif code in _TEXTS:
            stack.append(self._take(self._number(_TEXTS[code])).decode("utf-8", "replace"))
        elif code in _BYTES:
            stack.append(self._take(self._number(_BYTES[code])))
        elif code in (b"\x8a", b"\x8b"):
            count = self._number("<B" if code == b"\x8a" else "<i")
            if not 0 <= count <= 255:
                raise Refused("a number of more than 255 bytes")
            stack.append(int.from_bytes(self._take(count), "little", signed=True))
        elif code in _PUTS:
            self.memo[self._number(_PUTS[code])] = stack[-1]
        elif code == b"\x94":
            self.memo[len(self.memo)] = stack[-1]
        elif code in _GETS:
            stack.append(self.memo[self._number(_GETS[code])])
        else:
            self._build(code)

    def _build(self, code: bytes) -> None:
        stack = self.stack
        if code == b"\x80":
            self._take(1)
        elif code == b"\x95":
            self._take(8)
        elif code == b"(":
            stack.append(MARK)
        elif code == b"}":
            stack.append({})
        elif code == b"]":
            stack.append([])
        elif code == b")":
            stack.append(())
        elif code in (b"\x85", b"\x86", b"\x87"):
            count = code[0] - 0x84
            stack[-count:] = [tuple(stack[-count:])]
        elif code == b"t":
            items = self._marked()
            stack.append(tuple(items))
        elif code == b"a":
            item = stack.pop()
            _fill(stack[-1], [item])
        elif code == b"s":
            pair = [stack.pop(-2), stack.pop()]
            _fill(stack[-1], pair)
        elif code in (b"e", b"u"):
            items = self._marked()
            _fill(stack[-1], items)
        else:
            raise Refused(f"opcode {code!r} is not one of plain data")

    def _marked(self) -> list[object]:
        stack = self.stack
        at = len(stack) - 1
        while stack[at] is not MARK:
            at -= 1
        items = stack[at + 1 :]
        del stack[at:]
        return items

    def unwind(self) -> object:
        """The outermost object, with all that was under construction put where it belongs."""
        stack = self.stack
        while len(stack) > 1:
            if MARK in stack[1:]:
                items = self._marked()
                if stack:
                    _fill(stack[-1], items)
            else:
                items = stack[1:]
                del stack[1:]
                _fill(stack[0], items)
        return stack[0] if stack else None


def _fill(target: object, items: list[object]) -> None:
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, dict):
        for key, value in zip(items[::2], items[1::2], strict=False):
            if type(key) in (str, int):
                target[key] = value


def salvage(data: bytes) -> object:
    """What a cut pickle held up to where it ends. Raises `Refused` as `load` does, `Cut` if there is
    nothing.
    """
    machine = Machine(data)
    with contextlib.suppress(Cut, IndexError, KeyError, struct.error):
        while machine.step():
            pass
    found = machine.unwind()
    if not isinstance(found, (dict, list)):
        raise Cut("nothing can be read")
    return found
