"""How the checkpoint is parted over ranks, against the ranks that load it."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from fsdp_doctor.ckpt.compat.commands import convert
from fsdp_doctor.ckpt.compat.question import DCP, PER_RANK, Question, missing, size, some
from fsdp_doctor.ckpt.compat.ways import makers
from fsdp_doctor.subjects.checkpoint import Format, Tensor
from fsdp_doctor.subjects.load_target import Api, LoadApi
from fsdp_doctor.subjects.loading import Cause, Effect, Obstacle

FLAT = "_flat_param"
PARAMETERS = frozenset({"weight", "bias", "in_proj_weight", "in_proj_bias", "gamma", "beta", "scale"})
"""Last parts of parameters' names."""
VIEW = "A view was created in no_grad mode and its base or another view of its base"
RESAVE = (
    "start one run with the setup that saved it (CPU and gloo suffice) and save again with get_state_dict "
    "and "
    "dcp.save"
)
MESHES = "on inputs with different meshes"
ROOT_MESH = "root mesh"


def rules(question: Question) -> Iterator[Obstacle]:
    """Files per rank, flat parameters, metadata per rank, ranks that hold nothing, and plain resharding."""
    form = question.index.format
    if form in PER_RANK:
        if question.load_api is LoadApi.PER_RANK:
            yield from _per_rank(question)
        return
    if form not in DCP or question.load_api is LoadApi.PER_RANK:
        return
    if question.index.flat_parameters:
        yield from _flat(question)
    elif form is Format.DCP_PER_RANK:
        yield from _no_collectives(question)
    else:
        yield from _resharding(question)
    yield from _empty_ranks(question)


# ------------------------------------------------------------------------------------------ files per rank
def _per_rank(question: Question) -> Iterator[Obstacle]:
    form, saved, ranks = question.index.format, question.saved_on, question.ranks
    made_by = makers(question.index)
    if question.api not in made_by:
        yield question.obstacle(
            Cause.PER_RANK,
            Effect.FAILS,
            f"files per rank of {_kind(form)}, which {question.api.value} does not load",
            f"a model under {' or '.join(a.value for a in made_by)}",
            message=_foreign_message(question),
            fix=f"Convert the files, or {RESAVE}",
            command=convert(question, "dcp"),
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
            fix="To load it elsewhere, convert it first",
            command=convert(question, "dcp"),
        )
        yield from _wrapping(question)
    else:
        yield question.obstacle(
            Cause.PER_RANK,
            Effect.FAILS,
            f"a file per rank of {saved} ranks ({_kind(form)}), to be loaded on {ranks}",
            f"{saved} ranks, as at save",
            message=_topology_message(question, saved, ranks),
            fix=f"Convert the files, or {RESAVE}",
            command=convert(question, "dcp"),
        )


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


def slices(question: Question) -> list[Tensor]:
    """Parameters under their own names beside flat ones: slices of one rank (use_orig_params=True).

    Buffers stand there too, with one dimension or none as well; they are whole and are never named so.
    """
    if not question.index.flat_parameters:
        return []
    own = [t for t in question.weights if not t.key.endswith(FLAT) and len(t.shape) == 1]
    return [t for t in own if 0 in t.shape or t.name.rpartition(".")[2] in PARAMETERS]


# ------------------------------------------------------------------------------------------ flat parameters
def flat_keys(question: Question) -> list[Tensor]:
    """FSDP1's flat parameters in the checkpoint."""
    return [t for t in question.index.tensors if t.key.endswith(FLAT)]


