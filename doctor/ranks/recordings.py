"""The recordings of many ranks as one: each is kept packed and unpacked when its files are asked for."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping

from fsdp_doctor.codec import FormatError
from fsdp_doctor.facts.trees import parts_of

PACKED_LIMIT = 24 << 20
"""Characters of one packed recording."""
LIMIT = 192 << 20
"""Bytes of one recording's JSON."""
FILES = 200_000


def pack_files(files: Mapping[str, bytes]) -> str:
    """Names -> bytes as one text. Raises `FormatError` where it is too large to be sent."""
    plain = {name: base64.b64encode(raw).decode() for name, raw in files.items()}
    packed = base64.b64encode(zlib.compress(json.dumps(plain).encode(), 6)).decode()
    if len(packed) > PACKED_LIMIT:
        raise FormatError(
            f"the recording takes {len(packed) >> 20} MiB, {PACKED_LIMIT >> 20} MiB are allowed"
        )
    return packed


def unpack_files(packed: object) -> dict[str, bytes]:
    """The files of a packed recording. Raises `FormatError` for what no recording is."""
    if not isinstance(packed, str) or len(packed) > PACKED_LIMIT:
        raise FormatError("a packed recording is a text of limited size")
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(base64.b64decode(packed, validate=True), LIMIT)
        if inflate.unconsumed_tail or not inflate.eof:
            raise FormatError("the recording is cut, or larger than is allowed")
        plain = json.loads(raw)
        if not isinstance(plain, dict) or len(plain) > FILES:
            raise FormatError("the recording is no object of files")
        files = {n: base64.b64decode(text, validate=True) for n, text in plain.items()}
    except (ValueError, TypeError, zlib.error, RecursionError) as error:
        raise FormatError(f"the recording cannot be unpacked: {str(error)[:100]}") from None
    if "manifest.json" not in files or not all(_is_name(n) for n in files):
        raise FormatError("the recording has no manifest, or names that no recording has")
    return files


def _is_name(name: str) -> bool:
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return False
    parts = parts_of(name.rstrip("/"))
    return parts is not None and len(encoded) < 4000 and all(len(p.encode()) < 256 for p in parts)


class JobFiles(Mapping[str, bytes]):
    """One rank's files, with those of further ranks below `ranks/N/`."""

    def __init__(self, first: Mapping[str, bytes]) -> None:
        self._first = dict(first)
        self._packed: dict[int, str] = {}
        self._names: dict[str, tuple[int, str]] = {}
        self._open: tuple[int, dict[str, bytes]] = (-1, {})

    def add(self, rank: int, packed: object) -> None:
        """Add a rank's packed recording. Raises `FormatError`."""
        files = unpack_files(packed)
        assert isinstance(packed, str)
        self._packed[rank] = packed
        for name in files:
            self._names[f"ranks/{rank}/{name}"] = (rank, name)

    def __getitem__(self, name: str) -> bytes:
        """The bytes of one file; a rank's files stay unpacked until another rank's are asked for."""
        if name in self._first:
            return self._first[name]
        rank, own = self._names[name]
        if self._open[0] != rank:
            self._open = (rank, unpack_files(self._packed[rank]))
        return self._open[1][own]

    def __iter__(self) -> Iterator[str]:
        """All names, rank 0's first."""
        yield from self._first
        yield from self._names

    def __len__(self) -> int:
        """How many files there are."""
        return len(self._first) + len(self._names)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The further ranks that are here."""
        return tuple(sorted(self._packed))
