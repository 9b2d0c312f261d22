"""Calls of operators as texts, and what a history says that one took."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from fsdp_doctor.memory.child.calibrating import taken
from fsdp_doctor.memory.child.calls import Calls, read, signature
from fsdp_doctor.memory.child.meters import Entry

aten = torch.ops.aten


def test_a_text_gives_the_call_back() -> None:
    x = torch.zeros(2, 3, 8, 8).to(memory_format=torch.channels_last)
    args = (x, torch.zeros(4, 3, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    text = signature(aten.convolution.default, args, {})
    func, made, kwargs = read(text, "cpu")
    assert func is aten.convolution.default and kwargs == {} and made[2:] == list(args[2:])
    assert made[0].stride() == x.stride() and made[0].dtype == x.dtype
    assert func(*made).shape == (2, 4, 8, 8)
    assert signature(func, made, kwargs) == text


def test_numbers_dtypes_and_gradients_survive() -> None:
    x = torch.zeros(3, dtype=torch.bfloat16, requires_grad=True)
    text = signature(aten.sum.dim_IntList, (x, [0], False), {"dtype": torch.float32}, grads=True)
    _, made, kwargs = read(text, "cpu")
    assert made[0].requires_grad and kwargs["dtype"] == torch.float32
    text = signature(aten.clamp.default, (torch.zeros(1), float("-inf"), 1.0), {})
    assert read(text, "cpu")[1][1:] == [float("-inf"), 1.0]


def test_strides_and_dtypes_make_other_texts() -> None:
    x = torch.zeros(4, 8)
    texts = {signature(aten.mm.default, (a, x.t()), {}) for a in (x, x.half(), torch.zeros(8, 4).t())}
    assert len(texts) == 3


def test_calls_are_watched_by_name_or_by_library_and_counted() -> None:
    calls = Calls({"operators": ["aten::mm"], "own": ["aten"]})
    assert calls.watched("aten::mm") and not calls.watched("aten::bmm") and calls.watched("acme::kernel")
    assert not Calls({}).watched("acme::kernel"), "nothing is watched that was not asked for"
    x = torch.zeros(2, 2)
    text = calls.note(aten.mm.default, (x, x), {})
    calls.note(aten.mm.default, (x, x), {})
    assert text is not None
    assert calls.listed([])["calls"] == [{"operator": "aten::mm", "signature": text, "times": 2}]
    assert calls.listed([])["covered"] == [] and calls.listed([text])["covered"] == ["aten::mm"]
    assert calls.note(aten.mm.default, (x, object()), {}) is None
    assert calls.listed([text])["covered"] == [], "a call that cannot be written is not covered"


def alloc(address: int, size: int) -> Entry:
    return Entry(False, address, size, 0)


def free(address: int, size: int) -> Entry:
    return Entry(True, address, size, 0)


def test_what_lives_with_the_results_at_the_highest_moment_is_taken() -> None:
    assert taken([alloc(1, 100), alloc(2, 30), alloc(3, 20), free(3, 20), free(2, 30)], [1]) == [30, 20]
    one_after_the_other = [alloc(1, 100), alloc(2, 30), free(2, 30), alloc(2, 50), free(2, 50)]
    assert taken(one_after_the_other, [1]) == [50]


def test_a_result_made_after_the_peak_does_not_add_to_it() -> None:
    entries = [alloc(2, 300), free(2, 300), alloc(1, 100)]
    assert taken(entries, [1]) == [200]
    assert taken([alloc(2, 80), free(2, 80), alloc(1, 100)], [1]) == []
