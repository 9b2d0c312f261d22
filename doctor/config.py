"""Configuration from fsdp-doctor.toml or `[tool.fsdp-doctor]` of pyproject.toml."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from importlib import import_module
from pathlib import Path

from fsdp_doctor.engine.options import Profile
from fsdp_doctor.engine.suppress import Suppression

tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

OWN_FILE = "fsdp-doctor.toml"
SHARED_FILE = "pyproject.toml"
TABLE = "fsdp-doctor"
FORMATS = ("text", "json", "junit", "github")
KEYS = ("select", "ignore", "strict", "format", "deadline", "profile", "nproc", "ckpt", "suppress")
SUPPRESS_KEYS = ("code", "reason", "host", "until")
SIZE_LIMIT = 1 << 20
MAX_SECONDS = 86_400
MAX_NPROC = 4096


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the file, the key and the rule."""


@dataclass(frozen=True, slots=True)
class Config:
    """What a file says; None or empty is "not said"."""

    file: Path | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    strict: bool | None = None
    format: str | None = None
    deadline: float | None = None
    profile: Profile | None = None
    nproc: int | None = None
    ckpt: str | None = None
    """Relative paths of the file are made absolute from its folder."""
    suppressions: tuple[Suppression, ...] = ()


def find(start: Path) -> Path | None:
    """The nearest file that configures this tool, from `start` up to the root of its git repository.

    Outside of a repository only `start` itself is looked at, so that a file of somebody else's in a
    shared parent folder cannot silence findings.
    """
    folders = [start]
    for folder in (start, *start.parents):
        if (folder / ".git").exists():
            folders = [start, *[p for p in start.parents if p == folder or folder in p.parents]]
            break
    for folder in folders:
        if (folder / OWN_FILE).is_file():
            return folder / OWN_FILE
        shared = folder / SHARED_FILE
        if shared.is_file() and _table(_read(shared), shared) is not None:
            return shared
    return None


def load(file: Path | None, start: Path) -> Config:
    """The configuration in `file`, else in the nearest file. Raises `ConfigError`."""
    chosen = file if file is not None else find(start)
    if chosen is None:
        return Config()
    table = _table(_read(chosen), chosen)
    return Config(file=chosen) if table is None else _Reader(chosen).config(table)


def _read(path: Path) -> Mapping[str, object]:
    try:
        with path.open("rb") as file:
            raw = file.read(SIZE_LIMIT + 1)
        if len(raw) > SIZE_LIMIT:
            raise ConfigError(f"{path}: larger than {SIZE_LIMIT >> 20} MiB")
        content: Mapping[str, object] = tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML text: {error}") from None
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return content


def _table(content: Mapping[str, object], path: Path) -> Mapping[str, object] | None:
    """The table of this tool; the whole of a file of our own that has no `[tool.fsdp-doctor]`."""
    tool = content.get("tool")
    table = tool.get(TABLE) if isinstance(tool, Mapping) else None
    if table is None:
        return None if path.name == SHARED_FILE else content
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path}: tool.{TABLE} is not a table")
    return table


def nearest(word: str, known: tuple[str, ...], otherwise: str | None = None) -> str:
    """`; did you mean …?` with the closest known word, else `otherwise` or what is known."""
    import difflib

    close = difflib.get_close_matches(word, known, 1, 0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(known)}" if otherwise is None else otherwise


@dataclass(frozen=True, slots=True)
class _Reader:
    file: Path

    def config(self, table: Mapping[str, object]) -> Config:
        self._known(table, KEYS, "")
        ckpt = self._text(table, "ckpt")
        deadline = self._number(table, "deadline")
        nproc = table.get("nproc")
        if nproc is not None and (type(nproc) is not int or not 1 <= nproc <= MAX_NPROC):
            raise self._wrong("nproc", f"a whole number from 1 to {MAX_NPROC}", nproc)
        profile = self._choice(table, "profile", tuple(p.value for p in Profile))
        return Config(
            file=self.file,
            select=self._codes(table, "select"),
            ignore=self._codes(table, "ignore"),
            strict=self._flag(table, "strict"),
            format=self._choice(table, "format", FORMATS),
            deadline=deadline,
            profile=None if profile is None else Profile(profile),
            nproc=nproc,
            ckpt=None if ckpt is None else str(self.file.absolute().parent / ckpt),
            suppressions=self._suppressions(table.get("suppress", [])),
        )

    def _wrong(self, key: str, rule: str, value: object) -> ConfigError:
        return ConfigError(f"{self.file}: {key} must be {rule}, not {value!r}")

    def _known(self, table: Mapping[str, object], keys: tuple[str, ...], where: str) -> None:
        for key in table:
            if key not in keys:
                raise ConfigError(f"{self.file}: unknown key {where + key!r}{nearest(key, keys)}")

    def _text(self, table: Mapping[str, object], key: str) -> str | None:
        value = table.get(key)
        if value is None or (isinstance(value, str) and value.strip()):
            return value
        raise self._wrong(key, "text", value)

    def _flag(self, table: Mapping[str, object], key: str) -> bool | None:
        value = table.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self._wrong(key, "true or false", value)

    def _number(self, table: Mapping[str, object], key: str) -> float | None:
        value = table.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MAX_SECONDS:
            raise self._wrong(key, f"a number of seconds above 0 and up to {MAX_SECONDS}", value)
        return float(value)

    def _choice(self, table: Mapping[str, object], key: str, known: tuple[str, ...]) -> str | None:
        value = table.get(key)
        if value is None or (isinstance(value, str) and value in known):
            return value
        raise self._wrong(key, f"one of {', '.join(known)}", value)

    def _codes(self, table: Mapping[str, object], key: str) -> tuple[str, ...]:
        value = table.get(key, [])
        if isinstance(value, str):
            value = [value]
        if isinstance(value, list) and all(isinstance(v, str) and v.strip() for v in value):
            return tuple(value)
        raise self._wrong(key, "a list of codes or prefixes of codes", value)

    def _suppressions(self, value: object) -> tuple[Suppression, ...]:
        if not isinstance(value, list) or not all(isinstance(v, Mapping) for v in value):
            raise self._wrong("suppress", "an array of tables ([[…suppress]])", value)
        return tuple(self._suppression(entry) for entry in value)

    def _suppression(self, entry: Mapping[str, object]) -> Suppression:
        self._known(entry, SUPPRESS_KEYS, "suppress.")
        code, reason = self._text(entry, "code"), self._text(entry, "reason")
        if code is None or reason is None:
            raise ConfigError(
                f"{self.file}: each suppress entry needs a code and a reason, not {dict(entry)!r}"
            )
        until = entry.get("until")
        if isinstance(until, str):
            try:
                until = date.fromisoformat(until)
            except ValueError:
                raise self._wrong("suppress.until", "a date such as 2027-01-31", until) from None
        if isinstance(until, datetime):
            until = until.date()
        if until is not None and not isinstance(until, date):
            raise self._wrong("suppress.until", "a date such as 2027-01-31", until)
        return Suppression(code.strip().upper(), reason.strip(), self._text(entry, "host"), until)
