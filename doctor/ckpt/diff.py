"""What differs between two checkpoints: tensors, shapes, dtypes, values, and everything that is no tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fsdp_doctor.subjects.checkpoint import CheckpointIndex, Kind, Tensor
from fsdp_doctor.subjects.checkpoint_state import Entry

Identity = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Changed:
    """One thing that both have and that is not the same."""

    key: str
    first: str
    second: str


@dataclass(slots=True)
class Difference:
    """Two checkpoints compared, A with B."""

    only_first: list[Tensor] = field(default_factory=list)
    only_second: list[Tensor] = field(default_factory=list)
    shapes: list[Changed] = field(default_factory=list)
    dtypes: list[Changed] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    """Keys whose checksums differ."""
    equal_values: int = 0
    uncompared: list[str] = field(default_factory=list)
    """Keys whose values could not be compared."""
    entries: list[Changed] = field(default_factory=list)
    facts: list[Changed] = field(default_factory=list)
    """Format, world size, step, optimizer."""
    renamed: str = ""
    """A prefix that explains why nothing matched."""
    same: int = 0
    """Tensors of equal name, shape and dtype."""

    @property
    def equal(self) -> bool:
        """Nothing that belongs to the model's or the run's state differs."""
        return not (
            self.only_first or self.only_second or self.shapes or self.dtypes or self.values or self.entries
        )


def compare(
    first: CheckpointIndex,
    second: CheckpointIndex,
    values: Callable[[Tensor, Tensor], bool | None] | None = None,
) -> Difference:
    """Compare two indexes; `values` says whether two tensors hold the same, or None where it cannot."""
    found = Difference()
    ours, theirs = _by_identity(first.tensors), _by_identity(second.tensors)
    if not ours.keys() & theirs.keys():
        found.renamed = _prefix(ours.keys(), theirs.keys())
    for identity, tensor in ours.items():
        other = theirs.get(identity)
        if other is None:
            found.only_first.append(tensor)
            continue
        if tensor.shape != other.shape:
            found.shapes.append(Changed(tensor.key, _shape(tensor), _shape(other)))
        if tensor.dtype != other.dtype:
            found.dtypes.append(Changed(tensor.key, tensor.dtype, other.dtype))
        if (tensor.shape, tensor.dtype) == (other.shape, other.dtype):
            found.same += 1
            if values is not None:
                _value(found, tensor, values(tensor, other))
    found.only_second = [t for i, t in theirs.items() if i not in ours]
    _entries(found, first.entries, second.entries)
    _facts(found, first, second)
    return found


def _value(found: Difference, tensor: Tensor, same: bool | None) -> None:
    if same is None:
        found.uncompared.append(tensor.key)
    elif same:
        found.equal_values += 1
    else:
        found.values.append(tensor.key)


def _by_identity(tensors: Iterable[Tensor]) -> dict[Identity, Tensor]:
    """By kind, parameter and state, so that another key before the model's names makes no difference."""
    return {_identity(t): t for t in tensors}


def _identity(tensor: Tensor) -> Identity:
    name = tensor.key if tensor.kind is Kind.OTHER else tensor.name
    return tensor.kind.value, name, tensor.state or ""


def _prefix(first: Iterable[Identity], second: Iterable[Identity]) -> str:
    """What stands before all of one side's model names and none of the other's."""
    ours = {n for k, n, _ in first if k == Kind.MODEL.value}
    theirs = {n for k, n, _ in second if k == Kind.MODEL.value}
    for side, other, words in ((ours, theirs, "A"), (theirs, ours, "B")):
        for name in sorted(side):
            match = next((o for o in other if name.endswith("." + o)), None)
            if match is not None:
                prefix = name[: -len(match)]
                if all(n.startswith(prefix) for n in side):
                    return f"all names in {words} begin with {prefix!r}"
    return ""


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _entries(found: Difference, first: Iterable[Entry], second: Iterable[Entry]) -> None:
    ours = {(e.part, e.key): e for e in first}
    theirs = {(e.part, e.key): e for e in second}
    for place, entry in ours.items():
        other = theirs.get(place)
        if other is None:
            found.entries.append(Changed(entry.key, _shown(entry), "not there"))
        elif (entry.value, entry.type) != (other.value, other.type) and entry.value_read and other.value_read:
            found.entries.append(Changed(entry.key, _shown(entry), _shown(other)))
    found.entries += [Changed(e.key, "not there", _shown(e)) for p, e in theirs.items() if p not in ours]


def _shown(entry: Entry) -> str:
    return entry.type if entry.value is None else str(entry.value)


def _facts(found: Difference, first: CheckpointIndex, second: CheckpointIndex) -> None:
    pairs = (
        ("format", first.format.value, second.format.value),
        ("world size", first.world.size, second.world.size),
        ("shard degree", first.world.shard_degree, second.world.shard_degree),
        ("step", first.step, second.step),
        ("optimizer keys", first.optimizer.keying.value, second.optimizer.keying.value),
        ("optimizer", first.optimizer.kind, second.optimizer.kind),
        ("key before the model", first.model_root, second.model_root),
    )
    found.facts = [Changed(n, _word(a), _word(b)) for n, a, b in pairs if a != b]


def _word(value: object) -> str:
    return "none" if value in (None, "") else str(value)
