"""What is wrong with the files of a checkpoint as such: unreadable, changing, of two saves, hostile."""

from __future__ import annotations

import os

from fsdp_doctor.ckpt.draft import Draft
from fsdp_doctor.ckpt.path import text
from fsdp_doctor.ckpt.trust import trust_of
from fsdp_doctor.subjects.checkpoint import Trust
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind

OF_THE_PICKLE = (
    ProblemKind.METADATA_DAMAGED,
    ProblemKind.METADATA_STRANGE,
    ProblemKind.PICKLE_DAMAGED,
    ProblemKind.NOT_A_CHECKPOINT,
)
"""Problems of a file that only follow from a pickle that was refused."""


def judge_files(draft: Draft) -> None:
    """Add what is wrong to the draft's problems."""
    _referenced(draft)
    _undecodable(draft)
    _beside(draft)
    _changed(draft)
    _steps_mixed(draft)
    _unsafe(draft)


def _referenced(draft: Draft) -> None:
    """Files of the checkpoint that are no files, cannot be read, or lie outside of it."""
    for file in draft.files:
        node = file.node
        if node is None or not (file.referenced or node.special):
            continue
        if node.special is not None or (node.folder and file.referenced):
            what = f"a {node.special}" if node.special else "a folder"
            draft.problem(
                ProblemKind.FILE_SPECIAL,
                Harm.BROKEN,
                f"{text(file.path)} is {what}, no file: not opened",
                text(file.path),
            )
        elif node.unreadable is not None:
            link = f", a link to {text(node.link)}," if node.link is not None else ""
            draft.problem(
                ProblemKind.FILE_LINK if node.link is not None else ProblemKind.FILE_FORBIDDEN,
                Harm.BROKEN,
                f"{text(file.path)}{link} cannot be read: {node.unreadable}",
                text(file.path),
            )
        elif node.outside:
            draft.problem(
                ProblemKind.FILE_LINK,
                Harm.DOUBT,
                f"{text(file.path)} is a link that leads out of the checkpoint, to {text(node.link or '')}",
                text(file.path),
            )


def _undecodable(draft: Draft) -> None:
    """Names that other programs and systems cannot open."""
    strange = [n.path for n in draft.nodes.values() if not _utf8(n.path)]
    if strange:
        draft.problem(
            ProblemKind.NAME_UNDECODABLE,
            Harm.DOUBT,
            f"{len(strange)} {'name is' if len(strange) == 1 else 'names are'} no UTF-8, such as "
            f"{text(strange[0])}",
            text(strange[0]),
        )


def _beside(draft: Draft) -> None:
    """What lies in the folder and belongs to no checkpoint, or cannot be listed."""
    known = {f.path for f in draft.files}
    for node in draft.nodes.values():
        if node.special is not None and node.path and node.path not in known:
            draft.problem(
                ProblemKind.FILE_SPECIAL,
                Harm.DOUBT,
                f"{text(node.path)} is a {node.special}: not opened",
                text(node.path),
            )
        elif node.path.endswith("/") and node.unreadable:
            draft.problem(
                ProblemKind.FILE_FORBIDDEN,
                Harm.DOUBT,
                f"the folder {text(node.path)} cannot be listed: {node.unreadable}",
                text(node.path),
            )


def _utf8(name: str) -> bool:
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _changed(draft: Draft) -> None:
    """Files that are not any more what they were when they were read."""
    changed = []
    for file in draft.files:
        if file.node is not None and file.referenced and file.node.stamp is not None:
            now = draft.store.again(file.path)
            if now.stamp != file.node.stamp:
                changed.append(text(file.path))
    if changed:
        draft.problem(
            ProblemKind.CHANGED,
            Harm.DOUBT,
            f"{len(changed)} file{'' if len(changed) == 1 else 's'} changed while being read "
            f"({', '.join(changed[:4])}): a save may be running",
            changed[0],
        )


def _steps_mixed(draft: Draft) -> None:
    """Files of one save hold the same optimizer steps."""
    stepped = [f for f in draft.files if f.steps]
    if len(stepped) < 2:
        return
    common = set.intersection(*(f.steps for f in stepped))
    if common or any(len(f.steps) > 1 for f in stepped):
        return
    by_step: dict[int, list[str]] = {}
    for file in stepped:
        by_step.setdefault(next(iter(file.steps)), []).append(text(file.path))
    most = max(by_step, key=lambda s: len(by_step[s]))
    odd = [p for s, paths in by_step.items() if s != most for p in paths]
    words = "; ".join(f"step {s}: {', '.join(p[:3])}" for s, p in sorted(by_step.items()))
    draft.problem(
        ProblemKind.STEPS_MIXED,
        Harm.BROKEN,
        f"files hold different optimizer steps ({words})",
        odd[0],
        step=most,
    )


def _unsafe(draft: Draft) -> None:
    """Pickles that name what runs code."""
    bad = [(n, f) for n, _, f in draft.named() if trust_of(n) is Trust.DANGEROUS]
    if not bad:
        return
    files = tuple(dict.fromkeys(p for _, f in bad for p in f))
    # Why such a file cannot be read is no second matter.
    draft.problems[:] = [p for p in draft.problems if p.kind not in OF_THE_PICKLE or p.path not in files]
    shown = text(files[0]) if files and files[0] else os.path.basename(text(draft.store.root))
    draft.problem(
        ProblemKind.PICKLE_HOSTILE,
        Harm.UNSAFE,
        f"{shown}: its pickle names {', '.join(text(n) for n, _ in bad[:6])}, which runs code or reaches "
        "files when it is loaded; nothing was run here. Do not load it",
        text(files[0]) if files else "",
    )
