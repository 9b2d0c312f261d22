"""Small JSON files beside checkpoints."""

from __future__ import annotations

import json

from fsdp_doctor.ckpt.draft import Draft
from fsdp_doctor.ckpt.limits import JSON_BYTES
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind


def read_json(draft: Draft, path: str, harm: Harm = Harm.BROKEN) -> object:
    """The value, or None with a problem noted."""
    try:
        with draft.store.open(path) as file:
            raw = file.read(JSON_BYTES + 1)
    except OSError as error:
        draft.problem(
            ProblemKind.FILE_FORBIDDEN, harm, f"{path} cannot be read: {error.strerror or error}", path
        )
        return None
    if len(raw) > JSON_BYTES:
        draft.problem(ProblemKind.TOO_LARGE, harm, f"{path} is larger than {JSON_BYTES} bytes", path)
        return None
    try:
        found: object = json.loads(raw)
    except (ValueError, RecursionError) as error:
        draft.problem(ProblemKind.JSON_DAMAGED, harm, f"{path} is no JSON: {str(error)[:160]}", path)
        return None
    return found
