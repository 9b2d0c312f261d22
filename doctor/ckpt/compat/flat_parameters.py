"""FSDP1's flat parameters (LOCAL_STATE_DICT), and slices that stand beside them under parameters' names."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from fsdp_doctor.ckpt.compat.question import (
    DCP,
    Question,
    missing,
    size,
    some,
)
from fsdp_doctor.subjects.checkpoint import Tensor
from fsdp_doctor.subjects.load_target import Api, LoadApi
from fsdp_doctor.subjects.loading import Cause, Effect, Obstacle

FLAT = "_flat_param"
PARAMETERS = frozenset({"weight", "bias", "in_proj_weight", "in_proj_bias", "gamma", "beta", "scale"})
"""Last parts of parameters' names."""
VIEW = "A view was created in no_grad mode and its base or another view of its base"
RESAVE = (
    "start one run with the setup that saved it (CPU and gloo suffice) and save again with get_state_dict "
    "and dcp.save"
)


def slices(question: Question) -> list[Tensor]:
    """Parameters under their own names beside flat ones: slices of one rank (use_orig_params=True).

    Buffers stand there too, with one dimension or none as well; they are whole and are never named so.
    """
    if not question.index.flat_parameters:
        return []
    own = [t for t in question.weights if not t.key.endswith(FLAT) and len(t.shape) == 1]
    return [t for t in own if 0 in t.shape or t.name.rpartition(".")[2] in PARAMETERS]


def flat_keys(question: Question) -> list[Tensor]:
    """FSDP1's flat parameters in the checkpoint."""
    return [t for t in question.index.tensors if t.key.endswith(FLAT)]


def flat(question: Question) -> Iterator[Obstacle]:
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
    rewrapped = list(wrapping(question))
    yield from rewrapped
    if rewrapped:
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


def wrapping(question: Question) -> Iterator[Obstacle]:
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
