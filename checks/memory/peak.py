"""What makes the peak, where the GPU is too small or hardly large enough: each with a remedy of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fsdp_doctor.checks.memory.fits import TIGHT, size
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Confidence, Finding, Fix, Row, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.memory import Holder, MemoryAnswer, MemoryForecast

SHARE = 0.2
"""Part of the peak from which one thing is worth a change of the program."""
LOGITS = 2
"""Tensors of the logits' size that come before the loss."""
LOSS = ("log_softmax", "nll_loss", "cross_entropy", "logsumexp")
SCORES = ("aten::_softmax", "aten::_safe_softmax")

Reason = Callable[[MemoryForecast], tuple[int, str] | None]


def _judged(facts: Facts, reason: Reason, expected: str, fix: Fix, fine: str) -> Iterator[Finding]:
    """Warn of a reason for the peak where memory is short; pass where there is room."""
    f = facts[MemoryAnswer].forecast
    if f is None:
        yield skip("there is no forecast")
        return
    if f.capacity is None:
        yield skip("no GPU was named", enable='--gpu "H100 80GB"')
        return
    if f.needed <= TIGHT * f.capacity:
        yield ok(f"needs {size(f.needed)} of {size(f.capacity)}")
        return
    found = reason(f)
    if found is None:
        yield ok(fine)
        return
    held, what = found
    yield warn(
        f"{size(held)} of {size(f.highest)} at the peak: {what}",
        expected,
        fix=fix,
        confidence=Confidence.MEDIUM,
    )


def _total(holders: Sequence[Holder]) -> int:
    return sum(h.bytes * h.count for h in holders)


def _repeated(h: Holder) -> bool:
    """Whether blocks made them, one each: logits are there once, in float32 and as they came."""
    return h.count > LOGITS or (h.count > 1 and " more" in h.module)


