"""A source between the providers and another source that notes every file, folder and link they ask for."""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_doctor.facts.links import follow
from fsdp_doctor.facts.source import FILE_LIMIT, Json, Manifest, PathFacts, Source
from fsdp_doctor.subjects.fact import Known, Unknown

OWN_PROCESS = {"proc/self", "proc/thread-self"}
"""Links on a machine; a recording has a folder there, since process ids mean nothing later."""


class Recorder:
    """Answers as `source` does. Paths in what it notes have no links in them and no leading slash."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._link_texts: dict[str, str | None] = {}
        self.files: dict[str, bytes] = {}
        self.named: set[str] = set()
        """Names seen in a folder or asked for, of which more may not be known."""
        self.folders: set[str] = set()
        self.stats: dict[str, tuple[int, int | None]] = {}
        self.unreadable: dict[str, str] = {}
        """Path as asked -> why something that is there could not be read."""

    @property
    def links(self) -> dict[str, str]:
        """Path -> text of the symbolic links that were met."""
        return {name: text for name, text in self._link_texts.items() if text is not None}

    @property
    def manifest(self) -> Manifest:
        """As in `Source`."""
        return self._source.manifest

    def read(self, path: str, limit: int = FILE_LIMIT) -> bytes | Unknown:
        """As in `Source`; the longest answer is kept."""
        answer = self._source.read(path, limit)
        if isinstance(answer, Unknown) and (answer.absent or not self._source.exists(path)):
            return answer
        place = self._place(path)
        if isinstance(answer, Unknown):
            if place is not None:
                self.named.add(place)
            self.unreadable[path] = answer.reason
        elif place is not None and len(answer) >= len(self.files.get(place, b"")):
            self.files[place] = answer
        return answer

    def listdir(self, path: str) -> tuple[str, ...]:
        """As in `Source`."""
        names = self._source.listdir(path)
        place = self._place(path) if names else None
        if place is not None:
            self.folders.add(place)
            for name in names:
                child = f"{place}/{name}" if place else name
                if self._link(child) is None:
                    self.named.add(child)
        return names

    def readlink(self, path: str) -> str | None:
        """As in `Source`."""
        answer = self._source.readlink(path)
        if answer is not None:
            self._place(path)
        return answer

    def exists(self, path: str) -> bool:
        """As in `Source`."""
        answer = self._source.exists(path)
        place = self._place(path) if answer else None
        if place is not None and place not in self.named and self._source.exists(f"/{place}"):
            self.named.add(place)
        return answer

    def realpath(self, path: str) -> str:
        """As in `Source`."""
        answer = self._source.realpath(path)
        if answer != path:
            self._place(path)
        return answer

    def openable(self, path: str) -> bool | None:
        """As in `Source`."""
        return self._source.openable(path)

    def stat(self, path: str) -> tuple[int, int | None] | None:
        """As in `Source`."""
        answer = self._source.stat(path)
        place = self._place(path) if answer is not None else None
        if answer is not None and place is not None:
            self.stats[place] = answer
            self.named.add(place)
        return answer

    def path_facts(self, path: str) -> PathFacts:
        """As in `Source`. Nothing else is asked about the path: it may lie on a file system that hangs."""
        facts = self._source.path_facts(path)
        if facts.nearest is not None:
            place = follow(facts.nearest, self._link_texts.get)
            real = (facts.real or facts.nearest).strip("/")
            if place is not None and place != real:
                self._link_texts[place] = f"/{real}"
            self.folders.add(real)
        return facts

    def units(self) -> Mapping[str, str]:
        """As in `Source`."""
        return self._source.units()

    def env(self) -> Known[Mapping[str, str]] | Unknown:
        """As in `Source`."""
        return self._source.env()

    def nvml(self) -> Known[Mapping[str, Json]] | Unknown:
        """As in `Source`."""
        return self._source.nvml()

    def stack(self) -> Known[Mapping[str, Json]] | Unknown:
        """As in `Source`."""
        return self._source.stack()

    def net(self) -> Known[Mapping[str, Json]] | Unknown:
        """As in `Source`."""
        return self._source.net()

    def statvfs(self) -> Known[Mapping[str, Mapping[str, int]]] | Unknown:
        """As in `Source`."""
        return self._source.statvfs()

    def kernel_log(self) -> Known[str] | Unknown:
        """As in `Source`."""
        return self._source.kernel_log()

    def _place(self, path: str) -> str | None:
        return follow(path, self._link)

    def _link(self, name: str) -> str | None:
        if name not in self._link_texts:
            self._link_texts[name] = None if name in OWN_PROCESS else self._source.readlink(f"/{name}")
        return self._link_texts[name]
