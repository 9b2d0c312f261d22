"""Tables of operators that were measured on a GPU: read, checked, merged, written as a whole or not at all.

A table is JSON. Its signatures are compared with those of a replay and its numbers are bytes. Nothing in it
is run, and a table that is not exactly as expected is not used.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

SCHEMA = "fsdp-doctor-calibration/1"
MOST_BYTES = 32 << 20
MOST_ENTRIES = 20_000
MOST_SIZES = 256
LONGEST = 1 << 16
"""Characters of a signature."""
LARGEST = 1 << 48
"""Bytes of one block."""
BACKENDS = (None, "", "cudnn", "flash", "efficient", "math")
ENTRY = {"operator", "signature", "during", "kept", "backend"}
HEAD = {"schema", "created", "torch", "cuda", "cudnn", "gpu", "sm", "entries"}


class BadTable(ValueError):
    """The file is no table; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One call of an operator. Sizes are bytes as requested."""

    operator: str
    signature: str
    during: tuple[int, ...]
    """Blocks besides the results that live at the call's highest moment and are given back."""
    kept: int
    """What a library handle keeps after the first call."""
    backend: str | None = None
    """Of an attention: cudnn, flash, efficient or math."""


@dataclass(frozen=True, slots=True)
class Table:
    """What one GPU with one torch and one cuDNN was seen to do."""

    torch: str
    cuda: str | None
    cudnn: int | None
    gpu: str
    sm: int
    created: str
    entries: tuple[Entry, ...] = ()

    def for_child(self) -> dict[str, dict[str, object]]:
        """Entries by signature."""
        return {
            e.signature: {k: v for k, v in asdict(e).items() if k not in ("operator", "signature")}
            for e in self.entries
        }

    def with_entries(self, more: Iterable[Entry]) -> Table:
        """With further entries, which take the place of older ones for the same call."""
        found = {e.signature: e for e in (*self.entries, *more)}
        return replace(self, entries=tuple(found.values()))

    def same_versions(self, other: Table) -> bool:
        """Whether two tables are about the same kernels."""
        ours = (self.torch, self.cuda, self.cudnn, self.gpu, self.sm)
        return ours == (other.torch, other.cuda, other.cudnn, other.gpu, other.sm)


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where tables are kept when no file is named."""
    cache = environment.get("XDG_CACHE_HOME") or ""
    base = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return base / "fsdp-doctor" / "calibration"


def file_name(table: Table) -> str:
    """One file for each GPU and version."""
    cudnn = f"-cudnn{table.cudnn}" if table.cudnn else ""
    torch, gpu = (
        "".join(c if c.isalnum() or c in ".+" else "_" for c in t) for t in (table.torch, table.gpu)
    )
    return f"sm{table.sm}-{gpu}-torch{torch}{cudnn}.json"


def stored(
    sm: int, where: Path | None = None, like: Callable[[Table], bool] = lambda _: True
) -> tuple[Path, Table] | None:
    """The newest table for an architecture, of those that are `like` what is wanted if there are any.

    Files that are no tables are passed over.
    """
    try:
        files = sorted(
            (where or folder()).glob(f"sm{sm}-*.json"), key=lambda p: p.stat().st_mtime, reverse=True
        )
    except OSError:
        return None
    found: tuple[Path, Table] | None = None
    for file in files:
        try:
            table = read(file)
        except (BadTable, OSError):
            continue
        if table.sm == sm and like(table):
            return file, table
        if table.sm == sm and found is None:
            found = file, table
    return found


def read(file: Path) -> Table:
    """The table in a file. Raises `BadTable` and `OSError`."""
    with file.open("rb") as stream:
        raw = stream.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise BadTable(f"larger than {MOST_BYTES >> 20} MiB")
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadTable(f"not JSON: {error}") from None
    if not isinstance(said, dict) or said.get("schema") != SCHEMA:
        raise BadTable(f"its schema is not {SCHEMA}")
    if set(said) != HEAD:
        raise BadTable(f"its fields are not {', '.join(sorted(HEAD))}")
    entries = said["entries"]
    if not isinstance(entries, list) or len(entries) > MOST_ENTRIES:
        raise BadTable(f"entries: a list of at most {MOST_ENTRIES} is wanted")
    return Table(
        _text(said["torch"], "torch"),
        None if said["cuda"] is None else _text(said["cuda"], "cuda"),
        None if said["cudnn"] is None else _number(said["cudnn"], "cudnn"),
        _text(said["gpu"], "gpu"),
        _number(said["sm"], "sm"),
        _text(said["created"], "created"),
        tuple(_entry(e, i) for i, e in enumerate(entries)),
    )


def entry(said: Mapping[str, object], where: str) -> Entry:
    """One call's figures. Raises `BadTable`."""
    backend = said.get("backend")
    if backend is not None and (not isinstance(backend, str) or backend not in BACKENDS):
        raise BadTable(f"{where}: backend {backend!r} is none")
    return Entry(
        _text(said.get("operator"), f"{where}: operator"),
        _text(said.get("signature"), f"{where}: signature"),
        _sizes(said.get("during"), f"{where}: during"),
        _number(said.get("kept"), f"{where}: kept"),
        backend or None,
    )


def _entry(said: object, number: int) -> Entry:
    where = f"entry {number}"
    if not isinstance(said, dict) or set(said) != ENTRY:
        raise BadTable(f"{where}: its fields are not {', '.join(sorted(ENTRY))}")
    return entry(said, where)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or len(value) > LONGEST:
        raise BadTable(f"{where}: a text of at most {LONGEST} characters is wanted")
    return value


def _number(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        raise BadTable(f"{where}: a whole number from 0 to 2**48 is wanted")
    return value


def _sizes(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MOST_SIZES:
        raise BadTable(f"{where}: a list of at most {MOST_SIZES} sizes is wanted")
    return tuple(_number(v, where) for v in value)


def write(table: Table, file: Path) -> None:
    """Write a table as a whole or not at all. Raises `OSError`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    said = {"schema": SCHEMA, **asdict(table)}
    handle, part = tempfile.mkstemp(dir=file.parent, prefix=".calibration-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(said, stream, indent=1)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, file)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    _sync(file.parent)


def _sync(directory: Path) -> None:
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network filesystems have no such thing
    finally:
        os.close(handle)
