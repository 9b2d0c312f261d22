"""What makes the peak, where the GPU is too small or hardly large enough: each with a remedy of its own."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.memory._common import SHARE, judged, places, saving, short
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Confidence, Finding, Fix, Row, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.memory import MemoryAnswer, MemoryForecast
from fsdp_doctor.tables.units import memory_size as size


def _of_the_loss(f: MemoryForecast) -> tuple[int, str] | None:
    found = f.cause("loss")
    if found is None or found.bytes < SHARE * f.highest:
        return None
    return found.bytes, f"{found.tensors} tensors of logits and of what the loss makes of them"


@check("MEM003", Row.OOM, needs=(MemoryAnswer,), tags=("memory",), cost=Cost.SECONDS)
def the_loss_makes_the_peak(facts: Facts, options: Options) -> Iterator[Finding]:
    """Logits and the loss fill the GPU.

    What: Adds up what the loss holds at the peak (logits, log-softmax, gradients of both) where the
        configuration does not fit or hardly fits; warns from a fifth of the peak, and says from the replay
        how high the peak is without them.
    Why: Tokens times vocabulary in float32, several times over: sharding more or checkpointing blocks does
        not make it smaller.
    Fix: Compute head and loss for some tokens at a time, or with a fused linear cross-entropy.
    Sources: pytorch aten/src/ATen/native/LossNLL.cpp; torchtitan's chunked loss; Liger-Kernel.
    """
    f = facts[MemoryAnswer].forecast
    gain = saving(f, "loss") if f is not None else ""
    yield from judged(
        facts,
        _of_the_loss,
        f"below {SHARE:.0%} of the peak",
        lambda: Fix(
            "Compute head and loss for a part of the tokens at a time (checkpointed), or with a fused linear "
            f"cross-entropy, which never holds all logits{gain}"
        ),
        "the loss is not what fills the GPU",
    )


def _of_scores(f: MemoryForecast) -> tuple[int, str] | None:
    found = f.cause("scores")
    if found is None or found.bytes < SHARE * f.highest:
        return None
    return found.bytes, f"scores of attention, tokens by tokens for each head,{places(found)}"


@check("MEM004", Row.OOM, needs=(MemoryAnswer,), tags=("memory",), cost=Cost.SECONDS)
def attention_scores_are_kept(facts: Facts, options: Options) -> Iterator[Finding]:
    """Attention keeps its scores.

    What: Adds up the results of softmax in modules that compute batched products of their size (queries by
        keys), and tensors of their size there, at the peak of a configuration that does not fit or hardly
        fits; warns from a fifth of the peak.
    Why: Written out, or taken by the math kernel, attention keeps tokens by tokens for each head; the fused
        kernels keep one number per token and head.
    Fix: Use scaled_dot_product_attention in a form that a fused kernel takes.
    Sources: pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
    """
    f = facts[MemoryAnswer].forecast
    gain = saving(f, "scores") if f is not None else ""
    yield from judged(
        facts,
        _of_scores,
        "one number per token and head, as fused kernels keep",
        lambda: Fix(
            "Use scaled_dot_product_attention with is_causal or a mask without gradient, bf16, and a head "
            f"size that is a multiple of 8 (transformers: attn_implementation='sdpa'){gain}"
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
    yield from judged(
        facts,
        _of_the_optimizer,
        "a peak in forward or backward",
        lambda: Fix(
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
    yield from judged(
        facts,
        _before_training,
        "less than training takes",
        lambda: Fix(
            "Build the model on the meta device, shard it, then allocate: FSDP2 with to_empty, FSDP1 with "
            "param_init_fn and one unit after the other"
        ),
        "the peak is in training",
    )


@check("MEM007", Row.OOM, needs=(MemoryAnswer,), tags=("memory",), cost=Cost.SECONDS)
def rests_on_unknown_operators(facts: Facts, options: Options) -> Iterator[Finding]:
    """The forecast rests on operators whose memory is not known.

    What: Compares what operators without a measured or derived rule hold at the peak with the margin that
        the verdict adds; warns where they hold more, and where as much again would not fit.
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
    if f.capacity is not None and f.fits and f.needed + held <= f.capacity and not short(f):
        yield ok(f"operators without a rule hold {size(held)} at the peak; as much again would fit")
        return
    names = ", ".join(name for name, _ in f.unknown_operators[:4])
    yield warn(
        f"operators without a rule hold {size(held)} at the peak: {names}",
        f"at most the margin of {size(f.margin)}",
        fix=Fix("Measure the same configuration on a GPU", "fsdp-doctor dryrun … --on-gpu --calibrate"),
        confidence=Confidence.MEDIUM,
    )
