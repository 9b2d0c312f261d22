"""Why a finding matters is said of what was found: what a replay lacks is no fault that was paid for."""

from __future__ import annotations

import pytest

from fixtures.cases import memory
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.subjects.memory import ReplayProblem

OWN = {code: registry().get(code).documentation.why for code in ("MEM001", "MEM040")}  # type: ignore[union-attr]


def why(code: str, problem: ReplayProblem) -> str:
    facts = (
        memory.facts(problem=problem) if code == "MEM001" else memory.rehearsal(problem=problem, steps_done=0)
    )
    (found,) = run_checks([c for c in registry().checks if c.code == code], facts, Options())
    return found.why


@pytest.mark.parametrize(
    ("code", "problem", "said"),
    [
        ("MEM001", ReplayProblem("failed", "ValueError: 3"), OWN["MEM001"]),
        ("MEM001", ReplayProblem("loss", "it returned a tuple"), OWN["MEM001"]),
        (
            "MEM001",
            ReplayProblem("model", "Torch not compiled with CUDA", lacks="gpu"),
            "On a GPU the line may work",
        ),
        ("MEM001", ReplayProblem("model", "look-up of hub.example", lacks="network"), "fetches nothing"),
        ("MEM001", ReplayProblem("model", "EOFError", lacks="input"), "no standard input"),
        ("MEM001", ReplayProblem("batch", "cannot copy out of meta tensor", lacks="values"), "on shapes"),
        ("MEM001", ReplayProblem("unmodelled", "tensor parallelism is not modelled"), "may run"),
        ("MEM001", ReplayProblem("time", "no answer in 10 s"), "may run"),
        ("MEM040", ReplayProblem("script", "KeyError: 'lr'"), OWN["MEM040"]),
        ("MEM040", ReplayProblem("network", "look-up of hub.example"), "no network"),
        ("MEM040", ReplayProblem("refused", "tensor parallelism is not rehearsed"), "may run"),
    ],
)
def test_the_reason_is_of_what_was_found(code: str, problem: ReplayProblem, said: str) -> None:
    assert said and said in why(code, problem)
