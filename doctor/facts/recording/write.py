"""Put a recording on disk, as a folder or a zip archive: whole, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class NotSaved(Exception):
    """The recording could not be written; the text is one line for the user."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What was written."""

    path: Path
    files: int
    size: int
    """Bytes: of the archive, or of all files."""


def write(files: Mapping[str, bytes], destination: Path) -> Saved:
    """Write names -> bytes to a folder, or to an archive where the name ends in .zip. Raises `NotSaved`.

    Only the user may read it. An existing destination is left as it is unless it is empty.
    """
    packed = destination.suffix.lower() == ".zip"
    try:
        refuse_existing(destination)
        parent = destination.absolute().parent
        if packed:
            _write_archive(files, destination, parent)
        else:
            _write_folder(files, destination, parent)
    except OSError as error:
        raise NotSaved(f"cannot write {destination}: {error.strerror or error}") from error
    size = destination.stat().st_size if packed else sum(map(len, files.values()))
    return Saved(destination, sum(not n.endswith("/") for n in files), size)


def refuse_existing(destination: Path) -> None:
    """Refuse a place where no recording can be put. Raises `NotSaved`, and `OSError` where none can look."""
    packed = destination.suffix.lower() == ".zip"
    if not os.path.lexists(destination):
        if not destination.absolute().parent.is_dir():
            raise NotSaved(f"cannot write {destination}: there is no folder {destination.absolute().parent}")
        return
    if destination.is_symlink():
        raise NotSaved(f"{destination} is a link: name a new file or folder")
    if packed:
        if not destination.is_file() or destination.stat().st_size:
            raise NotSaved(f"{destination} exists: name a new file, or remove it first")
    elif not destination.is_dir() or any(destination.iterdir()):
        raise NotSaved(f"{destination} exists and is not an empty folder: name a new one, or remove it first")


def _write_archive(files: Mapping[str, bytes], destination: Path, parent: Path) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{destination.name}.", dir=parent)
    try:
        with os.fdopen(handle, "wb") as raw:
            with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as out:
                for entry in _in_order(files):
                    info = zipfile.ZipInfo(entry)  # its date is the same for every recording
                    info.compress_type = zipfile.ZIP_DEFLATED
                    info.external_attr = 0o40700 << 16 if entry.endswith("/") else 0o100600 << 16
                    out.writestr(info, files[entry])
            raw.flush()
            os.fsync(handle)
        os.replace(name, destination)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(parent)


def _write_folder(files: Mapping[str, bytes], destination: Path, parent: Path) -> None:
    name = tempfile.mkdtemp(prefix=f".{destination.name}.", dir=parent)
    try:
        for entry in reversed(_in_order(files)):  # without the manifest, which comes last, it is none
            target = os.path.join(name, entry)
            os.makedirs(target if entry.endswith("/") else os.path.dirname(target), mode=0o700, exist_ok=True)
            if not entry.endswith("/"):
                _write_file(target, files[entry])
        os.rename(name, destination)
    except BaseException:
        shutil.rmtree(name, ignore_errors=True)
        raise
    _sync_folder(parent)


def _write_file(path: str, raw: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as out:
        out.write(raw)
        out.flush()
        os.fsync(handle)


def _in_order(files: Mapping[str, bytes]) -> list[str]:
    return sorted(files, key=lambda n: (n != "manifest.json", n))


def _sync_folder(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # not every system opens folders
        return
    try:
        os.fsync(handle)
    except OSError:  # nor syncs them
        pass
    finally:
        os.close(handle)
