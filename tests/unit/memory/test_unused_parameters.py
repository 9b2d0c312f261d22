"""DDP waits for every gradient unless it was told otherwise: what torch says in the next forward is said here."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from fsdp_doctor.memory.child.data_parallel import DataParallel


def iterations(given: Mapping[str, object], *whole: bool, sync: bool = True) -> None:
    """Forwards and backwards of a model whose second layer takes part in those that are `whole`."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    tracker: Any = SimpleNamespace(label="")
    rules = DataParallel(model, tracker, given)
    for all_of_it in whole:
        rules.before_forward()
        out = model[0](torch.ones(2, 4))
        loss = (model[1](out) if all_of_it else out).sum()
        if sync:
            loss.backward()
        else:
            with rules.no_sync():
                loss.backward()


@pytest.mark.parametrize("whole", [(False, False), (True, True, False, True)])
def test_a_parameter_without_a_gradient_ends_the_next_forward(whole: tuple[bool, ...]) -> None:
    with pytest.raises(RuntimeError, match=r"Expected to have finished reduction.*: 1\.weight, 1\.bias"):
        iterations({}, *whole)


@pytest.mark.parametrize("given", [{"find_unused_parameters": True}, {"static_graph": True}])
def test_one_that_was_told_goes_on(given: Mapping[str, object]) -> None:
    iterations(given, False, False, False)


def test_what_is_not_reduced_and_what_comes_last_is_not_waited_for() -> None:
    iterations({}, False, False, sync=False)
    iterations({}, True, True, False)
