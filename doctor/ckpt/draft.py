"""A checkpoint's description while it is being read: formats add to it, `conclude` makes the index of it."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass, field
from math import prod

from fsdp_doctor.ckpt.limits import KEY_LENGTH, KEYS, PROBLEM_TENSORS
from fsdp_doctor.ckpt.store import Node, Store
from fsdp_doctor.subjects.checkpoint import Container, DcpFacts, FileRole, Format, Kind, Layout, Part
from fsdp_doctor.subjects.checkpoint_chunks import ChunkColumns
from fsdp_doctor.subjects.checkpoint_manifest import Manifest
from fsdp_doctor.subjects.checkpoint_problem import Harm, Problem, ProblemKind
from fsdp_doctor.subjects.checkpoint_state import Plain
from fsdp_doctor.subjects.checkpoint_world import World
from fsdp_doctor.tables.torch_dtypes import item_bytes

Path = tuple[str, ...]


def counted(tensors: Sized) -> str:
    """How many tensors, in words."""
    return "1 tensor" if len(tensors) == 1 else f"{len(tensors)} tensors"


class Unreadable(Exception):
    """The checkpoint, or this part of it, cannot be described. Carries the problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


@dataclass(slots=True)
class FileDraft:
    """One file; see `subjects.checkpoint.File`."""

    path: str
    node: Node | None
    role: FileRole = FileRole.OTHER
    rank: int | None = None
    part: str = ""
    referenced: bool = False
    needed: int | None = None
    items: int = 0
    steps: set[int] = field(default_factory=set)


@dataclass(slots=True)
class TensorDraft:
    """One tensor; see `subjects.checkpoint.Tensor`."""

    key: str
    path: Path
    """The components by which the saved dictionary nests: a parameter's whole name is one of them."""
    shape: tuple[int, ...]
    dtype: str
    part: str = ""
    container: Container = Container.TENSOR
    place: array[int] = field(default_factory=lambda: array("q"))
    """Rows of `ChunkColumns`."""
    splits: tuple[int, ...] = ()
    placements: tuple[str, ...] = ()
    mesh: tuple[int, ...] = ()
    mesh_names: tuple[str, ...] = ()
    local_shapes: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    requires_grad: bool | None = None
    view_of: str | None = None
    contiguous: bool | None = None
    is_parameter: bool = False
    local: bool = False
    """Ranks' files hold different tensors under this key, of which nothing tells the place in a whole."""

    @property
    def bytes(self) -> int:
        """Of the whole tensor."""
        return prod(self.shape) * (item_bytes(self.dtype) or 0)

    def add(
        self,
        offsets: Iterable[int],
        sizes: Iterable[int],
        file: int | None = None,
        start: int | None = None,
        length: int | None = None,
        rank: int | None = None,
    ) -> None:
        """Add a chunk. Its offsets and sizes must have as many dimensions as the tensor."""
        self.place.extend(offsets)
        self.place.extend(sizes)
        self.place.extend(-1 if n is None else n for n in (file, start, length, rank))

    @property
    def columns(self) -> ChunkColumns:
        """The chunks."""
        return ChunkColumns(len(self.shape), self.place)


@dataclass(slots=True)
class EntryDraft:
    """One value that is no tensor; see `subjects.checkpoint_state.Entry`."""

    key: str
    path: Path
    value: Plain = None
    elements: tuple[Plain, ...] | None = None
    """Of a list or tuple of plain values."""
    type: str = ""
    rank: int | None = None
    part: str = ""
    file: int | None = None
    start: int | None = None
    length: int | None = None
    value_read: bool = False
    differs: bool = False


class Draft:
    """All that was read so far."""

    def __init__(self, store: Store, nodes: Iterable[Node]) -> None:
        self.store = store
        self.nodes: dict[str, Node] = {n.path: n for n in nodes}
        self.format = Format.UNKNOWN
        self.layout = Layout.PLAIN
        self.parts: list[Part] = []
        self.files: list[FileDraft] = []
        self._file_index: dict[str, int] = {}
        self.tensors: dict[tuple[str, str], TensorDraft] = {}
        self.entries: list[EntryDraft] = []
        self.problems: list[Problem] = []
        self.truncated: list[str] = []
        self._names: Counter[str] = Counter()
        self._name_files: dict[str, list[str]] = {}
        self.world: World | None = None
        """What the format itself says; otherwise it is inferred from files and chunks."""
        self.dcp: DcpFacts | None = None
        self.manifest: Manifest | None = None
        self.step: int | None = None
        self.step_source = ""
        self.epoch: float | None = None
        self.read_values = True
        """Whether small objects in data files are read; tensors' bytes never are."""
        self.now = time.time()
        self.numbers: dict[str, int] = {}
        """Values of tensors of one element that name a step or an epoch."""
        self.folder_step: tuple[int, str] | None = None

    def file(self, path: str, role: FileRole | None = None, part: str | None = None) -> int:
        """The position of a file in `files`; it is added where it is new, also one that is not there."""
        at = self._file_index.get(path)
        if at is None:
            at = self._file_index[path] = len(self.files)
            self.files.append(FileDraft(path, self.nodes.get(path)))
        draft = self.files[at]
        if role is not None:
            draft.role = role
        if part is not None:
            draft.part = part
        return at

    def has(self, path: str) -> bool:
        """Whether a regular file of this path is there."""
        node = self.nodes.get(path)
        return node is not None and node.regular

    def below(self, folder: str) -> list[Node]:
        """Names directly in a folder ("" for the checkpoint's own)."""
        return [n for n in self.nodes.values() if n.parent == folder and n.path]

    def tensor(self, draft: TensorDraft) -> TensorDraft:
        """Add a tensor, or give the one that is there under the same part and key."""
        known = self.tensors.get((draft.part, draft.key))
        if known is not None:
            return known
        if len(self.tensors) >= KEYS:
            self.cut(f"more than {KEYS} tensors")
            return draft
        self.tensors[draft.part, draft.key] = draft
        return draft

    def entry(self, draft: EntryDraft) -> None:
        """Add a value that is no tensor."""
        if len(self.entries) >= KEYS:
            self.cut(f"more than {KEYS} values")
        else:
            self.entries.append(draft)

    def names(self, names: Mapping[str, int], path: str) -> None:
        """Count globals that a pickle in this file named."""
        for name, count in names.items():
            self._names[name] += count
            files = self._name_files.setdefault(name, [])
            if len(files) < 5 and path not in files:
                files.append(path)

    def named(self) -> list[tuple[str, int, tuple[str, ...]]]:
        """Globals with their counts and some files that name them, most often named first."""
        return [(n, c, tuple(self._name_files[n])) for n, c in self._names.most_common()]

    def problem(
        self,
        kind: ProblemKind,
        harm: Harm,
        detail: str,
        path: str = "",
        tensors: Iterable[str] = (),
        *,
        bytes: int | None = None,
        rank: int | None = None,
        step: int | None = None,
    ) -> None:
        """Note something wrong."""
        keys = [k[:KEY_LENGTH] for k in tensors]
        self.problems.append(
            Problem(kind, harm, detail, path, tuple(keys[:PROBLEM_TENSORS]), len(keys), bytes, rank, step)
        )

    def cut(self, what: str) -> None:
        """Note that something was left out."""
        if what not in self.truncated:
            self.truncated.append(what)

    def part(self, path: str, form: Format, holds: Kind, files: int, version: str | None = None) -> None:
        """Note a store within the checkpoint."""
        self.parts.append(Part(path, form, holds, files, version))
