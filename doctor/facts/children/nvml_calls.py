"""Calls of the NVML binding, each with an answer that JSON can hold."""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType

from fsdp_doctor.facts.source import Json

Call = Callable[[], object]


def plain(value: object) -> Json:
    """A value as JSON can hold it: structures as objects of their fields, arrays as lists."""
    if isinstance(value, bytes):
        return value.split(b"\0", 1)[0].decode("utf-8", "replace")
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (ctypes.Structure, ctypes.Union)):
        # The binding's own reading decodes strictly and fails on what is no UTF-8.
        read = object.__getattribute__
        return {field[0]: plain(read(value, field[0])) for field in value._fields_}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [plain(v) for v in value]
    if hasattr(value, "__dict__") and vars(value):
        return {str(k): plain(v) for k, v in vars(value).items()}
    return plain(value.value) if hasattr(value, "value") else str(value)


def error_name(error: BaseException) -> str:
    """The exception's name without NVMLError_; a code that the binding has no class for by its number."""
    name = type(error).__name__
    if name == "NVMLError":
        return f"Code{getattr(error, 'value', '')}"
    return "FunctionNotFound" if name == "NVMLLibraryMismatchError" else name.removeprefix("NVMLError_")


def attempt(call: Call) -> Json:
    """The answer of a call, or its error as an answer."""
    try:
        return plain(call())
    except Exception as error:  # one function that fails must not end the others
        return {"error": error_name(error)}


def failed(answer: Json) -> str | None:
    """The error name of an answer, None for a real one."""
    return str(answer["error"]) if isinstance(answer, dict) and set(answer) == {"error"} else None


def key(arguments: Iterable[int]) -> str:
    """The arguments after the handle as the recording format writes them."""
    return json.dumps(list(arguments), separators=(",", ":"))


class Kept:
    """A call whose answer is kept, for a question that depends on it."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.answer: Json = None

    def __call__(self) -> Json:
        """Make the call; never raises."""
        self.answer = attempt(self._call)
        return self.answer


class Nvml:
    """The binding, whatever its version: a function that it lacks answers FunctionNotFound."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def get(self, name: str) -> Callable[..., object]:
        """A function or structure by its name. Raises NVMLError where the binding has none."""
        found: Callable[..., object] | None = getattr(self.module, name, None)
        if found is None:
            raise self.module.NVMLError(self.module.NVML_ERROR_FUNCTION_NOT_FOUND)
        return found

    def call(self, function: str, *args: object) -> object:
        """Call by name. Raises what the binding raises."""
        return self.get(function)(*args)

    def fill(self, function: str, structure: str, *args: object) -> object:
        """Have a function fill a structure of the binding, and answer the structure."""
        filled = self.get(structure)()
        if not isinstance(filled, ctypes.Structure):
            raise TypeError(f"{structure} is no structure")
        self.call(function, *args, ctypes.byref(filled))
        return filled

    def table(self, function: str, handle: object, arguments: Iterable[tuple[int, ...]]) -> Json:
        """The answers by arguments; one error where all fail alike."""
        answers = {key(a): attempt(partial(self.call, function, handle, *a)) for a in arguments}
        names = {failed(a) for a in answers.values()}
        error = names.pop() if len(names) == 1 else None
        return {"args": answers} if error is None else {"error": error}
