"""Checkpoints behind a URL, through fsspec: s3://, gs://, hf://, https:// and what is installed for them."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Mapping
from datetime import datetime
from typing import BinaryIO, Protocol, cast

from fsdp_doctor.ckpt.limits import FILES, FOLDER_DEPTH
from fsdp_doctor.ckpt.store import Node, NotRegular


class _FileSystem(Protocol):
    """What is used of an fsspec file system."""

    def info(self, path: str) -> Mapping[str, object]:
        """Type, size and times of one path."""

    def ls(self, path: str, detail: bool) -> list[Mapping[str, object]]:
        """The names in a folder."""

    def open(self, path: str, mode: str) -> BinaryIO:
        """A file."""


class NoFsspec(OSError):
    """The extra `remote`, or the driver of this scheme, is not installed."""


class RemoteStore:
    """A folder or a file at a URL. Links and special files do not exist there."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec

            filesystem, path = fsspec.core.url_to_fs(url)
        except ImportError as error:
            words = f"{error}; install the extra: pip install 'fsdp-doctor[remote]', and the scheme's driver"
            raise NoFsspec(words) from None
        except ValueError as error:
            raise NoFsspec(f"fsspec does not know this scheme: {error}") from None
        self.root = url
        self._fs = cast("_FileSystem", filesystem)
        self._path = str(path)
        try:
            self._info = self._fs.info(self._path)
        except OSError:
            raise
        except Exception as error:  # drivers raise what their services' clients do
            raise OSError(f"{type(error).__name__}: {error}") from None
        self.is_file = self._info.get("type") == "file"

    def nodes(self) -> tuple[list[Node], bool]:
        """All names down to `FOLDER_DEPTH` folders below, sorted by path."""
        if self.is_file:
            return [self._node("", self._info)], False
        found: list[Node] = []
        folders = [("", 0)]
        while folders:
            folder, depth = folders.pop()
            for info in self._list(folder):
                name = posixpath.basename(str(info.get("name", "")).rstrip("/"))
                path = f"{folder}/{name}" if folder else name
                if not name or posixpath.join(self._path, path) == self._path:
                    continue
                found.append(self._node(path, info))
                if found[-1].folder and depth < FOLDER_DEPTH:
                    folders.append((path, depth + 1))
                if len(found) >= FILES:
                    return sorted(found, key=lambda n: n.path), True
        return sorted(found, key=lambda n: n.path), False

    def _list(self, folder: str) -> list[Mapping[str, object]]:
        try:
            return self._fs.ls(posixpath.join(self._path, folder) if folder else self._path, detail=True)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from None

    def _node(self, path: str, info: Mapping[str, object]) -> Node:
        folder = info.get("type") == "directory"
        size = info.get("size")
        when = _time(info)
        length = size if isinstance(size, int) and not folder else None
        stamp = (0, length or 0, int((when or 0) * 1e9))
        return Node(path, length, when, folder, stamp=stamp)

    def open(self, path: str) -> BinaryIO:
        """A file, read in blocks as it is asked for."""
        full = posixpath.join(self._path, path) if path else self._path
        try:
            opened = self._fs.open(full, "rb")
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from None
        if not opened.seekable():
            raise NotRegular("it cannot be read from any place: the server gives no ranges")
        # The unpickler needs `peek` to read in large pieces.
        return cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", opened), 1 << 20))

    def again(self, path: str) -> Node:
        """One name as it is now."""
        full = posixpath.join(self._path, path) if path else self._path
        try:
            return self._node(path, self._fs.info(full))
        except Exception as error:
            return Node(path, None, None, unreadable=f"{type(error).__name__}: {error}")


def _time(info: Mapping[str, object]) -> float | None:
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, str):
            try:
                return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
            except ValueError:
                continue
    return None
