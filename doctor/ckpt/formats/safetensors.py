"""safetensors files: whole tensors, with or without an index, or DCP's shards of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from fsdp_doctor.ckpt.coverage import coverage
from fsdp_doctor.ckpt.draft import Draft, TensorDraft, counted
from fsdp_doctor.ckpt.json_file import read_json
from fsdp_doctor.ckpt.safetensors_header import Entry, Header, HeaderError
from fsdp_doctor.ckpt.safetensors_header import read as read_header
from fsdp_doctor.ckpt.store import Node
from fsdp_doctor.subjects.checkpoint import FileRole, Format, Kind
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind
from fsdp_doctor.subjects.checkpoint_world import World, WorldSource

SHARD = re.compile(r"shard-(\d{1,9})-model-(\d{1,9})-of-(\d{1,9})\.safetensors")
NUMBERED = re.compile(r"(.+)-(\d{1,9})-of-(\d{1,9})\.(safetensors|bin)")
SHARDING = "DCP_SHARDING_INFO"


def read_shards(draft: Draft, folder: str, nodes: Iterable[Node]) -> None:
    """Shards that HuggingFaceStorageWriter(save_distributed=True) wrote."""
    draft.format = Format.DCP_SAFETENSORS
    numbers: dict[int, set[int]] = {}
    files_each = 1
    shards = sorted((n for n in nodes if SHARD.fullmatch(n.name)), key=lambda n: n.name)
    for node in shards:
        found = SHARD.fullmatch(node.name)
        assert found is not None
        shard, part, files_each = int(found[1]), int(found[2]), max(files_each, int(found[3]))
        numbers.setdefault(shard, set()).add(part)
        header = _header(draft, node, folder)
        draft.files[draft.file(node.path)].rank = shard - 1
        if header is not None:
            _add(draft, node, folder, header, shard - 1)
    highest = max(numbers, default=0)
    missing = [s for s in range(1, min(highest, 1 << 20) + 1) if s not in numbers]
    if missing:
        draft.problem(
            ProblemKind.SHARD_MISSING,
            Harm.BROKEN,
            f"shards {_few(missing)} of {highest} are missing: torch loads the rest and leaves their rows as "
            "they were",
            f"{folder}/" if folder else "",
        )
    _judge(draft, folder)
    draft.part(folder, draft.format, Kind.MODEL, len(shards))
    draft.world = World(
        highest or None,
        WorldSource.SHARD_NUMBERS,
        f"highest shard number {highest}",
        certain=not missing,
        at_least=highest,
        writers=tuple(sorted(s - 1 for s in numbers)),
    )


def _few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:6])) + (" …" if len(numbers) > 6 else "")


def _header(draft: Draft, node: Node, part: str) -> Header | None:
    entry = draft.files[draft.file(node.path, FileRole.DATA, part)]
    entry.referenced = True
    shown = node.name or draft.store.root.rstrip("/").rsplit("/", 1)[-1]
    if not node.regular or node.size is None:
        return None
    if not node.size:
        draft.problem(ProblemKind.FILE_SHORT, Harm.BROKEN, f"{shown} is empty: 0 bytes", node.path, bytes=0)
        return None
    try:
        with draft.store.open(node.path) as file:
            header = read_header(file, node.size)
    except HeaderError as error:
        draft.problem(
            ProblemKind.HEADER_DAMAGED, Harm.BROKEN, f"{shown}: {error}", node.path, bytes=node.size
        )
        return None
    except OSError as error:
        draft.problem(
            ProblemKind.FILE_FORBIDDEN,
            Harm.BROKEN,
            f"{shown} cannot be read: {error.strerror or error}",
            node.path,
        )
        return None
    entry.needed, entry.items = header.end, len(header.entries)
    if header.wrong:
        draft.problem(
            ProblemKind.HEADER_DAMAGED,
            Harm.BROKEN,
            f"{shown}: the header's byte ranges do not fit the shapes of {counted(header.wrong)}, "
            "overlap or leave gaps",
            node.path,
            header.wrong,
        )
    if node.size != header.end:
        keys = [e.name for e in header.entries if e.start + e.length > node.size]
        short = node.size < header.end
        draft.problem(
            ProblemKind.FILE_SHORT if short else ProblemKind.HEADER_DAMAGED,
            Harm.BROKEN,
            f"{shown} has {node.size} bytes, its header describes {header.end}",
            node.path,
            keys,
            bytes=abs(header.end - node.size),
        )
    return header


def _add(draft: Draft, node: Node, part: str, header: Header, rank: int | None) -> None:
    sharding = _sharding(header)
    index = draft.file(node.path)
    for entry in header.entries:
        offsets = sharding.get(entry.name, (0,) * len(entry.shape))
        tensor = draft.tensor(TensorDraft(entry.name, (entry.name,), entry.shape, entry.dtype, part))
        tensor.contiguous = True
        if len(offsets) != len(entry.shape) or len(tensor.shape) != len(entry.shape):
            _conflict(draft, node, entry, tensor)
            continue
        if tensor.dtype != entry.dtype:
            _conflict(draft, node, entry, tensor)
        # No file tells the whole shape: it is where the last part ends.
        tensor.shape = tuple(
            max(a, o + s) for a, o, s in zip(tensor.shape, offsets, entry.shape, strict=True)
        )
        tensor.add(offsets, entry.shape, index, entry.start, entry.length, rank)


def _conflict(draft: Draft, node: Node, entry: Entry, tensor: TensorDraft) -> None:
    draft.problem(
        ProblemKind.DTYPE_CONFLICT,
        Harm.BROKEN,
        f"{node.name} holds {entry.dtype} {list(entry.shape)} where another file holds {tensor.dtype} "
        f"{list(tensor.shape)}",
        node.path,
        (entry.name,),
    )


def _sharding(header: Header) -> Mapping[str, tuple[int, ...]]:
    text = header.metadata.get(SHARDING)
    try:
        top = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for name, value in top.items() if isinstance(top, dict) else ():
        offsets = value.get("saved_offsets") if isinstance(value, dict) else None
        if isinstance(offsets, list) and all(type(n) is int and 0 <= n < 1 << 62 for n in offsets):
            found[name] = tuple(offsets)
    return found


def _judge(draft: Draft, part: str) -> None:
    gaps, overlaps, lost, first = [], [], 0, ""
    for tensor in draft.tensors.values():
        if tensor.part != part:
            continue
        result = coverage(tensor.shape, tensor.place)
        tensor.splits = result.splits
        if result.missing:
            gaps.append(tensor.key)
            lost += result.missing
            first = first or f"{tensor.key} {list(tensor.shape)} lacks {result.missing} elements"
        if result.overlap:
            overlaps.append(tensor.key)
    if gaps:
        draft.problem(
            ProblemKind.COVERAGE_GAP,
            Harm.BROKEN,
            f"the shards of {counted(gaps)} do not cover {'it' if len(gaps) == 1 else 'them'}, and loading "
            f"leaves the gap as it was: {first}",
            part,
            gaps,
            bytes=lost,
        )
    if overlaps:
        draft.problem(
            ProblemKind.COVERAGE_OVERLAP,
            Harm.BROKEN,
            f"{counted(overlaps)} {'is' if len(overlaps) == 1 else 'are'} held twice",
            part,
            overlaps,
        )


def read_whole(draft: Draft, nodes: Iterable[Node], folder: str = "", index: str | None = None) -> None:
    """Files of whole tensors, and their index where there is one."""
    draft.format = Format.SAFETENSORS
    listed: dict[str, str] = {}
    if index is not None:
        listed = _index(draft, index, folder)
    found = {n.path: n for n in nodes}
    wanted = {f"{folder}/{n}" if folder else n for n in listed.values()} or set(found)
    wanted |= promised(found)
    for path in sorted(wanted):
        node = draft.nodes.get(path)
        if node is None:
            keys = [k for k, n in listed.items() if (f"{folder}/{n}" if folder else n) == path]
            draft.file(path, FileRole.DATA, folder)
            draft.problem(
                ProblemKind.FILE_MISSING,
                Harm.BROKEN,
                f"{path} is missing" + (f": the index places {counted(keys)} in it" if keys else ""),
                path,
                keys,
            )
            continue
        header = _header(draft, node, folder)
        if header is None:
            continue
        if SHARDING in header.metadata and _parted(header):
            draft.format = Format.DCP_SAFETENSORS
        _add(draft, node, folder, header, None)
    absent = [k for k in listed if (folder, k) not in draft.tensors] if draft.tensors else []
    if absent and not any(p.kind is ProblemKind.FILE_MISSING for p in draft.problems):
        draft.problem(
            ProblemKind.COVERAGE_GAP,
            Harm.BROKEN,
            f"the index names {counted(absent)} that the files do not hold",
            index or "",
            absent,
        )
    _judge(draft, folder)
    draft.part(folder, draft.format, Kind.MODEL, len(wanted))


def _parted(header: Header) -> bool:
    return any(any(o) for o in _sharding(header).values())


def promised(found: Mapping[str, Node]) -> set[str]:
    """Files that numbered names promise: 00002-of-00003."""
    names: set[str] = set()
    for path, node in found.items():
        match = NUMBERED.fullmatch(node.name)
        if match and int(match[3]) <= 10_000:
            width = len(match[2])
            names |= {
                f"{node.parent + '/' if node.parent else ''}{match[1]}-{i:0{width}d}-of-{match[3]}.{match[4]}"
                for i in range(1, int(match[3]) + 1)
            }
            names.add(path)
    return names


def _index(draft: Draft, path: str, folder: str) -> dict[str, str]:
    draft.files[draft.file(path, FileRole.METADATA, folder)].referenced = True
    top = read_json(draft, path)
    names = top.get("weight_map") if isinstance(top, dict) else None
    if not isinstance(names, dict):
        if top is not None:
            draft.problem(ProblemKind.JSON_DAMAGED, Harm.BROKEN, f"{path} has no weight_map", path)
        return {}
    listed: dict[str, str] = {}
    for key, name in names.items():
        if (
            not isinstance(name, str)
            or "/" in name
            or "\\" in name
            or "\0" in name
            or name in ("", ".", "..")
        ):
            draft.problem(
                ProblemKind.NAME_UNSAFE,
                Harm.UNSAFE,
                f"{path} names the file {str(name)[:200]!a}: not opened",
                path,
                (key,),
            )
        else:
            listed[key] = name
    return listed
