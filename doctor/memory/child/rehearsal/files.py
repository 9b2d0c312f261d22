"""Writes go to a folder of the rehearsal's own; reads see them, as if they had gone where they were meant to.

Python's functions for files are replaced by ones that look a path up first. A file that is appended to is
copied before. What was changed is noted, so that the answer lists what a real run would have written.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from typing import Any

from .notes import Notes

FREE = ("/dev/", "/proc/", "/sys/")
CACHES = (f"{os.sep}__pycache__{os.sep}", f"{os.sep}.cache{os.sep}", ".lock")
"""Parts of paths that libraries keep for themselves: redirected and not listed."""
LARGEST_COPY = 64 << 20
"""Bytes of an existing file that is opened for changes."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_stat, _lstat, _listdir, _scandir, _open = os.stat, os.lstat, os.listdir, os.scandir, io.open
_makedirs, _copyfile, _rmtree = os.makedirs, shutil.copyfile, shutil.rmtree


def _lexists(path: str) -> bool:
    """Whether there is something, in truth."""
    try:
        _lstat(path)
    except (OSError, ValueError):
        return False
    return True


def _isdir(path: str) -> bool:
    """Whether there is a folder, in truth."""
    try:
        return stat.S_ISDIR(_stat(path).st_mode)
    except (OSError, ValueError):
        return False


class Overlay:
    """Paths as the script means them, and where they are. `own` may be written as it is."""

    def __init__(self, root: str, own: str, notes: Notes) -> None:
        self.root, self.own, self.notes = os.path.realpath(root), os.path.realpath(own), notes
        self.gone: set[str] = set()
        self.inside = False

    # ------------------------------------------------------------------------------------ paths
    def _absolute(self, path: Any) -> str | None:
        """A path that is looked up; None for numbers of open files and for what may be written anyway."""
        if isinstance(path, int) or self.inside:
            return None
        try:
            text = os.fsdecode(os.fspath(path))
        except TypeError:
            return None
        try:
            full = os.path.abspath(text)
        except OSError:
            return None
        if full.startswith(FREE) or full == self.own or full.startswith(self.own + os.sep):
            return None
        return full

    def _place(self, full: str) -> str:
        return self.root + full

    def reading(self, path: Any) -> Any:
        """The path to read."""
        full = self._absolute(path)
        if full is None:
            return path
        place = self._place(full)
        if _lexists(place):
            return place
        parts = full
        while len(parts) > 1:
            if parts in self.gone:
                return place  # which is not there
            parts = os.path.dirname(parts)
        return path

    def writing(self, path: Any, how: str, *, keep: bool = False) -> Any:
        """The path to write; `keep` the file's content."""
        full = self._absolute(path)
        if full is None:
            return path
        place = self._place(full)
        if not _isdir(self.reading(os.path.dirname(full))):
            return place  # whose folder is not there either: the call fails as it should
        _makedirs(os.path.dirname(place), exist_ok=True)
        if keep and not _lexists(place) and full not in self.gone and _lexists(full) and not _isdir(full):
            if _stat(full).st_size > LARGEST_COPY:
                raise OSError(errno.EFBIG, "a rehearsal does not change large files", full)
            self.inside = True
            try:
                _copyfile(full, place)
            finally:
                self.inside = False
        self._note(full, how)
        return place

    def _note(self, full: str, how: str) -> None:
        if not any(part in full for part in CACHES):
            self.notes.unwritten(full, how)

    def remove(self, path: Any, real: Callable[..., Any], how: str) -> None:
        """Remove in the overlay, or remember that a real file would be gone."""
        full = self._absolute(path)
        if full is None:
            real(path)
            return
        place = self._place(full)
        found = self.reading(path)
        if not _lexists(found):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        if _lexists(place):
            real(place)
        if _lexists(full):
            self.gone.add(full)
            self._note(full, how)

    def rename(self, source: Any, target: Any, real: Callable[..., Any]) -> None:
        """Move within the overlay; what is outside is copied there first."""
        full, to = self._absolute(source), self._absolute(target)
        if full is None and to is None:
            real(source, target)
            return
        origin = self.reading(source)
        if full is not None and origin == source:
            if _isdir(full):
                _makedirs(self._place(full), exist_ok=True)  # its content stays where it is
            origin = self.writing(source, "moved", keep=True) if not _isdir(full) else self._place(full)
            self.gone.add(full)
        place = self.writing(target, "moved to")
        if _isdir(origin) and _isdir(place) and not _listdir(place):
            os.rmdir(place)
        real(origin, place)

    def listed(self, path: Any) -> list[str]:
        """Names in a folder, those of the overlay included."""
        full = self._absolute(path)
        if full is None:
            return _listdir(path)
        names = set(_listdir(path)) if _isdir(full) and full not in self.gone else set()
        place = self._place(full)
        if _isdir(place):
            names |= set(_listdir(place))
        elif not names and (full in self.gone or not _isdir(full)):
            return _listdir(self.reading(path))
        return sorted(
            n for n in names if os.path.join(full, n) not in self.gone or _lexists(os.path.join(place, n))
        )


class _Scan:
    """os.scandir over both places."""

    def __init__(self, overlay: Overlay, path: Any, full: str) -> None:
        place = overlay._place(full)
        self._entries: list[Any] = list(_scandir(place)) if _isdir(place) else []
        names = {e.name for e in self._entries}
        if _isdir(full) and full not in overlay.gone:
            self._entries += [
                e
                for e in _scandir(path)
                if e.name not in names and os.path.join(full, e.name) not in overlay.gone
            ]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __next__(self) -> Any:
        if not self._entries:
            raise StopIteration
        return self._entries.pop(0)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        """Nothing is open."""


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
        return _Scan(overlay, path, full)

    module.scandir = scandir
    _trees(overlay)


def _opening(overlay: Overlay) -> None:
    low = os.open

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
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
