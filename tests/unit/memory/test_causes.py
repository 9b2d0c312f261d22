"""What makes the peak: found among events, and how high it is without."""

from __future__ import annotations

from pathlib import Path

from fsdp_doctor.memory.causes import block_of, causes
from fsdp_doctor.memory.child import events as written
from fsdp_doctor.memory.events import EventList, read
from fsdp_doctor.memory.kinds import ACTIVATIONS, UNREDUCED, context, kinds_of
from fsdp_doctor.memory.simulate import living, simulate
from fsdp_doctor.subjects.memory import Cause

MIB = 1 << 20


class Step:
    """One step, written tensor by tensor."""

    def __init__(self) -> None:
        self.events = written.Events()
        self.events.mark("step 1")
        self.events.mark("forward")

    def make(self, operator: str, module: str, mib: int) -> int:
        return self.events.allocate(mib * MIB, 0, operator, self.events.modules.number(module))

    def read(self, folder: Path) -> EventList:
        self.events.write(str(folder / "events.bin"))
        return read(folder / "events.bin", self.events.header())


def found(events: EventList) -> dict[str, Cause]:
    run = simulate(events)
    held = living(events, run.peak_row)
    kinds = kinds_of(events, held, context(events), run.peak_row, unreduced=False)
    return {
        c.name: c for c in causes(events, held, {b: k == ACTIVATIONS for b, k in kinds.items()}, run.peak)
    }


def attention(folder: Path, product: str) -> dict[str, Cause]:
    step = Step()
    kept = []
    for i in range(4):
        scores = step.make(product, f"layers.{i}.attn", 64)
        kept.append(step.make("aten::_softmax", f"layers.{i}.attn", 64))
        step.events.free(scores)
    kept.append(step.make("aten::mm", "head", 32))
    step.events.mark("backward")
    for block in reversed(kept):
        step.events.free(block)
    return found(step.read(folder))


def test_softmax_behind_a_product_of_its_size_is_attention(tmp_path: Path) -> None:
    scores = attention(tmp_path, "aten::bmm")["scores"]
    assert (scores.bytes, scores.tensors) == (5 * 64 * MIB, 5)  # the last product is there too
    assert scores.modules == tuple(f"layers.{i}.attn" for i in range(4))
    assert scores.without == 32 * MIB


def test_softmax_of_what_a_convolution_made_is_not(tmp_path: Path) -> None:
    assert "scores" not in attention(tmp_path, "aten::convolution")


def test_logits_and_what_the_loss_makes_of_them(tmp_path: Path) -> None:
    step = Step()
    hidden = [step.make("aten::mm", f"layers.{i}.up", 100) for i in range(4)]
    low = step.make("aten::mm", "head", 50)
    logits = step.make("aten::_to_copy", "", 100)
    made = step.make("aten::_log_softmax", "", 100)
    step.events.mark("backward")
    for block in (made, logits, low, *hidden):
        step.events.free(block)
    loss = found(step.read(tmp_path))["loss"]
    assert (loss.bytes, loss.tensors) == (250 * MIB, 3)  # of the blocks' tensors of 100 MiB there are four
    assert loss.without == 400 * MIB


def test_activations_of_blocks_but_one(tmp_path: Path) -> None:
    step = Step()
    kept = [step.make("aten::mm", f"layers.{i}.up", 100) for i in range(6)]
    kept.append(step.make("aten::mm", "embed", 30))
    step.events.mark("backward")
    step.make("aten::mm", "layers.5.up", 10)
    for block in reversed(kept):
        step.events.free(block)
    made = found(step.read(tmp_path))["activations"]
    assert (made.bytes, made.modules) == (600 * MIB, tuple(f"layers.{i}" for i in range(6)))
    assert made.without == (100 + 30 + 10) * MIB


def test_gradients_that_wait_for_the_last_microbatch_are_named(tmp_path: Path) -> None:
    step = Step()
    step.events.mark("backward")
    whole = step.make("fsdp: reduce-scatter", "layers.0", 40)
    buffer = step.make("fsdp: all-gather", "layers.0", 20)
    step.events.free(buffer)
    step.events.mark("forward")
    activation = step.make("aten::mm", "layers.0", 80)
    step.events.mark("backward")
    step.events.free(activation)
    step.events.free(whole)
    events = step.read(tmp_path)
    row = simulate(events).peak_row
    held = living(events, row)
    names = {
        b.operator: n
        for b, n in zip(held, kinds_of(events, held, context(events), row, True).values(), strict=True)
    }
    assert names == {"fsdp: reduce-scatter": UNREDUCED, "aten::mm": ACTIVATIONS}


def test_blocks_of_modules() -> None:
    assert block_of("model.layers.3.attn.q") == "model.layers.3"
    assert block_of("layers.12") == "layers.12"
    assert block_of("head") == block_of("conv2d") == ""
