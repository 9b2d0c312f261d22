"""Where raw answers come from: the live machine, a recording, or a test's literals, behind one protocol.

Every method answers in the form of the recording format, so that a provider cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Union

from fsdp_doctor.subjects.fact import Known, Unknown

Json = Union[None, bool, int, float, str, Sequence["Json"], Mapping[str, "Json"]]
FILE_LIMIT = 1 << 20
"""Bytes of one file that a provider may read."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """manifest.json: which machine, rank and job the answers belong to."""

    host: str | None = None
    rank: int | None = None
    world_size: int | None = None
    created: str | None = None
    checkpoint_dir: str | None = None
    clock_offset_seconds: float | None = None
    not_recorded: Mapping[str, str] = field(default_factory=dict)
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class PathFacts:
    """What is at a path that training writes to. None where it was not asked or did not answer."""

    exists: bool | None = None
    is_dir: bool | None = None
    writable: bool | None = None
    """By this user; never known of a recording."""
    nearest: str | None = None
    """The path itself or the nearest existing folder above it."""
    real: str | None = None
    """`nearest` with its links resolved."""
    error: str | None = None
    """The errno's text, or that the file system gave no answer."""


class Source(Protocol):
    """Raw answers. A path is absolute and always the path on the judged machine. No method raises."""

    @property
    def manifest(self) -> Manifest:
        """Identity of the machine and the rank."""

    def read(self, path: str, limit: int = FILE_LIMIT) -> bytes | Unknown:
        """The first `limit` bytes of a file; links in the path are followed."""

    def listdir(self, path: str) -> tuple[str, ...]:
        """Names in a folder in sorted order; empty where there is none or it cannot be read."""

    def readlink(self, path: str) -> str | None:
        """The text of a symbolic link."""

    def exists(self, path: str) -> bool:
        """Whether anything is at a path."""

    def realpath(self, path: str) -> str:
        """The path with its links resolved as far as they can be."""

    def openable(self, path: str) -> bool | None:
        """Whether this user may open a device node for reading and writing; None in a recording."""

    def stat(self, path: str) -> tuple[int, int | None] | None:
        """(bytes, owner uid) of a file below /dev, /proc, /sys or /etc; no uid where a recording has none."""

    def path_facts(self, path: str) -> PathFacts:
        """What is at a path that may lie on a file system that hangs, such as the checkpoint folder."""

    def units(self) -> Mapping[str, str]:
        """State of systemd units that matter; empty where systemd does not run."""

    def env(self) -> Known[Mapping[str, str]] | Unknown:
        """env.json."""

    def nvml(self) -> Known[Mapping[str, Json]] | Unknown:
        """nvml.json; `{"error": NAME}` where NVML did not start."""

    def stack(self) -> Known[Mapping[str, Json]] | Unknown:
        """stack.json."""

    def net(self) -> Known[Mapping[str, Json]] | Unknown:
        """net.json."""

    def statvfs(self) -> Known[Mapping[str, Mapping[str, int]]] | Unknown:
        """statvfs.json: every path that was asked and answered."""

    def kernel_log(self) -> Known[str] | Unknown:
        """kernel_log.txt."""


def text(source: Source, path: str, limit: int = FILE_LIMIT) -> str | None:
    """A file as text without surrounding white space, undecodable bytes replaced; None if unreadable."""
    raw = source.read(path, limit)
    return None if isinstance(raw, Unknown) else raw.decode("utf-8", "replace").strip()


def number(source: Source, path: str) -> int | None:
    """A file that holds one integer (decimal or 0x…); None if unreadable or something else."""
    value = text(source, path, 64)
    try:
        return None if value is None else int(value, 0)
    except ValueError:
        return None