def _of_the_loss(f: MemoryForecast) -> tuple[int, str] | None:
    """Logits, found by their size beside what the loss makes of them, and those."""
    made = [h for h in f.peak.holders if any(word in h.operator for word in LOSS)]
    if not made:
        return None
    one = max(h.bytes for h in made)
    alike = [h for h in f.peak.holders if h not in made and h.bytes in (one, one // 2) and not _repeated(h)]
    held = _total((*made, *alike))
    return (held, "logits and what the loss makes of them") if held >= SHARE * f.allocated else None


@check("MEM003", Row.OOM, needs=(MemoryAnswer,), tags=("memory",), cost=Cost.SECONDS)
def the_loss_makes_the_peak(facts: Facts, options: Options) -> Iterator[Finding]:
    """Logits and the loss fill the GPU.

    What: Adds up what the loss holds at the peak (logits, log-softmax, gradients of both) where the
        configuration does not fit or hardly fits; warns from a fifth of the peak.
    Why: Tokens times vocabulary in float32, several times over: sharding more or checkpointing blocks does
        not make it smaller.
    Fix: Compute head and loss for some tokens at a time, or with a fused linear cross-entropy.
    Sources: pytorch aten/src/ATen/native/LossNLL.cpp; torchtitan's chunked loss; Liger-Kernel.
    """
    yield from _judged(
        facts,
        _of_the_loss,
        f"below {SHARE:.0%} of the peak",
        Fix(
            "Compute head and loss for a part of the tokens at a time (checkpointed), or with a fused linear "
            "cross-entropy, which never holds all logits; keep logits in bf16 until the loss"
        ),
        "the loss is not what fills the GPU",
    )


def _of_scores(f: MemoryForecast) -> tuple[int, str] | None:
    """Probabilities of attention, and what has their size: scores before the softmax, masks, dropped ones."""
    made = [h for h in f.peak.holders if h.operator in SCORES and h.module]
    if not made:
        return None
    one = max(h.bytes for h in made)
    held = _total(
        [h for h in f.peak.holders if h in made or (h.module and h.bytes in (one, 2 * one, one // 2))]
    )
    return (
        (held, "scores of attention, tokens by tokens for each head") if held >= SHARE * f.allocated else None
    )


@check("MEM004", Row.OOM, needs=(MemoryAnswer,), tags=("memory",), cost=Cost.SECONDS)
def attention_scores_are_kept(facts: Facts, options: Options) -> Iterator[Finding]:
    """Attention keeps its scores.

    What: Adds up the results of softmax in modules, and tensors of their size, at the peak of a
        configuration that does not fit or hardly fits; warns from a fifth of the peak.
    Why: Written out, or taken by the math kernel, attention keeps tokens by tokens for each head; the fused
        kernels keep one number per token and head.
    Fix: Use scaled_dot_product_attention in a form that a fused kernel takes.
    Sources: pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
    """
    yield from _judged(
        facts,
        _of_scores,
        "one number per token and head, as fused kernels keep",
        Fix(
            "Use scaled_dot_product_attention with is_causal or a mask without gradient, bf16, and a head "
            "size that is a multiple of 8 (transformers: attn_implementation='sdpa')"
        ),
        "no scores of attention are kept",
    )


def _of_the_optimizer(f: MemoryForecast) -> tuple[int, str] | None:
    if f.peak.phase != "optimizer":
        return None
    held = sum(p.bytes for p in f.peak.parts if p.name == "temporaries")
    if not held:
        return None
    return held, "temporaries of the optimizer's step, which is higher than forward and backward"


@check("MEM005", Row.OOM, needs=(MemoryAnswer,), tags=("memory",), cost=Cost.SECONDS)
def the_optimizer_makes_the_peak(facts: Facts, options: Options) -> Iterator[Finding]:
    """The optimizer's step makes the peak.

    What: Looks at the phase of the peak of a configuration that does not fit or hardly fits.
    Why: The for-each step holds a temporary of all parameters' size; neither a smaller batch nor
        checkpointing makes it smaller.
    Fix: Take the fused optimizer, or the loop; shard over more ranks.
    Sources: torch/optim/adamw.py, _multi_tensor_adamw and _fused_adamw.
    """
    answer = facts[MemoryAnswer]
    fused = answer.optimizer.endswith(("fused", "loop"))
    yield from _judged(
        facts,
        _of_the_optimizer,
        "a peak in forward or backward",
        Fix(
            "Shard over more ranks, or keep the optimizer's state on the host (--offload)"
            if fused
            else "Take fused=True, or foreach=False: neither makes temporaries of all parameters' size"
        ),
        "no temporaries of the optimizer make the peak",
    )


def _before_training(f: MemoryForecast) -> tuple[int, str] | None:
    if f.peak.phase != "init":
        return None
    return f.highest, "the preparation, before the first step"


@check("MEM006", Row.OOM, needs=(MemoryAnswer,), tags=("memory",), cost=Cost.SECONDS)
def preparation_makes_the_peak(facts: Facts, options: Options) -> Iterator[Finding]:
    """Building and sharding take more than training.

    What: Looks at the phase of the peak of a configuration that does not fit or hardly fits.
    Why: A model that is put on the GPU before it is sharded is there whole, on every rank.
    Fix: Build it on the meta device, shard it, and allocate the shards only.
    Sources: torch/distributed/fsdp/_init_utils.py; torchtitan, docs/fsdp.md (meta device).
    """
    yield from _judged(
        facts,
        _before_training,
        "less than training takes",
        Fix(
            "Build the model on the meta device, shard it, then allocate: FSDP2 with to_empty, FSDP1 with "
            "param_init_fn and one unit after the other"
        ),
        "the peak is in training",
    )


@check("MEM007", Row.OOM, needs=(MemoryAnswer,), tags=("memory",), cost=Cost.SECONDS)
def rests_on_unknown_operators(facts: Facts, options: Options) -> Iterator[Finding]:
    """The forecast rests on operators whose memory is not known.

    What: Compares what operators without a measured or derived rule hold at the peak with the margin that
        the verdict adds; warns where they hold more.
    Why: Such an operator may take workspaces that no rule here has, so that a close verdict may be wrong.
    Fix: Measure on a GPU: dryrun --on-gpu, with --calibrate for the operators that it knows to measure.
    Sources: doctor/tables/substitutions/.
    """
    f = facts[MemoryAnswer].forecast
    if f is None:
        yield skip("there is no forecast")
        return
    held = sum(n for _, n in f.unknown_operators)
    if held <= f.margin:
        yield ok(f"operators without a rule hold {size(held)} at the peak, the margin is {size(f.margin)}")
        return
    names = ", ".join(name for name, _ in f.unknown_operators[:4])
    yield warn(
        f"operators without a rule hold {size(held)} at the peak: {names}",
        f"at most the margin of {size(f.margin)}",
        fix=Fix("Measure the same configuration on a GPU", "fsdp-doctor dryrun … --on-gpu --calibrate"),
        confidence=Confidence.MEDIUM,
    )
