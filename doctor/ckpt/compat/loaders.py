"""Whether the calls that load can read the format at all, and which calls can."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.ckpt.compat.commands import convert
from fsdp_doctor.ckpt.compat.question import DCP, FSDP1, PER_RANK, WHOLE, Question, some
from fsdp_doctor.subjects.checkpoint import Format, Layout, Trust
from fsdp_doctor.subjects.load_target import Api, LoadApi
from fsdp_doctor.subjects.loading import Cause, Effect, Obstacle

NO_METADATA = (
    "AssertionError: metadata is None; global metadata read failed: [Errno 2] No such file or directory"
)
MIXED = "aten.copy_.default got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor"
WEIGHTS_ONLY = "Weights only load failed"
FULL_CALL = (
    "set_model_state_dict(model, torch.load(FILE, mmap=True), options=StateDictOptions(full_state_dict=True, "
    "broadcast_from_rank0=True)), and set_optimizer_state_dict in a call of its own: both in one "
    "set_state_dict with empty dictionaries on the other ranks hang"
)


def rules(question: Question) -> Iterator[Obstacle]:
    """Frameworks, formats and torch.load's weights_only."""
    yield from _framework(question)
    yield from _reader(question)
    yield from _whole(question)
    yield from _weights_only(question)


def _framework(question: Question) -> Iterator[Obstacle]:
    index = question.index
    if index.format in (Format.ZERO, Format.ZERO_UNIVERSAL) or index.layout is Layout.DEEPSPEED:
        yield question.obstacle(
            Cause.FRAMEWORK,
            Effect.FAILS,
            "a checkpoint of DeepSpeed ZeRO: flat partitions of its own optimizer",
            "a format that torch's loaders read",
            message=NO_METADATA,
            fix="Load it with DeepSpeed, or make whole weights of it with the script that DeepSpeed puts "
            "beside it",
            command=f"python {index.path}/zero_to_fp32.py {index.path} {index.path}-full "
            "--safe_serialization",
        )
    elif index.layout is Layout.MEGATRON:
        yield question.obstacle(
            Cause.FRAMEWORK,
            Effect.FAILS,
            "a distributed checkpoint of Megatron: it has Megatron's names and no planner data",
            "the names of the model that loads",
            message="Missing key in checkpoint state_dict",
            fix="Load it with Megatron's own loader, or export it from there (Megatron Bridge) to Hugging "
            "Face",
        )


def _reader(question: Question) -> Iterator[Obstacle]:
    """dcp.load for files of torch.save, or torch.load for a DCP folder."""
    form, load = question.index.format, question.load_api
    if form in DCP and load is LoadApi.PER_RANK:
        yield question.obstacle(
            Cause.WRONG_LOADER,
            Effect.FAILS,
            "a folder of torch.distributed.checkpoint holds no torch.save file per rank",
            "dcp.load",
            message="No such file or directory",
            fix="Load it with get_state_dict, dcp.load and set_state_dict: it does so on any number of ranks",
        )
    if form in PER_RANK and load is not LoadApi.PER_RANK:
        yield question.obstacle(
            Cause.WRONG_LOADER,
            Effect.FAILS,
            "torch.save files per rank, and dcp.load wants .metadata",
            "a folder of torch.distributed.checkpoint",
            message=NO_METADATA,
            fix="Convert them, or load each rank's own file with torch.load on as many ranks as saved them",
            command=convert(question, "dcp"),
        )
    if form in WHOLE and load is LoadApi.STATE_DICT and question.index.layout is not Layout.ACCELERATE:
        yield question.obstacle(
            Cause.WRONG_LOADER,
            Effect.NOTE,
            "a file of whole tensors, which dcp.load does not read",
            "",
            message=NO_METADATA,
        )
    if question.index.layout in (Layout.ACCELERATE, Layout.TRAINER) and load is not LoadApi.PER_RANK:
        yield from _accelerate(question)
    if form is Format.DCP_SAFETENSORS and load is not LoadApi.PER_RANK:
        yield question.obstacle(
            Cause.WRONG_LOADER,
            Effect.NOTE,
            "DCP shards in safetensors files, which dcp.load reads through their own reader only",
            "",
            message=NO_METADATA,
            fix="dcp.load(state, storage_reader=HuggingFaceStorageReader(path=...))",
        )


def _accelerate(question: Question) -> Iterator[Obstacle]:
    """What accelerate looks for: files of the state dict type that it is configured for."""
    form = question.index.format
    if form is Format.DCP and any(p.path.startswith("pytorch_model_fsdp") for p in question.index.parts):
        kind, said = "SHARDED_STATE_DICT", "No such file or directory"
    elif form is Format.TORCH_FULL and any(
        p.path.startswith("pytorch_model_fsdp") for p in question.index.parts
    ):
        kind, said = "FULL_STATE_DICT", "AssertionError: metadata is None; global metadata read failed"
    else:
        return
    yield question.obstacle(
        Cause.FRAMEWORK,
        Effect.NOTE,
        f"accelerate saved it with fsdp_state_dict_type {kind}, and loads it with that one only",
        "",
        message=said,
        fix=f"Set fsdp_state_dict_type: {kind} where it is loaded",
    )


def _whole(question: Question) -> Iterator[Obstacle]:
    """Whole tensors into sharded parameters."""
    if question.index.format not in WHOLE or not question.sharded:
        return
    if question.load_api is LoadApi.STATE_DICT:
        yield question.obstacle(
            Cause.WHOLE_FILE,
            Effect.CONVERT_API,
            "whole tensors: the number of ranks that saved them is not known and does not matter",
            "a call that shards them",
            message=MIXED if question.api is not Api.FSDP1 else NO_METADATA,
            fix=FULL_CALL,
            command=convert(question, "dcp"),
        )
    elif question.api in FSDP1:
        yield question.obstacle(
            Cause.WHOLE_FILE,
            Effect.CONVERT_API,
            "whole tensors, which FSDP1 takes under FULL_STATE_DICT, its default",
            "FSDP.state_dict_type FULL_STATE_DICT around load_state_dict",
            fix="Load under FULL_STATE_DICT, or " + FULL_CALL,
        )
    else:
        yield question.obstacle(
            Cause.WHOLE_FILE,
            Effect.FAILS,
            "whole tensors cannot be copied into FSDP2's DTensors",
            "a call that shards them",
            message=MIXED,
            fix=FULL_CALL,
            command=convert(question, "dcp"),
        )


def _weights_only(question: Question) -> Iterator[Obstacle]:
    """torch.load refuses classes that it does not know, since 2.6 by default."""
    index, allowed = question.index, question.target.weights_only
    if index.format not in PER_RANK | WHOLE or index.format is Format.SAFETENSORS:
        return
    if index.format in PER_RANK and question.load_api is not LoadApi.PER_RANK:
        return
    refused = [g.name for g in index.globals if g.trust in (Trust.KNOWN, Trust.UNKNOWN)]
    if not refused or allowed is False:
        return
    yield question.obstacle(
        Cause.WEIGHTS_ONLY,
        Effect.FAILS if allowed else Effect.NOTE,
        f"torch.load refuses {some(refused)} with weights_only=True, its default since torch 2.6",
        "classes that weights_only=True lets pass",
        message=WEIGHTS_ONLY,
        fix="If you trust whoever wrote the files: torch.load(..., weights_only=False)",
        examples=tuple(refused[:8]),
    )
