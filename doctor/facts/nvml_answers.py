"""Reads NVML answers in the recording form: values, `{"args": {...}}`, or `{"error": NAME}`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fsdp_doctor.facts.source import Json

Args = tuple[int, ...]


def error_of(answer: Json) -> str | None:
    """The error name of an answer, without NVMLError_ and without the message; None for a real answer."""
    if not isinstance(answer, Mapping) or "error" not in answer:
        return None
    return str(answer["error"]).split(":")[0].removeprefix("NVMLError_").strip() or "Unknown"


def integer(value: Json) -> int | None:
    """A whole number: int, bool, integral float or decimal text; None for anything else."""
    if isinstance(value, str):
        digits = value.strip().removeprefix("-")
        return int(value) if digits.isascii() and digits.isdigit() and len(digits) < 25 else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return int(value) if isinstance(value, int) else None


def text(value: Json) -> str | None:
    """A string that says something; removed values ("redacted") count as no answer."""
    if not isinstance(value, str):
        return None
    clean = value.strip("\x00 \t\r\n")
    return clean if clean and clean != "redacted" else None


def arguments(key: object) -> Args | None:
    """The arguments that a key such as "[4,0]" stands for; None if it is no list of whole numbers."""
    return _arguments(key) if isinstance(key, str) else None


@lru_cache(4096)  # a job's GPUs all have the same keys
def _arguments(key: str) -> Args | None:
    try:
        value = json.loads(key)
    except ValueError:
        return None
    if not isinstance(value, list) or not all(type(v) is int for v in value):
        return None
    return tuple(value)


@dataclass(frozen=True, slots=True)
class Answers:
    """What one GPU, or the system, answered. No method raises, whatever was recorded."""

    raw: Mapping[str, Json]

    def first(self, *functions: str, args: Args | None = None) -> Json:
        """The answer of the first function that gave one; None if none did.

        With `args`, the answer for these arguments after the handle; a plain answer serves too,
        because some wrappers fix the only argument there is.
        """
        for function in functions:
            answer = self.raw.get(function)
            if isinstance(answer, Mapping) and "args" in answer:
                answer = self.by_args(function).get(args) if args is not None else None
            if answer is not None and error_of(answer) is None:
                return answer
        return None

    def integer(self, *functions: str, args: Args | None = None) -> int | None:
        """The first answer that is a whole number."""
        for function in functions:
            value = integer(self.first(function, args=args))
            if value is not None:
                return value
        return None

    def flag(self, *functions: str, args: Args | None = None) -> bool | None:
        """The first whole number as yes or no."""
        value = self.integer(*functions, args=args)
        return None if value is None else value != 0

    def text(self, *functions: str) -> str | None:
        """The first answer that is text."""
        return next((t for f in functions if (t := text(self.first(f))) is not None), None)

    def integers(self, function: str, least: int = 1) -> tuple[int, ...] | None:
        """A list of at least `least` whole numbers."""
        answer = self.first(function)
        if not isinstance(answer, Sequence) or isinstance(answer, str):
            return None
        values = tuple(integer(v) for v in answer)
        whole = tuple(v for v in values if v is not None)
        return whole if len(whole) == len(values) and len(whole) >= least else None

    def struct(self, *functions: str, args: Args | None = None) -> Mapping[str, Json] | None:
        """The first answer that is a structure."""
        for function in functions:
            answer = self.first(function, args=args)
            if isinstance(answer, Mapping):
                return answer
        return None

    def by_args(self, function: str) -> dict[Args, Json]:
        """Every answer of a function by its arguments, errors included."""
        answer = self.raw.get(function)
        table = answer.get("args") if isinstance(answer, Mapping) else None
        if not isinstance(table, Mapping):
            return {}
        return {a: v for k, v in table.items() if (a := arguments(k)) is not None}

    def integers_by_args(self, function: str, length: int) -> dict[Args, int]:
        """The whole numbers among them, for keys of `length` arguments."""
        return {
            a: n
            for a, v in self.by_args(function).items()
            if len(a) == length and error_of(v) is None and (n := integer(v)) is not None
        }

    def field(self, number: int) -> int | None:
        """A value of nvmlDeviceGetFieldValues, if its own return code is success."""
        entry = self.struct("nvmlDeviceGetFieldValues", args=(number,))
        if entry is None or integer(entry.get("nvmlReturn")) != 0:
            return None
        return integer(entry.get("value"))

    def error(self, function: str) -> str | None:
        """Why a function gave nothing: its own error, or the one that all its arguments share."""
        answer = self.raw.get(function)
        own = error_of(answer)
        if own is not None:
            return own
        errors = [error_of(v) for v in self.by_args(function).values()]
        return errors[0] if errors and None not in errors else None

    def errors(self) -> dict[str, str]:
        """Function, or function with one argument list, -> error name."""
        found: dict[str, str] = {}
        for function, answer in self.raw.items():
            whole = self.error(function)
            if whole is not None:
                found[function] = whole
                continue
            if isinstance(answer, Mapping) and "args" in answer:
                for args, value in self.by_args(function).items():
                    name = error_of(value)
                    if name is not None:
                        found[f"{function}{json.dumps(args, separators=(',', ':'))}"] = name
        return found


def pci_address(info: Mapping[str, Json] | None) -> str | None:
    """The form of sysfs, 0000:1b:00.0, of nvmlPciInfo; None if the structure holds no address."""
    if info is None:
        return None
    for name in ("busId", "busIdLegacy"):
        parts = (text(info.get(name)) or "").lower().split(":")
        if len(parts) == 3 and "." in parts[2]:
            try:
                domain, bus = int(parts[0], 16), int(parts[1], 16)
                slot, function = (int(p, 16) for p in parts[2].split("."))
            except ValueError:
                continue
            return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"
    numbers = [n for name in ("domain", "bus", "device") if (n := integer(info.get(name))) is not None]
    if len(numbers) < 3 or min(numbers) < 0:
        return None
    return f"{numbers[0]:04x}:{numbers[1]:02x}:{numbers[2]:02x}.0"
