"""How the checkpoint is parted over ranks, against the ranks that load it."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from fsdp_doctor.ckpt.compat.commands import convert
from fsdp_doctor.ckpt.compat.flat_parameters import flat
from fsdp_doctor.ckpt.compat.per_rank import per_rank
from fsdp_doctor.ckpt.compat.question import (
    DCP,
    PER_RANK,
    Question,
    missing,
    some,
)
from fsdp_doctor.subjects.checkpoint import Format
from fsdp_doctor.subjects.load_target import Api, LoadApi
from fsdp_doctor.subjects.loading import Cause, Effect, Obstacle

SHARDED = frozenset(
    {
        "torch.distributed.tensor.DTensor",
        "torch.distributed._tensor.api.DTensor",
        "torch.distributed._shard.sharded_tensor.api.ShardedTensor",
    }
)
"""Classes that DCP's own metadata never names: only an object that holds a rank's tensors does."""


def rules(question: Question) -> Iterator[Obstacle]:
    """Files per rank, flat parameters, metadata per rank, ranks that hold nothing, and plain resharding."""
    form = question.index.format
    if form in PER_RANK:
        if question.load_api is LoadApi.PER_RANK:
            yield from per_rank(question)
        return
    if form not in DCP or question.load_api is LoadApi.PER_RANK:
        return
    if question.index.flat_parameters:
        yield from flat(question)
    elif form is Format.DCP_PER_RANK:
        yield from _no_collectives(question)
    else:
        yield from _resharding(question)
    yield from _packed(question)
    yield from _empty_ranks(question)


# ------------------------------------------------------------------------------------------ DCP
def _no_collectives(question: Question) -> Iterator[Obstacle]:
    saved, ranks = question.saved_on, question.ranks
    held = question.index.dcp.metadata_files if question.index.dcp is not None else ()
    gone = [f"__{rank}.metadata" for rank in range(saved or 0) if f"__{rank}.metadata" not in held]
    if held and gone:
        yield question.obstacle(
            Cause.FILES_LOST,
            Effect.FAILS,
            f"{some(gone)} missing: {saved} ranks saved it, each with metadata of its own parts",
            f"__0.metadata to __{(saved or 1) - 1}.metadata",
            message="AssertionError: metadata is None; global metadata read failed",
            fix="Copy the metadata files that are missing from where it was saved",
        )
    if saved is None or ranks is None or ranks == saved:
        effect, found, said = Effect.SAME_SETUP, f"metadata per rank of {saved or 'some'} ranks", ""
    elif ranks < saved:
        effect, said = Effect.WRONG, ""
        found = (
            f"metadata per rank of {saved} ranks: {ranks} ranks read only their own parts, without an error"
        )
    else:
        effect, said = Effect.FAILS, "AssertionError: metadata is None; global metadata read failed"
        found = f"metadata per rank of {saved} ranks: ranks {saved} to {ranks - 1} find none"
    yield question.obstacle(
        Cause.NO_COLLECTIVES,
        effect,
        f"{found} (saved with use_collectives=False)",
        f"{saved or 'as many'} ranks, as at save, or one .metadata",
        message=said,
        fix="Merge the metadata files into one; no tensor is moved, and any number of ranks loads it then",
        command=convert(question, "merge-metadata"),
    )


def _resharding(question: Question) -> Iterator[Obstacle]:
    saved, ranks = question.saved_on, question.ranks
    if ranks is not None and saved is not None and saved != ranks:
        yield question.obstacle(
            Cause.PER_RANK,
            Effect.RESHARDS,
            f"saved on {saved} ranks, dcp.load reshards to {ranks}",
            "any number of ranks",
        )


def used_ranks(rows: int, ranks: int) -> int:
    """Ranks that hold rows of a ShardedTensor: dim 0 is cut into chunks of ceil(rows / ranks)."""
    return ceil(rows / ceil(rows / ranks)) if rows else 0


def _packed(question: Question) -> Iterator[Obstacle]:
    """Whole dictionaries saved as one object (flatten_state_dict=False): it holds one rank's shards."""
    index = question.index
    if not any(g.name in SHARDED for g in index.globals):
        return
    packed = [e.key for e in index.entries if e.type.endswith(("dict", "OrderedDict"))]
    if not packed:
        return
    weights = bool(question.weights)
    effect = Effect.LOST if weights else Effect.WRONG if question.target.partial else Effect.FAILS
    yield question.obstacle(
        Cause.LOCAL_SLICES,
        effect,
        f"{some(packed)}: saved as one object with its tensors inside, as by a planner with "
        "flatten_state_dict=False; of each object one rank's shards survived",
        "a key per tensor",
        message=f"Missing key in checkpoint state_dict: {packed[0]}." if effect is Effect.FAILS else "",
        fix="The shards of the other ranks are lost: resume from another save, and save with the default "
        "planner",
        examples=tuple(packed[:8]),
    )


FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


def _empty_ranks(question: Question) -> Iterator[Obstacle]:
    """FSDP1 without a mesh drops the key of a tensor on ranks that hold no row of it."""
    ranks = question.ranks
    if question.api is not Api.FSDP1 or question.load_api is not LoadApi.STATE_DICT or not ranks or ranks < 2:
        return
    if not question.asks_optimizer or question.target.strategy == "NO_SHARD":
        return
    if question.model is not None:
        shapes = [(t.name, t.shape) for t in question.model.tensors if not t.buffer]
    else:
        stateless = not question.with_state  # as SGD without momentum: every weight counts
        shapes = [
            (n, t.shape)
            for n, t in question.saved.items()
            if n in question.with_state or (stateless and t.dtype in FLOATS)
        ]
    short = [(n, s) for n, s in shapes if s and used_ranks(s[0], ranks) < ranks]
    if short:
        yield question.obstacle(
            Cause.EMPTY_RANKS,
            Effect.FAILS,
            f"{some(f'{n} {list(s)}' for n, s in short)}: fewer parts than {ranks} ranks, so that some "
            "ranks hold "
            "nothing of it and lose its key",
            "FSDP1 with a device_mesh, or rows for every rank",
            message=missing(f"{question.optimizer_root}.param_groups")
            if question.with_state
            else f"Missing key in checkpoint state_dict: {question.optimizer_root}.",
            fix="Give FSDP1 a device_mesh (or use FSDP2), or load with "
            "dcp.load(..., planner=DefaultLoadPlanner(flatten_sharded_tensors=False))",
            tensor=short[0][0],
            examples=tuple(n for n, _ in short[:8]),
        )
