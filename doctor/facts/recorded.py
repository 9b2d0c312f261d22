"""A recording as a `Source`: the answers the live machine gave, from files that anybody may have written.

A part that is damaged is unknown with its reason; only what is no recording at all raises `RecordingError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path

from fsdp_doctor.facts.links import follow
from fsdp_doctor.facts.recorded_parts import (
    MAX_RANKS,
    SCHEMA,
    extras_of,
    figures_of,
    links_of,
    load,
    manifest_of,
)
from fsdp_doctor.facts.source import FILE_LIMIT, Json, Manifest, PathFacts
from fsdp_doctor.facts.trees import (
    MAX_FILE,
    DirectoryTree,
    Kind,
    MemoryTree,
    RecordingError,
    Tree,
)
from fsdp_doctor.facts.zip_tree import ZipTree
from fsdp_doctor.subjects.fact import Known, Unknown

__all__ = [
    "SCHEMA",
    "DirectoryTree",
    "MemoryTree",
    "RecordedSource",
    "RecordingError",
    "Tree",
    "ZipTree",
    "open_recording",
]


def open_recording(path: Path) -> RecordedSource:
    """The recording in a folder or a zip archive. Raises `RecordingError`."""
    if not path.exists():
        raise RecordingError(f"no recording at {path}: no such file or folder")
    if path.is_dir():
        return RecordedSource(DirectoryTree(path))
    tree = ZipTree(path)
    folders = [n for n in tree.names("") if tree.kind(f"{n}/manifest.json") is Kind.FILE]
    packed_folder = tree.kind("manifest.json") is None and len(folders) == 1
    return RecordedSource(tree, f"{folders[0]}/" if packed_folder else "")


class RecordedSource:
    """One rank's recording. `prefix` is "" or a folder of the tree with its slash, such as "ranks/1/"."""

    def __init__(self, tree: Tree, prefix: str = "") -> None:
        self._tree, self._prefix = tree, prefix
        manifest = load(tree, f"{prefix}manifest.json")
        self._manifest = manifest_of(manifest)
        self._stats, self._units = extras_of(manifest)
        self._links, self._below = links_of(load(tree, f"{prefix}links.json"))
        self._resolved: dict[str, str | None] = {"": "", "/": ""}
        self._parts: dict[str, Json | Unknown] = {}

    @property
    def manifest(self) -> Manifest:
        """Identity of the machine and the rank."""
        return self._manifest

    def ranks(self) -> tuple[int, ...]:
        """Further ranks recorded beside this one, in order."""
        names = self._tree.names(f"{self._prefix}ranks")
        numbers = (int(n) for n in names if n.isascii() and n.isdigit() and str(int(n[:9])) == n)
        return tuple(sorted(n for n in numbers if n < MAX_RANKS))

    def rank(self, number: int) -> RecordedSource:
        """The recording of one of `ranks()`. Raises `RecordingError`."""
        try:
            return RecordedSource(self._tree, f"{self._prefix}ranks/{number}/")
        except RecordingError as error:
            raise RecordingError(f"ranks/{number}: {error}") from None

    def placed(self, rank: int, world_size: int) -> RecordedSource:
        """The same recording as that of one rank of a job."""
        placed = copy(self)
        placed._manifest = replace(self._manifest, rank=rank, world_size=world_size)
        return placed

    def read(self, path: str, limit: int = FILE_LIMIT) -> bytes | Unknown:
        """As in `Source`."""
        name = self._resolve(path)
        kind = None if name is None else self._tree.kind(f"{self._prefix}root/{name}")
        if name is None or (kind is None and name not in self._below):
            return Unknown(f"no file {path} in the recording", absent=True)
        if kind is not Kind.FILE:
            reason = self._manifest.not_recorded.get(path)
            return Unknown(reason or f"{path} is no file")
        return self._tree.read(f"{self._prefix}root/{name}", limit)

    def listdir(self, path: str) -> tuple[str, ...]:
        """As in `Source`; files, folders and links together."""
        name = self._resolve(path)
        if name is None:
            return ()
        names = self._tree.names(f"{self._prefix}root/{name}" if name else f"{self._prefix}root")
        linked = self._below.get(name)
        return tuple(sorted({*names, *linked})) if linked else names

    def readlink(self, path: str) -> str | None:
        """As in `Source`."""
        parent, _, last = path.rstrip("/").rpartition("/")
        folder = self._resolve(parent)
        return None if folder is None else self._links.get(f"{folder}/{last}" if folder else last)

    def exists(self, path: str) -> bool:
        """Whether anything is at a path. A link counts even where its target was not recorded."""
        if self.readlink(path) is not None:
            return True
        name = self._resolve(path)
        if name is None:
            return False
        return name in self._below or self._tree.kind(f"{self._prefix}root/{name}".rstrip("/")) is not None

    def realpath(self, path: str) -> str:
        """As in `Source`; the path itself where its links lead nowhere."""
        name = self._resolve(path)
        return path if name is None else f"/{name}"

    def openable(self, path: str) -> bool | None:
        """A recording does not say."""
        return None

    def stat(self, path: str) -> tuple[int, int | None] | None:
        """Size and owner as the manifest holds them, else the size of a recorded file alone."""
        name = self._resolve(path)
        if name in self._stats:
            return self._stats[name]
        raw = self.read(path)
        return None if isinstance(raw, Unknown) else (len(raw), None)

    def path_facts(self, path: str) -> PathFacts:
        """Existence where a file or an answer of statvfs shows it: a recording cannot show absence."""
        sizes = self.statvfs()
        asked = {} if isinstance(sizes, Unknown) else sizes.value
        nearest = path.rstrip("/") or "/"
        while nearest not in asked and nearest != "/" and not self.exists(nearest):
            nearest = nearest.rpartition("/")[0] or "/"
        here = True if nearest == (path.rstrip("/") or "/") else None
        folder = True if here and (nearest in asked or self.listdir(nearest)) else None
        return PathFacts(exists=here, is_dir=folder, nearest=nearest, real=self.realpath(nearest))

    def units(self) -> Mapping[str, str]:
        """States as the manifest holds them."""
        return self._units

    def env(self) -> Known[Mapping[str, str]] | Unknown:
        """env.json."""
        part = self._object("env.json")
        if isinstance(part, Unknown):
            return part
        texts = {k: v for k, v in part.value.items() if isinstance(v, str)}
        if len(texts) != len(part.value):
            return Unknown("env.json of the recording holds values that are no text")
        return Known(texts, part.source)

    def nvml(self) -> Known[Mapping[str, Json]] | Unknown:
        """nvml.json."""
        return self._object("nvml.json")

    def stack(self) -> Known[Mapping[str, Json]] | Unknown:
        """stack.json."""
        return self._object("stack.json")

    def net(self) -> Known[Mapping[str, Json]] | Unknown:
        """net.json."""
        return self._object("net.json")

    def statvfs(self) -> Known[Mapping[str, Mapping[str, int]]] | Unknown:
        """statvfs.json without the entries that are no figures."""
        part = self._object("statvfs.json")
        if isinstance(part, Unknown):
            return part
        return Known({k: f for k, v in part.value.items() if (f := figures_of(v)) is not None}, part.source)

    def kernel_log(self) -> Known[str] | Unknown:
        """kernel_log.txt."""
        name = f"{self._prefix}kernel_log.txt"
        raw = self._tree.read(name, MAX_FILE)
        if isinstance(raw, Unknown):
            return self._missing("kernel_log.txt") if raw.absent else raw
        return Known(raw.decode("utf-8", "replace"), "kernel_log.txt")

    def _object(self, name: str) -> Known[Mapping[str, Json]] | Unknown:
        if name not in self._parts:
            self._parts[name] = load(self._tree, self._prefix + name)
        part = self._parts[name]
        if isinstance(part, Unknown):
            return self._missing(name) if part.absent else part
        if not isinstance(part, Mapping):
            return Unknown(f"{name} of the recording is not an object")
        return Known(part, name)

    def _missing(self, name: str) -> Unknown:
        why = self._manifest.not_recorded
        stem = name.rpartition(".")[0]
        return Unknown(why.get(stem) or why.get(name) or f"the recording holds no {name}")

    def _resolve(self, path: str) -> str | None:
        """The name under root/ with links followed; None where they never end or the path is absurd."""
        if path not in self._resolved:
            parent, _, last = path.rpartition("/")
            folder = self._resolved.get(parent)
            plain = f"{folder}/{last}" if folder else last
            known = folder is not None and last not in ("", ".", "..") and plain not in self._links
            self._resolved[path] = plain if known else follow(path, self._links.get)
        return self._resolved[path]
