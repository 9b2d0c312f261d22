"""torch.save archives: the zip's directory, the pickle in it and where each storage lies; no tensor data."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from fsdp_doctor.ckpt.limits import ZIP_DIRECTORY, ZIP_ENTRIES
from fsdp_doctor.ckpt.safe_pickle import Loaded, PickleError, load
from fsdp_doctor.subjects.checkpoint_problem import ProblemKind

MAGIC = b"PK\x03\x04"
END, END64, LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
LOCAL_HEADER = 30
TAIL = 65536 + 22
NOT_CHECKPOINTS: Mapping[str, str] = {
    "constants.pkl": "a TorchScript archive",
    "archive_format": "a torch.export archive (.pt2)",
    "models/": "a torch.export archive (.pt2)",
    ".data/extern_modules": "a torch.package archive",
}
TEXTS = ("version", "byteorder", ".format_version")


class ZipError(Exception):
    """No torch.save file that can be read; `kind` says what it is instead."""

    def __init__(self, kind: ProblemKind, message: str, names: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.names = names or {}


@dataclass(frozen=True, slots=True)
class Stored:
    """One entry of the zip."""

    header: int
    """Offset of the local header, from the beginning of the archive."""
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Archive:
    """The directory of one torch.save file."""

    root: str
    entries: Mapping[str, Stored]
    """Names without the root folder: "data.pkl", "data/0"."""
    version: str | None
    byteorder: str | None

    def storage(self, key: str) -> Stored | None:
        """The entry of a storage."""
        return self.entries.get(f"data/{key}")


def read(file: BinaryIO, size: int) -> tuple[Archive, Loaded]:
    """Directory and pickle of a torch.save file that fills `file`. Raises `ZipError`."""
    precheck(file, size)
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            root, entries = _directory(infos, size)
            texts = {n: _text(archive, f"{root}{n}") for n in TEXTS if n in entries}
            with archive.open(f"{root}data.pkl") as member:
                loaded = load(member, entries["data.pkl"].size)  # type: ignore[arg-type]
                member.read()  # to its end, where its checksum is compared
    except PickleError as error:
        kind = ProblemKind.MEMORY if error.memory else ProblemKind.PICKLE_DAMAGED
        raise ZipError(kind, f"its data.pkl cannot be read: {error}", error.names) from None
    except (
        zipfile.BadZipFile,
        ValueError,
        LookupError,
        NotImplementedError,
        EOFError,
        RuntimeError,
    ) as error:
        raise ZipError(ProblemKind.ZIP_DAMAGED, f"not a whole zip file: {error}") from None
    except MemoryError:
        raise ZipError(ProblemKind.MEMORY, "its directory takes more memory than it can need") from None
    return Archive(root, entries, texts.get("version"), texts.get("byteorder")), loaded


def precheck(file: BinaryIO, size: int) -> None:
    """Refuse directories of absurd size before they are read."""
    file.seek(max(0, size - TAIL))
    tail = file.read(TAIL)
    at = tail.rfind(END)
    if at < 0 or len(tail) - at < 22:
        raise ZipError(
            ProblemKind.ZIP_DAMAGED, f"{size} bytes without the record that ends a zip file: it was cut short"
        )
    count, length = struct.unpack_from("<HL", tail, at + 10)
    if tail[max(0, at - 20) :].startswith(LOCATOR64):
        where = struct.unpack_from("<Q", tail, at - 12)[0]
        file.seek(min(where, size))
        record = file.read(56)
        if len(record) == 56 and record.startswith(END64):
            count, length = struct.unpack_from("<QQ", record, 32)
    if count > ZIP_ENTRIES or length > ZIP_DIRECTORY:
        raise ZipError(
            ProblemKind.ZIP_HOSTILE,
            f"its directory claims {count} entries in {length} bytes; at most {ZIP_ENTRIES} are read",
        )
    file.seek(0)


def _directory(infos: list[zipfile.ZipInfo], size: int) -> tuple[str, dict[str, Stored]]:
    roots = [i.filename[: -len("data.pkl")] for i in infos if _is_pickle(i.filename)]
    if len(roots) != 1:
        found = "no data.pkl" if not roots else f"{len(roots)} entries named data.pkl"
        kind = ProblemKind.UNSUPPORTED if not roots else ProblemKind.ZIP_HOSTILE
        raise ZipError(kind, f"a zip file with {found}: not written by torch.save")
    root = roots[0]
    entries: dict[str, Stored] = {}
    for info in infos:
        name = info.filename
        if not name.startswith(root):
            continue
        short = name[len(root) :]
        for mark, what in NOT_CHECKPOINTS.items():
            if short == mark or (mark.endswith("/") and short.startswith(mark)):
                raise ZipError(ProblemKind.UNSUPPORTED, f"{what}, no checkpoint")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise ZipError(
                ProblemKind.ZIP_HOSTILE, f"its entry {name[:80]!r} is compressed; torch.save stores"
            )
        if info.flag_bits & 1:
            raise ZipError(ProblemKind.ZIP_HOSTILE, f"its entry {name[:80]!r} is encrypted")
        if short in entries:
            raise ZipError(ProblemKind.ZIP_HOSTILE, f"two entries are named {name[:80]!r}")
        entries[short] = Stored(info.header_offset, info.file_size, info.CRC)
    _disjoint(infos, size)
    return root, entries


def _is_pickle(name: str) -> bool:
    return name.count("/") == 1 and name.endswith("/data.pkl")


def _disjoint(infos: list[zipfile.ZipInfo], size: int) -> None:
    end, before = 0, ""
    for info in sorted(infos, key=lambda i: i.header_offset):
        if info.header_offset < end:
            raise ZipError(
                ProblemKind.ZIP_HOSTILE, f"its entries {before[:60]!r} and {info.filename[:60]!r} overlap"
            )
        end, before = info.header_offset + LOCAL_HEADER + info.compress_size, info.filename
        if end > size:
            raise ZipError(
                ProblemKind.ZIP_DAMAGED,
                f"its entry {before[:80]!r} ends at byte {end} of a file of {size} bytes: it was cut short",
            )


def _text(archive: zipfile.ZipFile, name: str) -> str:
    with archive.open(name) as member:
        return member.read(64).decode("ascii", "replace").strip()


def data_offset(file: BinaryIO, stored: Stored, base: int = 0) -> int | None:
    """Where the bytes of an entry begin in `file`, whose archive begins at `base`; None if they do not."""
    file.seek(base + stored.header)
    header = file.read(LOCAL_HEADER)
    if len(header) < LOCAL_HEADER or not header.startswith(MAGIC):
        return None
    name, extra = struct.unpack_from("<HH", header, 26)
    return int(base + stored.header + LOCAL_HEADER + name + extra)
