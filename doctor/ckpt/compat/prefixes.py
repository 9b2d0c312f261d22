"""Where the model lies in the checkpoint, and prefixes that one side has and the other has not."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.ckpt.compat.commands import convert
from fsdp_doctor.ckpt.compat.question import (
    DCP,
    WHOLE,
    WRAPPERS,
    Question,
    missing,
)
from fsdp_doctor.subjects.checkpoint import Format
from fsdp_doctor.subjects.load_target import LoadApi
from fsdp_doctor.subjects.loading import Cause, Effect, Obstacle

NESTS = ("model.", "module.", "_orig_mod.", "base_model.model.", "language_model.")
"""Prefixes that one run has and another has not, beside those that are seen in the names themselves."""
NEARLY_ALL = 0.5
"""Part of the asked names that a changed prefix must bring for it to be the reason."""


def nest(question: Question) -> Iterator[Obstacle]:
    """The load asks for `model.…` where the names lie at the top, or the reverse."""
    saved, asked = question.index.model_root, question.root
    if saved == asked or question.index.format not in DCP:
        return
    first = question.ordered[0] if question.asked else next(iter(question.saved))
    yield question.obstacle(
        Cause.PREFIX,
        Effect.WRONG if question.target.partial else Effect.FAILS,
        f"the model lies {f'under {saved!r}' if saved else 'at the top'}",
        f"the model {f'under {asked!r}' if asked else 'at the top'}",
        message=missing(question.key(first)),
        fix=f'Ask for it as it was saved: {{"{saved}": model_state_dict}}'
        if saved
        else "Pass the model's own state dict to dcp.load, without a key around it",
    )


def prefix(question: Question) -> Iterator[Obstacle]:
    """One prefix on all names that the other side has not."""
    names, asked = list(question.saved), set(question.asked)
    change = _change(names, asked) if asked else _wrapper(question, names)
    if change is None:
        return
    strip, add = change
    absent = (n for n in question.ordered if n not in question.saved)
    changed = next((n for n in names if strip and strip in n), names[0])
    wanted = next(absent, add + (changed.replace(strip, "") if strip else changed))
    begin = sum(n.startswith(strip) for n in names) if strip else 0
    within = sum(strip in n for n in names) if strip and not begin else 0
    if within:
        what = f"{within} of {len(names)} names hold {strip!r}"
    else:
        what = (
            f"{begin} of {len(names)} names begin with {strip!r}" if strip else f"no name begins with {add!r}"
        )
    other = f"names that begin with {add!r}" if add else f"names without {strip!r}"
    if question.index.format in DCP and question.target.partial:
        effect, said = Effect.WRONG, ""
        not_all = 0 < begin + within < len(names)
        what += f": {'those are not' if not_all else 'nothing at all is'} loaded, without an error"
    else:
        effect, said = Effect.FAILS, missing_words(question, [wanted])
        if question.index.format in WHOLE and question.load_api is LoadApi.STATE_DICT and question.sharded:
            said = f'Unexpected key(s) in state_dict: "{names[0]}"'
    options = (*(("--strip-prefix", strip) if strip else ()), *(("--add-prefix", add) if add else ()))
    to = {Format.TORCH_FULL: "torch", Format.SAFETENSORS: "safetensors"}.get(question.index.format, "dcp")
    yield question.obstacle(
        Cause.PREFIX,
        effect,
        f"{what} ({changed})",
        f"{other} ({wanted})",
        message=said,
        fix=_prefix_fix(question, strip, add),
        command=convert(question, to, *options),
        tensor=names[0],
    )


def _prefix_fix(question: Question, strip: str, add: str) -> str:
    if strip == "module.":
        text = "Strip 'module.' (get_model_state_dict saves without it), or load into the DDP-wrapped model"
    elif strip in WRAPPERS:
        text = f"Strip {strip!r}: save with get_model_state_dict, which takes wrappers' names out"
    elif strip:
        text = f"Strip {strip!r} from the names"
    else:
        text = f"Add {add!r} to the names"
    return text + ", or convert the checkpoint"


def _wrapper(question: Question, names: list[str]) -> tuple[str, str] | None:
    """Without a model: prefixes that only wrappers write, against the prefix that the load itself has."""
    inner = next((p.text for p in question.index.prefixes if not p.leading and p.text in WRAPPERS), "")
    saved = _leading(names)
    if saved == question.prefix and not inner:
        return None
    if saved == question.prefix:
        return inner, ""
    return saved, question.prefix if not saved.startswith(question.prefix) or not question.prefix else ""


def _leading(names: list[str]) -> str:
    """The wrappers' prefixes that all names share: "module._orig_mod." where both were there."""
    found, rest = "", names
    while True:
        step = next((w for w in WRAPPERS if all(n.startswith(w) for n in rest)), None)
        if step is None or not rest:
            return found
        found += step
        rest = [n.removeprefix(step) for n in rest]


def _change(names: list[str], asked: set[str]) -> tuple[str, str] | None:
    """(strip, add) that makes names of the checkpoint those that are asked for; None where none is needed."""
    here = len(asked.intersection(names))
    best, most = None, max(here, NEARLY_ALL * len(asked) - 0.5)
    tops = {n[: n.index(".") + 1] for n in names if "." in n}
    leading = _leading(names)
    strips = {*NESTS, *tops, leading, *(leading + n for n in NESTS)} - {""}
    for strip in sorted(strips):
        hits = sum(n.startswith(strip) and n[len(strip) :] in asked for n in names)
        if hits > most:
            best, most = (strip, ""), hits
    for strip in WRAPPERS:  # also within names: a compiled block, a checkpointed layer
        hits = sum(n.replace(strip, "") in asked for n in names)
        if hits > most:
            best, most = (strip, ""), hits
    adds = {*NESTS, *(a[: a.index(".") + 1] for a in asked if "." in a)}
    for add in sorted(adds):
        hits = sum(add + n in asked for n in names)
        if hits > most:
            best, most = ("", add), hits
    for strip in sorted(strips):
        for add in sorted(adds):
            hits = sum(n.startswith(strip) and add + n[len(strip) :] in asked for n in names)
            if hits > most:
                best, most = (strip, add), hits
    return best


def missing_words(question: Question, names: list[str]) -> str:
    """What the loader prints about names that it does not find."""
    if question.index.format in DCP:
        return missing(question.key(names[0]))
    return f'Missing key(s) in state_dict: "{names[0]}"'