def _flat(question: Question) -> Iterator[Obstacle]:
    """LOCAL_STATE_DICT through DCP."""
    saved, ranks, uop = question.saved_on, question.ranks, question.target.use_orig_params
    bad = slices(question)
    local = question.api is Api.FSDP1 and question.load_api is LoadApi.RAW
    if bad and not (local and uop is False):
        shown = some(f"{t.key} {list(t.shape)}" for t in bad)
        expected, mismatch = _sliced(question)
        yield question.obstacle(
            Cause.LOCAL_SLICES,
            Effect.FAILS,
            "LOCAL_STATE_DICT with use_orig_params=True: under the parameters' names stand slices of single "
            f"ranks, of which one survived ({shown})",
            expected,
            message="Size mismatch between saved " if local else mismatch,
            fix="The flat parameters beside them are whole: with use_orig_params=False, "
            f"LOCAL_STATE_DICT and the ranks and wrapping that saved it ({saved or 'unknown'} ranks) they "
            "load; "
            "save again from there with get_state_dict and dcp.save",
            tensor=bad[0].key,
            examples=tuple(t.key for t in bad[:8]),
        )
        return
    if not local or uop is True:
        name = next((n for n in question.asked if n not in question.saved), "<the first parameter>")
        yield question.obstacle(
            Cause.FLAT,
            Effect.FAILS,
            "FSDP1's flat parameters (LOCAL_STATE_DICT): the parameters' own names are not in the checkpoint",
            "LOCAL_STATE_DICT, the same wrapping and use_orig_params=False"
            if local
            else "the model's own names",
            message=missing(question.key(name))
            if question.asked
            else "Missing key in checkpoint state_dict: ",
            fix="Load it under FSDP.state_dict_type(LOCAL_STATE_DICT) with use_orig_params=False on "
            f"{saved or 'as many'} ranks, wrapped as at save, and save again with get_state_dict and "
            "dcp.save",
        )
        return
    wrapping = list(_wrapping(question))
    yield from wrapping
    if wrapping:
        return
    across = _spanning(question) if ranks is not None else None
    if ranks is None or saved is None or ranks == saved:
        yield question.obstacle(
            Cause.FLAT,
            Effect.SAME_SETUP,
            f"FSDP1's flat parameters of {saved or 'an unknown number of'} ranks",
            f"{saved or 'as many'} ranks, LOCAL_STATE_DICT, the same wrapping and use_orig_params=False",
            fix="Save with get_state_dict and dcp.save: that loads on any number of ranks",
        )
    elif across is not None:
        yield question.obstacle(
            Cause.FLAT,
            Effect.FAILS,
            f"{across.key}: a rank of {ranks} needs parts of several of the {len(across.chunks)} saved "
            "slices",
            f"{saved} ranks, as at save",
            message=VIEW,
            fix=f"On {saved} ranks {RESAVE.replace('start one run', 'start a run', 1)}",
            tensor=across.key,
        )
    else:
        yield question.obstacle(
            Cause.FLAT,
            Effect.RESHARDS,
            f"FSDP1's flat parameters of {saved} ranks: each of {ranks} ranks reads from one slice",
            "the same wrapping and use_orig_params=False",
        )


def _sliced(question: Question) -> tuple[str, str]:
    """What is expected of the first slice that the model shows to be one, and torch's message."""
    for tensor in question.model.tensors if question.model is not None else ():
        held = question.saved.get(tensor.name)
        if held is not None and held.shape != tensor.shape:
            wanted = f"{tensor.name} of {size(tensor.shape)}"
            both = f"saved {size(held.shape)} and current: {size(tensor.shape)}"
            return wanted, f"Size mismatch between {both} for {question.key(tensor.name)}"
    return (
        "tensors of the parameters' own shapes",
        "Size mismatch between saved torch.Size([0]) and current: ",
    )


def _spanning(question: Question) -> Tensor | None:
    """A flat parameter of which a rank would need parts of several saved slices."""
    for tensor in flat_keys(question):
        if not tensor.shape or not tensor.chunks or not question.ranks:
            continue
        total = tensor.shape[0]
        step = ceil(total / question.ranks)
        edges = {c.offsets[0] for c in tensor.chunks if c.offsets and 0 < c.offsets[0] < total}
        if any(edge % step for edge in edges) or len(edges) + 1 > question.ranks:
            return tensor
    return None


def _wrapping(question: Question) -> Iterator[Obstacle]:
    """Units by name, where `--wrap` and `--model` tell those of the run that loads."""
    flat = flat_keys(question)
    model, wrap = question.model, question.target.wrap
    if not flat or model is None or wrap is None:
        return
    root = f"{question.index.model_root}." if question.index.model_root else ""
    saved = {t.key.removeprefix(root).removesuffix(FLAT).removesuffix(".") for t in flat}
    units = {name for name, kind in model.modules if kind in wrap or kind.rpartition(".")[2] in wrap} | {""}
    if saved != units:
        gone, new = sorted(saved - units), sorted(units - saved)
        yield question.obstacle(
            Cause.FLAT,
            Effect.FAILS,
            f"units at save that are none now: {some(gone) or 'none'}; new units: {some(new) or 'none'}",
            "the wrapping that saved it: the flat parameters are parted by unit",
            message="Size mismatch between saved " if question.index.format in DCP else "size mismatch",
            fix="Load with the same auto_wrap_policy, and save again with get_state_dict and dcp.save",
        )


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
        shapes = [(n, t.shape) for n, t in question.saved.items() if n in question.with_state]
    short = [(n, s) for n, s in shapes if s and used_ranks(s[0], ranks) < ranks]
    if short:
        yield question.obstacle(
            Cause.EMPTY_RANKS,
            Effect.FAILS,
            f"{some(f'{n} {list(s)}' for n, s in short)}: fewer parts than {ranks} ranks, so that some "
            "ranks hold "
            "nothing of it and lose its key",
            "FSDP1 with a device_mesh, or rows for every rank",
            message=missing("optim.param_groups"),
            fix="Give FSDP1 a device_mesh (or use FSDP2), or load with "
            "dcp.load(..., planner=DefaultLoadPlanner(flatten_sharded_tensors=False))",
            tensor=short[0][0],
            examples=tuple(n for n, _ in short[:8]),
        )
