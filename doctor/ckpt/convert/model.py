"""What a converter reads and writes: a tree of dictionaries and lists whose leaves are tensors and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from fsdp_doctor.tables.torch_dtypes import item_bytes

Step = str | int
"""One step into the tree: the key of a dictionary or the place in a list."""
Path = tuple[Step, ...]


class ConvertError(Exception):
    """It cannot be converted exactly; one line that says why and what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """A part of a tensor and the bytes that hold it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    """First byte of the values, or of the archive around them."""
    length: int
    archive: bool = False
    """DCP: the values lie in a torch.save archive of `length` bytes."""
    crc: int | None = None
    """CRC-32 of the values where one is stored for exactly these bytes."""


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """A tensor, of the parts that hold it."""

    dtype: str
    shape: tuple[int, ...]
    sources: tuple[Source, ...]
    requires_grad: bool = False
    to: str | None = None
    """The dtype that it is cast to."""

    @property
    def written(self) -> str:
        """The dtype in the target."""
        return self.to or self.dtype

    @property
    def bytes(self) -> int:
        """Of the values as they are written."""
        return prod(self.shape) * (item_bytes(self.written) or 1)


@dataclass(frozen=True, slots=True)
class Archived:
    """A value that is no tensor, inside a DCP data file."""

    file: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Opaque:
    """An object that is not written again: only its class is known, and nothing of it was run."""

    name: str


@dataclass(frozen=True, slots=True)
class Named:
    """A value of torch that a pickle spells as a name, with arguments or without: a dtype, a device."""

    name: str
    arguments: tuple[object, ...] | None = None


class Ordered(dict[object, object]):
    """An OrderedDict in the file."""


def leaves(tree: object) -> Iterator[tuple[Path, object]]:
    """Tensors and values as `torch.distributed.checkpoint` flattens a state dict (torch >= 2.4).

    Dictionaries are always followed, lists where they hold tensors or dictionaries; tuples never.
    """
    yield from _below((), tree)


def _below(path: Path, value: object) -> Iterator[tuple[Path, object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _below((*path, str(key)), inner)
    elif terminal(value):
        yield path, value
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _below((*path, at), inner)


def terminal(value: object) -> bool:
    """Whether torch takes it for one value."""
    if isinstance(value, dict):
        return False
    if not isinstance(value, list):
        return True
    return not any(
        isinstance(v, (dict, TensorLeaf)) or (isinstance(v, list) and not terminal(v)) for v in value
    )


def tensors(tree: object) -> Iterator[tuple[Path, TensorLeaf]]:
    """All tensors of a tree with their paths, also those inside tuples."""
    stack: list[tuple[Path, object]] = [((), tree)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, TensorLeaf):
            yield path, value
        elif isinstance(value, dict):
            stack.extend(
                ((*path, k if isinstance(k, int) else str(k)), v) for k, v in reversed(value.items())
            )
        elif isinstance(value, (list, tuple)):
            stack.extend(((*path, i), v) for i, v in reversed(list(enumerate(value))))


def dotted(path: Path) -> str:
    """The flat key."""
    return ".".join(map(str, path))


def put(tree: dict[object, object], path: Path, value: object) -> None:
    """Place a value in the tree: text goes into dictionaries, numbers into lists, as DCP's `set_element`."""
    box: object = tree
    for step, following in zip(path, (*path[1:], None), strict=True):
        inner: object = value if following is None else [] if isinstance(following, int) else {}
        if isinstance(step, int) and isinstance(box, list):
            if step > len(box) + 1_000_000:
                raise ConvertError(f"{dotted(path)[:100]!a}: a place in a list that cannot be")
            while len(box) <= step:
                box.append(None)
            if following is None or box[step] is None:
                box[step] = inner
            box = box[step]
        elif isinstance(step, str) and isinstance(box, dict):
            if following is None:
                box[step] = inner
            box = box.setdefault(step, inner)
        else:
            raise ConvertError(f"{dotted(path)[:100]!a} does not fit the values beside it")
