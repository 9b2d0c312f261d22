"""torch.save files of before torch 1.6: five pickles in a row, then the bytes of the storages."""

from __future__ import annotations

from fsdp_doctor.ckpt.draft import Draft, TensorDraft
from fsdp_doctor.ckpt.safe_pickle import PickleError, load
from fsdp_doctor.ckpt.torch_content import content_of, key_of
from fsdp_doctor.ckpt.torch_file import LEGACY
from fsdp_doctor.subjects.checkpoint import FileRole, Format, Kind
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind

PROTOCOL = 1001


def is_legacy(head: bytes) -> bool:
    """Whether a file begins like one."""
    return head.startswith(LEGACY)


def read(draft: Draft, path: str) -> None:
    """Add the file: magic number, protocol, system, object, keys of storages."""
    draft.format = Format.TORCH_LEGACY
    file = draft.files[draft.file(path, FileRole.DATA)]
    file.referenced = True
    node = draft.nodes[path]
    shown = path or draft.store.root.rsplit("/", 1)[-1]
    size = node.size or 0
    try:
        with draft.store.open(path) as opened:
            load(opened, 16)
            protocol = load(opened, 16).value
            if protocol != PROTOCOL:
                raise PickleError(f"its protocol is {str(protocol)[:20]} where {PROTOCOL} should be", {})
            load(opened, 4096)
            loaded = load(opened, size)
            keys = load(opened, size).value
            begin = opened.tell()
    except PickleError as error:
        draft.names(error.names, path)
        kind = ProblemKind.MEMORY if error.memory else ProblemKind.PICKLE_DAMAGED
        draft.problem(
            kind, Harm.BROKEN, f"{shown}: a legacy torch.save file that cannot be read: {error}", path
        )
        draft.part("", draft.format, Kind.MODEL, 1)
        return
    except OSError as error:
        draft.problem(ProblemKind.FILE_FORBIDDEN, Harm.BROKEN, f"{shown}: {error.strerror or error}", path)
        return
    draft.names(loaded.names, path)
    content = content_of(loaded.value)
    for where, tensor in content.tensors:
        made = TensorDraft(key_of(where), where, tensor.shape, tensor.dtype, container=tensor.container)
        made.requires_grad = tensor.requires_grad
        made.add((0,) * len(tensor.shape), tensor.shape, 0)
        draft.tensor(made)
    for entry in content.entries:
        draft.entry(entry)
    needed = begin + sum(8 + s.bytes for s in content.storages.values())
    file.needed = needed
    listed = len(keys) if isinstance(keys, list) else 0
    if size < needed or listed < len(content.storages):
        draft.problem(
            ProblemKind.FILE_SHORT,
            Harm.BROKEN,
            f"{shown} has {size} bytes, its tensors need {needed}",
            path,
            bytes=max(0, needed - size),
        )
    draft.part("", draft.format, Kind.MODEL, 1)
