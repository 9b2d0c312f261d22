"""The manifest that training code may have written beside a checkpoint."""

from __future__ import annotations

from fsdp_doctor.ckpt.draft import Draft
from fsdp_doctor.ckpt.json_file import read_json
from fsdp_doctor.codec import FormatError, from_json
from fsdp_doctor.subjects.checkpoint_manifest import MANIFEST_NAME, TAIL_BYTES, FileSum, Manifest
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind


def add_manifest(draft: Draft) -> None:
    """Read it where it is there, and compare the files' sizes with it."""
    if draft.store.is_file or not draft.has(MANIFEST_NAME):
        return
    value = read_json(draft, MANIFEST_NAME, Harm.DOUBT)
    if value is None:
        return
    try:
        manifest = from_json(Manifest, value)
    except FormatError as error:
        draft.problem(ProblemKind.JSON_DAMAGED, Harm.DOUBT, f"{MANIFEST_NAME}: {error}", MANIFEST_NAME)
        return
    draft.manifest = manifest
    for path, said in manifest.files.items():
        node = draft.nodes.get(path)
        if node is None:
            if not any(p.path == path and p.kind is ProblemKind.FILE_MISSING for p in draft.problems):
                draft.problem(
                    ProblemKind.FILE_MISSING, Harm.BROKEN, f"{path} is missing: the manifest lists it", path
                )
        elif node.size is not None and node.size != said.size:
            draft.problem(
                ProblemKind.FILE_FOREIGN,
                Harm.BROKEN,
                f"{path} has {node.size} bytes, the manifest says {said.size}: of another save, or cut",
                path,
            )
        elif said.tail is not None and node.regular and not _ends_so(draft, path, said):
            draft.problem(
                ProblemKind.FILE_FOREIGN,
                Harm.BROKEN,
                f"{path} ends with other bytes than the manifest says: of another save, or damaged",
                path,
            )


def _ends_so(draft: Draft, path: str, said: FileSum) -> bool:
    """Whether the file's last bytes are those of the manifest; what cannot be read is told elsewhere."""
    from hashlib import sha256

    try:
        with draft.store.open(path) as file:
            file.seek(max(0, said.size - TAIL_BYTES))
            return sha256(file.read(TAIL_BYTES)).hexdigest() == said.tail
    except OSError:
        return True
