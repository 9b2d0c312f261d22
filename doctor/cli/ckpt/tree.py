"""Tensors as a tree by the parts of their names; equal numbered children are shown once."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fsdp_doctor.subjects.checkpoint import Kind, Tensor

FORMS = ("B", "KB", "MB", "GB", "TB", "PB")


@dataclass(slots=True)
class Branch:
    """A part of a name, with what is below it."""

    label: str
    tensor: Tensor | None = None
    below: dict[str, Branch] = field(default_factory=dict)
    bytes: int = 0
    tensors: int = 0
    form: tuple[object, ...] = ()
    """Equal for branches that look alike."""


def size(count: int) -> str:
    """Bytes in words, in powers of 1000: 512 B, 1.3 KB, 26.1 GB."""
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(FORMS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {FORMS[unit]}" if unit == 0 or value >= 99.95 else f"{value:.1f} {FORMS[unit]}"


def chosen(
    tensors: Iterable[Tensor], patterns: Sequence[str], kinds: Sequence[str], dtypes: Sequence[str]
) -> list[Tensor]:
    """Tensors that match: any of the patterns (with * and ?, else a part of the key), kinds and dtypes."""

    def wanted(tensor: Tensor) -> bool:
        if kinds and tensor.kind.value not in kinds:
            return False
        if dtypes and tensor.dtype not in dtypes:
            return False
        return not patterns or any(_matches(tensor.key, p) for p in patterns)

    return [t for t in tensors if wanted(t)]


def _matches(key: str, pattern: str) -> bool:
    if any(c in pattern for c in "*?["):
        return fnmatch.fnmatchcase(key, pattern)
    return pattern in key


def grow(tensors: Iterable[Tensor]) -> Branch:
    """The tree of some tensors' keys."""
    root = Branch("")
    for tensor in tensors:
        at = root
        for part in tensor.key.split("."):
            at = at.below.setdefault(part, Branch(part))
        at.tensor = tensor
    _sum(root)
    return root


def _sum(root: Branch) -> None:
    """Sizes and forms from the leaves up, without recursion: names may have a thousand parts."""
    order, stack = [], [root]
    while stack:
        branch = stack.pop()
        order.append(branch)
        stack.extend(branch.below.values())
    for branch in reversed(order):
        own = branch.tensor
        shape: tuple[object, ...] = () if own is None else (own.shape, own.dtype, own.splits, own.kind)
        branch.bytes = (0 if own is None else own.bytes) + sum(b.bytes for b in branch.below.values())
        branch.tensors = (0 if own is None else 1) + sum(b.tensors for b in branch.below.values())
        branch.form = (hash(shape), *(hash((k, b.form)) for k, b in branch.below.items()))


def rows(root: Branch, depth: int | None) -> Iterator[tuple[int, str, str]]:
    """(indentation, name, what is there) per line, `depth` levels deep."""
    stack: list[tuple[int, str, Branch, int]] = [
        (0, label, branch, count) for label, branch, count in reversed(_together(root))
    ]
    while stack:
        level, label, branch, count = stack.pop()
        label, branch = _straight(label, branch)
        open_below = bool(branch.below) and (depth is None or level + 1 < depth)
        yield level, label, _words(branch, count)
        if open_below:
            stack += [(level + 1, n, b, c) for n, b, c in reversed(_together(branch))]


def _straight(label: str, branch: Branch) -> tuple[str, Branch]:
    """Names that have one child each are joined on a line."""
    while branch.tensor is None and len(branch.below) == 1:
        child = next(iter(branch.below.values()))
        label, branch = f"{label}.{child.label}", child
    return label, branch


def _together(branch: Branch) -> list[tuple[str, Branch, int]]:
    """Children, those with consecutive numbers and equal forms joined: "0-31"."""
    numbered = [b for b in branch.below.values() if b.label.isdecimal() and len(b.label) < 9]
    found = [(b.label, b, 1) for b in branch.below.values() if not (b.label.isdecimal() and len(b.label) < 9)]
    run: list[Branch] = []
    for child in sorted(numbered, key=lambda b: int(b.label)):
        if run and (child.form != run[0].form or int(child.label) != int(run[-1].label) + 1):
            found.append(_run(run))
            run = []
        run.append(child)
    if run:
        found.append(_run(run))
    return found


def _run(run: list[Branch]) -> tuple[str, Branch, int]:
    label = run[0].label if len(run) == 1 else f"{run[0].label}-{run[-1].label}"
    return label, run[0], len(run)


def _words(branch: Branch, count: int) -> str:
    tensor = branch.tensor
    if tensor is None or branch.below:
        total = branch.tensors * count
        each = f"{count} x {size(branch.bytes)}, " if count > 1 else f"{size(branch.bytes)}, "
        return f"{each}{total} tensor{'s' if total != 1 else ''}"
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    cut = "x".join(map(str, tensor.splits)) if max(tensor.splits, default=1) > 1 else ""
    parts = [shape, tensor.dtype, size(tensor.bytes)]
    if cut:
        parts.append(f"in {cut}")
    if tensor.view_of:
        parts.append(f"shares storage with {tensor.view_of}")
    if tensor.kind is Kind.OTHER:
        parts.append("state")
    return "  ".join(parts)
