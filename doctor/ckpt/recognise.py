"""Which format a path is in: by names first, then by the first bytes; the first match wins."""

from __future__ import annotations

import re

from fsdp_doctor.ckpt import torch_zip
from fsdp_doctor.ckpt.draft import Draft, Unreadable
from fsdp_doctor.ckpt.formats import dcp, deepspeed, legacy, safetensors
from fsdp_doctor.ckpt.formats.frameworks import (
    ACCELERATE_FILE,
    ACCELERATE_MODEL,
    ACCELERATE_OPTIMIZER,
    OPTIMIZER_FILE,
    beside,
    layout_of,
)
from fsdp_doctor.ckpt.formats.rank_files import read_ranks
from fsdp_doctor.ckpt.formats.torch_files import read_full
from fsdp_doctor.ckpt.rank_names import RankSet, rank_sets
from fsdp_doctor.ckpt.several_files import sets_of_ranks, whole
from fsdp_doctor.ckpt.torch_file import plain_pickle, strange
from fsdp_doctor.subjects.checkpoint import FileRole, Format, Kind, Layout
from fsdp_doctor.subjects.checkpoint_problem import Harm, Problem, ProblemKind

CHECKPOINT_FOLDER = re.compile(r"(?:step|checkpoint|global_step|iter|epoch|ckpt)[-_=]?(\d{1,18})\b.*", re.I)
TENSOR_FILES = ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin")


def recognise(draft: Draft) -> None:
    """Read the checkpoint into the draft. Raises `Unreadable` where it is none."""
    step = CHECKPOINT_FOLDER.fullmatch(draft.store.root.rstrip("/").rsplit("/", 1)[-1])
    if step:
        draft.folder_step = (int(step[1]), "folder name")
    if draft.store.is_file:
        _file(draft)
        return
    draft.layout = layout_of(draft)
    for found in (_deepspeed, _parts, _dcp, _shards, sets_of_ranks, whole):
        if found(draft):
            beside(draft)
            return
    raise Unreadable(_nothing(draft))


def _file(draft: Draft) -> None:
    node = draft.nodes[""]
    name = draft.store.root.rsplit("/", 1)[-1]
    if not node.regular:
        what = f"a {node.special}" if node.special else node.unreadable or "a folder"
        raise Unreadable(
            Problem(ProblemKind.FILE_SPECIAL, Harm.BROKEN, f"{name} is {what}; it was not opened")
        )
    try:
        with draft.store.open("") as file:
            head = file.read(300)
    except OSError as error:
        words = f"{name} cannot be read: {error.strerror or error}"
        raise Unreadable(Problem(ProblemKind.FILE_FORBIDDEN, Harm.BROKEN, words)) from None
    size = node.size or 0
    if not head:
        raise Unreadable(Problem(ProblemKind.FILE_SHORT, Harm.BROKEN, f"{name} is empty: 0 bytes", bytes=0))
    if head.startswith(torch_zip.MAGIC):
        read_full(draft, "")
    elif legacy.is_legacy(head):
        legacy.read(draft, "")
    elif head[8:9] == b"{" or name.endswith(".safetensors"):
        safetensors.read_whole(draft, [node])
    elif name.endswith((".json", ".distcp", ".metadata")) or name == ".metadata":
        words = f"{name} is a part of a checkpoint: give its folder"
        raise Unreadable(Problem(ProblemKind.NOT_A_CHECKPOINT, Harm.BROKEN, words))
    elif head[257:262] == b"ustar":
        words = f"{name} is a tar file (torch before 0.4 saved so): it is not read"
        raise Unreadable(Problem(ProblemKind.UNSUPPORTED, Harm.BROKEN, words))
    else:
        kind, words = strange(head[:64], size)
        if kind is ProblemKind.NOT_A_CHECKPOINT:
            plain_pickle(draft, "", size)
        raise Unreadable(Problem(kind, Harm.BROKEN, f"{name}: {words}", bytes=size))


def _deepspeed(draft: Draft) -> bool:
    names = {n.name for n in draft.below("")}
    if any(n.folder and n.name == "zero" for n in draft.below("")) and "zero_to_fp32.py" not in names - {
        "zero"
    }:
        deepspeed.read_universal(draft, "")
        return True
    if deepspeed.in_folder(names):
        deepspeed.read(draft, "")
        return True
    tag = _tag(draft)
    if tag is None:
        return False
    inner = draft.below(tag)
    if any(n.folder and n.name == "zero" for n in inner):
        deepspeed.read_universal(draft, tag)
    elif deepspeed.in_folder({n.name for n in inner}):
        deepspeed.read(draft, tag)
    elif not inner:
        draft.layout, draft.format = Layout.DEEPSPEED, Format.ZERO
        draft.problem(
            ProblemKind.FILE_MISSING, Harm.BROKEN, f"the file `latest` names {tag}, which is not there", tag
        )
    else:
        return False
    return True


