"""Files of torch.save, one for each rank."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.ckpt.compat.commands import convert
from fsdp_doctor.ckpt.compat.flat_parameters import RESAVE, slices, wrapping
from fsdp_doctor.ckpt.compat.question import (
    Question,
)
from fsdp_doctor.ckpt.compat.ways import makers
from fsdp_doctor.subjects.checkpoint import Format
from fsdp_doctor.subjects.load_target import Api
from fsdp_doctor.subjects.loading import Cause, Effect, Obstacle

MESHES = "on inputs with different meshes"
ROOT_MESH = "root mesh"


def per_rank(question: Question) -> Iterator[Obstacle]:
    """Whose tensors they are, and on how many ranks they can be read."""
    form, saved, ranks = question.index.format, question.saved_on, question.ranks
    made_by = makers(question.index)
    if question.api not in made_by:
        yield question.obstacle(
            Cause.PER_RANK,
            Effect.FAILS,
            f"files per rank of {_kind(form)}, which {question.api.value} does not load",
            f"a model under {' or '.join(a.value for a in made_by)}",
            message=_foreign_message(question),
            **_way_out(question, f"Convert the files, or {RESAVE}"),
        )
        return
    same = saved is None or ranks is None or ranks == saved
    if form is Format.LOCAL_PER_RANK and same and slices(question):
        yield question.obstacle(
            Cause.LOCAL_SLICES,
            Effect.FAILS,
            "LOCAL_STATE_DICT with use_orig_params=True: flat parameters and slices under the original names",
            "files that FSDP can read back",
            message='Unexpected key(s) in state_dict: "_flat_param"',
            fix="Load into use_orig_params=False, or resume from another save; save with get_state_dict and "
            "dcp.save",
        )
        return
    if form is Format.LOCAL_PER_RANK and same and question.target.use_orig_params is True:
        yield question.obstacle(
            Cause.FLAT,
            Effect.FAILS,
            "flat parameters of use_orig_params=False, and the model has use_orig_params=True",
            "use_orig_params=False, as at save",
            message="Missing key(s) in state_dict: ",
            fix=f"Load into use_orig_params=False; or {RESAVE}",
        )
        return
    if saved is None:
        yield question.obstacle(
            Cause.PER_RANK,
            Effect.UNKNOWN,
            "files per rank, and nothing tells how many ranks saved them",
            "the number of ranks that saved it",
        )
    elif ranks is None or ranks == saved:
        yield question.obstacle(
            Cause.PER_RANK,
            Effect.SAME_SETUP,
            f"a file per rank of {saved} ranks ({_kind(form)})",
            f"{saved} ranks with the wrapping, strategy and use_orig_params that saved it",
            **_way_out(question, "To load it elsewhere, convert it first"),
        )
        yield from wrapping(question)
    else:
        yield question.obstacle(
            Cause.PER_RANK,
            Effect.FAILS,
            f"a file per rank of {saved} ranks ({_kind(form)}), to be loaded on {ranks}",
            f"{saved} ranks, as at save",
            message=_topology_message(question, saved, ranks),
            **_way_out(question, f"Convert the files, or {RESAVE}"),
        )


def _way_out(question: Question, fix: str) -> dict[str, str | None]:
    """The fix with its command, or the other fix where the files cannot be converted."""
    command = convert(question, "dcp")
    return {"fix": fix if command else RESAVE[0].upper() + RESAVE[1:], "command": command}


def _foreign_message(question: Question) -> str:
    """What another API says of the tensors' class."""
    if question.index.format is Format.DTENSOR_PER_RANK:
        return ROOT_MESH if question.api is Api.FSDP1_MESH else "Expected ShardedTensor, got"
    return ""


def _kind(form: Format) -> str:
    return {
        Format.LOCAL_PER_RANK: "LOCAL_STATE_DICT flat slices",
        Format.SHARDED_PER_RANK: "ShardedTensors",
        Format.DTENSOR_PER_RANK: "DTensors",
    }.get(form, "plain tensors")


def _topology_message(question: Question, saved: int, ranks: int) -> str:
    form = question.index.format
    if form is Format.DTENSOR_PER_RANK:
        return ROOT_MESH if question.api is Api.FSDP1_MESH else MESHES
    if form in (Format.LOCAL_PER_RANK, Format.SHARDED_PER_RANK):
        return f"Local world size at save time was {saved}, but at load time was {ranks}"
    return "size mismatch"
