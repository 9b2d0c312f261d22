"""Words for checkpoints that cannot be written or loaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from fsdp_doctor.diagnosis.culprit.blame import listed_by_checkpoint
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import Words
from fsdp_doctor.subjects.diagnosis import Remedy
from fsdp_doctor.subjects.incident import Hit

PREFIXES = (
    "_fsdp_wrapped_module.",
    "_checkpoint_wrapped_module.",
    "_orig_mod.",
    "base_model.model.",
    "module.",
    "model.",
)
QUOTA = re.compile(r"quota exceeded|EDQUOT|Errno 122\b", re.I)
LFS_POINTER = "'v'."
"""The first letter of "version https://git-lfs…", as the unpickler names it."""


def names(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """Names that do not match: the prefix that one side has, or flat shards."""
    del view, first
    text = " ".join(h.fields.get("miss", "") + " " + h.fields.get("un", "") for h in hits)
    if "flat_param" in text:
        remedy = Remedy(
            "Load it into a model wrapped by FSDP in the same way on the same number of ranks "
            "(LOCAL_STATE_DICT), then save a FULL or SHARDED state dict; or consolidate the shards",
            "fsdp-doctor ckpt check DIR --world-size N",
        )
        title = "The checkpoint holds FSDP1's flat shards (_flat_param), which a plain model cannot load"
        return replace(words, title=title, fixes=(remedy, *words.fixes))
    prefix = next((p for p in PREFIXES if f'"{p}' in text or f".{p}" in text), None)
    if prefix is None:
        return words
    strip = (
        f"Strip or add the prefix {prefix!r}, or load with "
        "torch.distributed.checkpoint.state_dict.set_model_state_dict"
    )
    title = f"{words.title}: the prefix {prefix!r} is on one side only"
    return replace(words, title=title, fixes=(Remedy(strip), *words.fixes))


def flat(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """A size that differs because one side is a flat shard."""
    del view, hits
    saved, current = first.fields.get("ck", ""), first.fields.get("md", "")
    if (saved.count(",") == 0) == (current.count(",") == 0):
        return words
    why = (
        "one side is flat (1-D), the other whole: shards of FSDP1 (LOCAL_STATE_DICT, or a flat "
        "parameter) and a full or sharded state dict do not fit. "
    )
    return replace(words, why=why + words.why)


def damaged(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """A file that is the pointer of Git LFS and no checkpoint."""
    del view, hits
    if first.fields.get("key") != LFS_POINTER:
        return words
    return replace(
        words,
        title="A checkpoint file is no checkpoint: it begins like the pointer that Git LFS leaves in its "
        "place",
        why="The repository was cloned without Git LFS, so that the file holds a few lines of text. A file "
        "that was cut while it was written or copied may look so too.",
        fixes=(
            Remedy("Fetch the real file: git lfs install, then git lfs pull", "head -c 120 FILE"),
            *words.fixes,
        ),
    )


ZERO = re.compile(r"zero|deepspeed", re.I)
SIZES = re.compile(r"world[_ ]?size\D{0,30}(\d+)\b\D{1,80}(\d+)\b", re.I)


def other_world(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """The two world sizes, and what DeepSpeed needs to go from one to the other."""
    del view, hits
    sizes = SIZES.search(first.text)
    if sizes is not None and sizes[1] != sizes[2]:
        words = replace(
            words, title=f"The checkpoint was saved on {sizes[1]} ranks and is loaded on {sizes[2]}"
        )
    if not ZERO.search(first.text):
        return words
    universal = Remedy(
        "Convert it to a universal checkpoint, which fits any number of ranks, and load it with "
        "load_universal: true; or load on as many ranks as it was saved on",
        "python ds_to_universal.py --input_folder DIR/global_stepN --output_folder "
        "DIR/global_stepN_universal",
    )
    why = (
        "DeepSpeed's ZeRO keeps one part of the optimizer's state per rank, and loads it on as many "
        "ranks only."
    )
    return replace(words, why=why, fixes=(universal,))


def missing_file(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """Where some ranks alone miss a shard, the others found theirs: the folder may not be the same one."""
    listed = listed_by_checkpoint(view, hits)
    ranks = frozenset(h.origin.rank for h in hits if h.origin.rank is not None) if listed is None else listed
    others = (view.ranks | view.expected) - ranks
    if not first.fields.get("path", "").endswith(".distcp") or not ranks or not others:
        return words
    look = Remedy(
        "Look on each node whether the file is there: if it is on another one, the folder is not shared; "
        "bring all files into one folder that every node sees, and delete nothing before",
        f"srun -l ls -la {first.fields['path'].rpartition('/')[0] or 'DIR'}",
    )
    why = "Other ranks found their files: the folder is local to each node, or a part of it was not copied."
    title = words.title.replace(
        ": the checkpoint is incomplete", " where these ranks look, while others find theirs"
    )
    return replace(words, title=title, why=why, fixes=(look, *words.fixes[1:]))


def full(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """A quota that is used up, where df shows free space."""
    del view
    if not any(QUOTA.search(h.text) for h in (first, *hits)):
        return words
    return replace(
        words,
        title="The quota of the file system is used up",
        why="The user's or the project's share of the file system is full, whatever df says is free; the "
        "file that was being written is incomplete.",
        fixes=(
            Remedy(
                "Free space or files of that user or project, keep fewer checkpoints, delete the incomplete "
                "one, or ask for a larger quota",
                "quota -s; lfs quota -h DIR",
            ),
        ),
    )


def weights_only(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """The class that weights_only refuses, or that the file is none of torch."""
    del hits, first
    for hit in view.hits:
        if hit.code != "LOG602":
            continue
        if name := hit.fields.get("cls") or hit.fields.get("cls2"):
            allow = (
                f"torch.serialization.add_safe_globals([{name}]), or load a file that you trust with "
                "weights_only=False"
            )
            return replace(words, title=f"{words.title}: it holds {name}", fixes=(Remedy(allow),))
        if "op" in hit.fields:
            look = Remedy("Look at the file: a Git LFS pointer or text; run git lfs pull", "head -c 100 FILE")
            return replace(
                words, title=f"{words.title}: it is no torch file at all", fixes=(look, *words.fixes)
            )
    return words
