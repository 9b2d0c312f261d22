"""Python's functions for files, replaced by ones that ask the overlay where a path is.

Writes go to a folder of the rehearsal's own; reads see them, as if they had gone where they were meant to.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
from typing import Any

from .overlay import Overlay, Scan, _isdir, _lexists, _listdir, _open, _rmtree, _scandir

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install(overlay: Overlay) -> None:
    """Replace Python's functions. Holds for the whole process and for workers that are forked from it."""
    _opening(overlay)
    module: Any = os
    for name in ("stat", "lstat", "access", "readlink", "chdir", "statvfs", "getxattr", "listxattr"):
        if hasattr(os, name):
            setattr(module, name, _reader(overlay, getattr(os, name)))
    for name in ("exists", "isfile", "isdir"):  # written in C from Python 3.12 on
        real = getattr(os.path, name)
        if not hasattr(real, "__code__"):
            setattr(os.path, name, _reader(overlay, real))
    for name, how in (("mkdir", "folder"), ("mkfifo", "pipe"), ("mknod", "node")):
        setattr(module, name, _maker(overlay, getattr(os, name), how))
    for name in ("chmod", "chown", "lchown", "utime", "truncate", "setxattr", "removexattr"):
        if hasattr(os, name):
            setattr(module, name, _changer(overlay, getattr(os, name)))
    for name, how in (("remove", "removed"), ("unlink", "removed"), ("rmdir", "removed folder")):
        setattr(module, name, _remover(overlay, getattr(os, name), how))
    for name in ("rename", "replace"):
        setattr(module, name, _renamer(overlay, getattr(os, name)))
    for name in ("symlink", "link"):
        setattr(module, name, _linker(overlay, getattr(os, name)))
    module.listdir = lambda path=".": overlay.listed(path) if not isinstance(path, int) else _listdir(path)

    def scandir(path: Any = ".") -> Any:
        full = overlay._absolute(path)
        if full is None or not (_isdir(overlay._place(full)) or overlay.gone):
            return _scandir(path)
        if not _isdir(overlay.reading(path)):
            return _scandir(overlay._place(full))
        return Scan(overlay, path, full)

    module.scandir = scandir
    _trees(overlay)
    _databases(overlay)


def _opening(overlay: Overlay) -> None:
    low = os.open

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("opener") is not None:  # which opens by `os.open`, another file than this perhaps
            return _open(file, mode, *args, **kwargs)
        if any(letter in mode for letter in "wax+"):
            file = overlay.writing(file, "file", keep="a" in mode or "r" in mode)
        else:
            file = overlay.reading(file)
        return _open(file, mode, *args, **kwargs)

    def opened_low(path: Any, flags: int, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> int:
        if dir_fd is not None:
            return low(path, flags, *args, dir_fd=dir_fd, **kwargs)
        if flags & WRITING:
            path = overlay.writing(path, "file", keep=not flags & os.O_TRUNC)
        else:
            path = overlay.reading(path)
        return low(path, flags, *args, **kwargs)

    replaced: Any = builtins
    replaced.open = opened
    module: Any = io
    module.open = opened
    system: Any = os
    system.open = opened_low


def _reader(overlay: Overlay, real: Any) -> Any:
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        return real(path if kwargs.get("dir_fd") is not None else overlay.reading(path), *args, **kwargs)

    return call


def _maker(overlay: Overlay, real: Any, how: str) -> Any:
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        full = overlay._absolute(path)
        if full is not None and _lexists(overlay.reading(path)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
        return real(overlay.writing(path, how), *args, **kwargs)

    return call


def _changer(overlay: Overlay, real: Any) -> Any:
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        full = overlay._absolute(path)
        if full is not None and not _lexists(overlay._place(full)):
            if not _lexists(overlay.reading(path)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
            return None  # of a file that is not the rehearsal's
        return real(path if full is None else overlay._place(full), *args, **kwargs)

    return call


def _remover(overlay: Overlay, real: Any, how: str) -> Any:
    def call(path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None:
            real(path, dir_fd=dir_fd)  # below a folder that was opened before: the kernel has the last word
            return
        overlay.remove(path, real, how)

    return call


def _renamer(overlay: Overlay, real: Any) -> Any:
    def call(src: Any, dst: Any, **kwargs: Any) -> None:
        overlay.rename(src, dst, real)

    return call


def _linker(overlay: Overlay, real: Any) -> Any:
    def call(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        real(src, overlay.writing(dst, "link"), *args, **kwargs)

    return call


def _trees(overlay: Overlay) -> None:
    def rmtree(path: Any, ignore_errors: bool = False, *args: Any, **kwargs: Any) -> None:
        full = overlay._absolute(path)
        if full is None:
            _rmtree(path, ignore_errors, *args, **kwargs)
            return
        if not _lexists(overlay.reading(path)) and not ignore_errors:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        overlay.inside = True
        try:
            _rmtree(overlay._place(full), ignore_errors=True)
        finally:
            overlay.inside = False
        if _lexists(full):
            overlay.gone.add(full)
            overlay._note(full, "removed folder")

    module: Any = shutil
    module.rmtree = rmtree


def _databases(overlay: Overlay) -> None:
    """SQLite opens its files itself: a run's database is one of the rehearsal's, a large one is only read."""
    try:
        import sqlite3
    except ImportError:  # a Python that was built without it
        return
    real = sqlite3.connect

    def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
        name = os.fsdecode(database)
        if name in ("", ":memory:") or kwargs.get("uri"):
            return real(database, *args, **kwargs)
        try:
            database = overlay.writing(database, "file", keep=True)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
        return real(database, *args, **kwargs)

    module: Any = sqlite3
    module.connect = module.dbapi2.connect = connect
