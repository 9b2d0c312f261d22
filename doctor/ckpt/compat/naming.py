"""Names, shapes and dtypes of the checkpoint against those that the model asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fsdp_doctor.ckpt.compat.prefixes import missing_words, nest, prefix
from fsdp_doctor.ckpt.compat.question import (
    DCP,
    EXAMPLES,
    PER_RANK,
    WHOLE,
    Question,
    size,
    some,
)
from fsdp_doctor.subjects.checkpoint import Tensor
from fsdp_doctor.subjects.load_target import LoadApi, TargetTensor
from fsdp_doctor.subjects.loading import Cause, Effect, Obstacle


def rules(question: Question) -> Iterator[Obstacle]:
    """Where the model lies, its prefixes, then names and shapes one by one where a model was named."""
    if question.index.flat_parameters or not question.weights:
        return
    yield from nest(question)
    prefixed = list(prefix(question))
    yield from prefixed
    if question.model is not None and not prefixed:
        yield from _names(question)


# ------------------------------------------------------------------------------------------ names and shapes
def _names(question: Question) -> Iterator[Obstacle]:
    assert question.model is not None
    wanted = {question.prefix + t.name: t for t in question.model.tensors}
    absent = [n for n in question.ordered if n not in question.saved]
    unequal = [(n, question.saved[n], t) for n, t in wanted.items() if n in question.saved]
    sizes = [(n, s, t) for n, s, t in unequal if s.shape != t.shape]
    if not question.root:
        sizes.sort(key=lambda found: found[0])
    if absent:
        yield _absent(question, absent, {n for group in question.model.tied for n in group})
    if sizes:
        yield _sizes(question, sizes)
    yield from _joined(question)
    extra = [n for n in question.saved if n not in wanted]
    if extra:
        yield _extra(question, extra)
    cast = [(n, s, t) for n, s, t in unequal if s.dtype != t.dtype and s.shape == t.shape]
    if cast:
        yield _cast(question, cast)


def _absent(question: Question, absent: list[str], tied: set[str]) -> Obstacle:
    """Names that the model asks for and the checkpoint has not."""
    format_, lenient = question.index.format, question.target.partial
    silent = format_ in WHOLE and question.load_api is LoadApi.STATE_DICT and question.sharded
    cause = Cause.TIED if all(n.removeprefix(question.prefix) in tied for n in absent) else Cause.MISSING_KEYS
    if lenient or silent:
        how = "allow_partial_load" if lenient else "set_model_state_dict(full_state_dict=True)"
        return question.obstacle(
            cause,
            Effect.LOST,
            f"{_count(absent)} the checkpoint has not keep their fresh values, without a warning: "
            f"{some(absent)}",
            f"every tensor of the model ({how} says nothing)",
            fix="Load on purpose what is there and initialise the rest yourself, or name the model that "
            "saved it",
            tensor=absent[0],
            examples=tuple(absent[:EXAMPLES]),
        )
    return question.obstacle(
        cause,
        Effect.FAILS,
        f"{_count(absent)} the checkpoint has not: {some(absent)}",
        "every tensor that the model asks for",
        message=missing_words(question, absent),
        fix="Build the model as at save; to start with new layers, "
        "dcp.load(..., planner=DefaultLoadPlanner(allow_partial_load=True)) and initialise them yourself",
        tensor=absent[0],
        examples=tuple(absent[:EXAMPLES]),
    )


def _joined(question: Question) -> Iterator[Obstacle]:
    """Names that are one parameter now and were several at save: the last one that is copied wins."""
    assert question.model is not None
    for group in question.model.tied:
        apart = [n for n in group if n in question.with_state]
        if len(apart) > 1 and not question.asks_optimizer:
            yield question.obstacle(
                Cause.TIED,
                Effect.WRONG,
                f"{some(group)} are one parameter now and were several at save: each is copied into it and "
                "the "
                "last one wins, without an error",
                "the ties of the run that saved",
                fix="Untie them as at save",
                tensor=group[-1],
            )


def _extra(question: Question, extra: list[str]) -> Obstacle:
    strict = question.index.format in WHOLE | PER_RANK and not question.target.partial
    return question.obstacle(
        Cause.EXTRA_KEYS,
        Effect.FAILS if strict else Effect.NOTE,
        f"{_count(extra)} the model has not: {some(extra)}",
        "only tensors of the model",
        message=f'Unexpected key(s) in state_dict: "{extra[0]}"' if strict else "",
        fix="Build the model as at save, or pass StateDictOptions(strict=False) to leave them out"
        if strict
        else "dcp.load leaves them out without a warning: fine if the model is smaller on purpose",
        tensor=extra[0],
        examples=tuple(extra[:EXAMPLES]),
    )


def _sizes(question: Question, unequal: list[tuple[str, Tensor, TargetTensor]]) -> Obstacle:
    name, saved, wanted = unequal[0]
    if question.index.format in DCP:
        both = f"saved {size(saved.shape)} and current: {size(wanted.shape)}"
        said = f"Size mismatch between {both} for {question.key(name)}"
    else:
        said = f"size mismatch for {name}: "
    shown = some(f"{n} {list(s.shape)} for {list(t.shape)}" for n, s, t in unequal)
    return question.obstacle(
        Cause.SIZES,
        Effect.FAILS,
        f"{len(unequal)} {'tensor has another size' if len(unequal) == 1 else 'tensors have other sizes'}: "
        f"{shown}",
        "the sizes of the model; allow_partial_load does not help",
        message=said,
        fix="Build the model with the sizes that were saved, load it, and resize there (a vocabulary: "
        "resize_token_embeddings)",
        tensor=name,
        examples=tuple(n for n, _, _ in unequal[:EXAMPLES]),
    )


def _cast(question: Question, cast: list[tuple[str, Tensor, TargetTensor]]) -> Obstacle:
    kinds = sorted({f"{s.dtype} to {t.dtype}" for _, s, t in cast})
    moments = "; optimizer moments take the parameters' dtype" if question.asks_optimizer else ""
    return question.obstacle(
        Cause.DTYPE,
        Effect.LOST,
        f"{len(cast)} {'tensor is' if len(cast) == 1 else 'tensors are'} cast without a warning: "
        f"{', '.join(kinds)}{moments}",
        "the dtype that was saved",
        fix="Build the model in the dtype that was saved; for mixed precision keep float32 parameters and "
        "give a "
        "MixedPrecision(Policy)",
        tensor=cast[0][0],
        examples=tuple(n for n, _, _ in cast[:EXAMPLES]),
    )


def _count(names: Iterable[str]) -> str:
    held = list(names)
    return "1 tensor that" if len(held) == 1 else f"{len(held)} tensors that"