def _tag(draft: Draft) -> str | None:
    """The folder that DeepSpeed's file `latest` names."""
    for name in ("latest_universal", "latest"):
        node = draft.nodes.get(name)
        if node is None or not node.regular or (node.size or 0) > 400:
            continue
        try:
            with draft.store.open(name) as file:
                tag = file.read(400).decode("utf-8", "replace").strip()
        except OSError:
            continue
        if tag and "/" not in tag and tag not in (".", "..") and "\0" not in tag:
            draft.files[draft.file(name, FileRole.METADATA)].referenced = True
            return tag
    return None


def _parts(draft: Draft) -> bool:
    """Accelerate's and Trainer's folders or files for model and optimizer."""
    found = False
    for node in sorted(draft.below(""), key=lambda n: n.path):
        if not node.folder:
            continue
        for pattern, holds in ((ACCELERATE_MODEL, Kind.MODEL), (ACCELERATE_OPTIMIZER, Kind.OPTIMIZER)):
            if pattern.fullmatch(node.name):
                dcp.read(draft, node.path, holds)
                found = True
    form = draft.format
    files = [n.path for n in draft.below("") if not n.folder]
    sets: dict[str, RankSet] = {}
    for path in sorted(files):
        model, optimizer = ACCELERATE_FILE.fullmatch(path), OPTIMIZER_FILE.fullmatch(path)
        match = model or (optimizer if found or draft.layout in (Layout.ACCELERATE, Layout.TRAINER) else None)
        if match is None:
            continue
        holds = Kind.MODEL if model else Kind.OPTIMIZER
        if match[2] is None:
            read_full(draft, path, holds, path)
            found = True
        else:
            for ranks in rank_sets(p for p in files if p.startswith(path[: match.start(2)])):
                sets.setdefault(ranks.template, ranks)
    for template, ranks in sets.items():
        model_set = template.startswith("pytorch_model")
        before = draft.format
        read_ranks(draft, ranks, Kind.MODEL if model_set else Kind.OPTIMIZER, template)
        draft.format = draft.format if model_set or before is Format.UNKNOWN else before
        found = True
    if form is not Format.UNKNOWN:
        draft.format = form
    if found and not any(p.holds is Kind.MODEL for p in draft.parts):
        whole(draft)
    return found


def _dcp(draft: Draft) -> bool:
    nodes = draft.below("")
    if not dcp.in_folder(n.name for n in nodes if not n.folder or n.name == ".metadata"):
        return False
    dcp.read(draft)
    return True


def _shards(draft: Draft) -> bool:
    for folder in ("", "sharded"):
        nodes = draft.below(folder)
        if any(safetensors.SHARD.fullmatch(n.name) for n in nodes):
            whole = [n for n in draft.below("") if n.name.endswith(".safetensors")]
            if folder and whole:
                return False  # the consolidated copy is what loads anywhere
            safetensors.read_shards(draft, folder, nodes)
            return True
    return False


def _nothing(draft: Draft) -> Problem:
    """Why the folder is no checkpoint, and what to give instead."""
    inner: dict[str, set[str]] = {}
    for node in draft.nodes.values():
        if node.parent and not node.folder:
            inner.setdefault(node.parent, set()).add(node.name)
    folders = sorted(f for f, names in inner.items() if looks(names))
    if len(folders) == 1:
        return Problem(
            ProblemKind.SEVERAL,
            Harm.BROKEN,
            f"no checkpoint itself; its folder {folders[0]} looks like one",
            folders[0],
        )
    if folders:
        words = f"no checkpoint itself; {len(folders)} of its folders look like one: {', '.join(folders[:5])}"
        return Problem(ProblemKind.SEVERAL, Harm.BROKEN, f"{words}; `ckpt latest` finds the newest whole one")
    if not any(not n.folder for n in draft.nodes.values()):
        return Problem(ProblemKind.NOT_A_CHECKPOINT, Harm.BROKEN, "the folder is empty")
    names = ", ".join(sorted(n.path for n in draft.nodes.values() if not n.folder)[:4])
    return Problem(ProblemKind.NOT_A_CHECKPOINT, Harm.BROKEN, f"no file of a checkpoint in it ({names} …)")


def looks(names: set[str]) -> bool:
    """Whether these are names of files of a checkpoint."""
    return (
        dcp.in_folder(names)
        or deepspeed.in_folder(names)
        or any(n.endswith((".safetensors", ".pt", ".pth", ".bin")) for n in names)
    )
