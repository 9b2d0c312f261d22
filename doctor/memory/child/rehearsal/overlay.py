"""A folder over the file system: where a path that a script means is read and written.

Python's functions for files are replaced by ones that look a path up first. A file that is appended to is
copied before. What was changed is noted, so that the answer lists what a real run would have written.
"""

from __future__ import annotations

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


class Scan:
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
        """Entries of the overlay first."""
        return iter(self._entries)

    def __next__(self) -> Any:
        """The next entry."""
        if not self._entries:
            raise StopIteration
        return self._entries.pop(0)

    def __enter__(self) -> Scan:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""
