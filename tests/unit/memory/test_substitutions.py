"""The table of substitutions beside the rules that it speaks of."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations

import pytest

from fsdp_doctor.memory.calibrate import WITHOUT_A_RULE, unsettled
from fsdp_doctor.memory.replay import START
from fsdp_doctor.memory.rules import rules_used
from fsdp_doctor.tables.gpu_memory import PROCESSORS
from fsdp_doctor.tables.substitutions import (
    ASSUMED,
    MEASURED,
    SUBSTITUTIONS,
    UNMEASURED,
    Substitution,
    entry,
    known,
)
from fsdp_doctor.tables.substitutions.entry import release

RULES = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("start", sys.argv[1])
start = importlib.util.module_from_spec(spec)
spec.loader.exec_module(start)
print("FOUND " + json.dumps(sorted(start.load("rules").operators())))
"""
OPERATORS = frozenset(o for s in SUBSTITUTIONS for o in s.operators)


def test_every_rule_has_an_entry_and_every_entry_a_rule() -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RULES, str(START)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-2000:]
    rules = frozenset(json.loads(lines[0][6:]))
    assert sorted(rules - OPERATORS) == [], "rules without an entry"
    assert sorted(OPERATORS - rules) == [], "entries without a rule"


@pytest.mark.parametrize("one", SUBSTITUTIONS, ids=lambda s: f"{s.operators[0]}-{s.sm[0]}")
def test_an_entry_says_what_it_stands_on(one: Substitution) -> None:
    assert one.mark in (MEASURED, ASSUMED) and one.evidence and one.kernel
    assert one.saves and one.workspace and one.torch and one.sm
    assert one.cudnn or "cuDNN" not in one.kernel or one.mark == ASSUMED
    assert bool(one.seen) == (one.mark == MEASURED)


def test_one_entry_for_an_operator_and_an_architecture() -> None:
    for a, b in combinations(SUBSTITUTIONS, 2):
        both = set(a.operators) & set(b.operators)
        assert not both or not set(a.sm) & set(b.sm), both


def test_what_was_measured_on_one_architecture_is_assumed_on_others() -> None:
    for operator in OPERATORS:
        for sm in PROCESSORS:
            of = entry(operator, sm)
            assert of is not None
            assert of.stands(sm) == (MEASURED if of.mark == MEASURED and sm in of.sm else ASSUMED)
            assert sm == 90 or of.stands(sm) == ASSUMED, "only an H200 was measured"


def test_what_calibrating_measures() -> None:
    hopper, ampere = set(unsettled(90)), set(unsettled(80))
    assert hopper < ampere
    for operator in OPERATORS:
        of = entry(operator, 80)
        assert of is not None
        assert (operator in ampere) == of.single, operator
    extra = {o for more in WITHOUT_A_RULE.values() for o in more}
    assert {"aten::lstm", "aten::convolution"} <= hopper, "whose kernels go by shape"
    assert (
        "aten::rms_norm" not in hopper and "aten::_scaled_dot_product_flash_attention_backward" not in hopper
    )
    assert extra <= ampere and not extra & hopper
    assert hopper >= UNMEASURED and not UNMEASURED & OPERATORS
    assert not any(map(known, UNMEASURED)) and all(known(o) for o in OPERATORS if "::" in o)


@pytest.mark.parametrize(
    ("number", "said"), [(91900, "9.19"), (91002, "9.10"), (8902, "8.9"), (90100, "9.1")]
)
def test_versions_of_cudnn(number: int, said: str) -> None:
    assert release(number) == said


def test_how_the_rules_of_a_job_stand() -> None:
    about = {
        "rules": ["aten::convolution", "aten::lstm", "aten::rms_norm", "aten::scaled_dot_product_attention"],
        "covered": ["aten::convolution"],
    }
    here = {r.operator.removeprefix("aten::"): r for r in rules_used(about, 90)}
    assert [r.mark for r in here.values()] == ["calibrated", "measured", "measured", "measured"]
    assert "cuDNN, flash" in here["scaled_dot_product_attention"].kernel
    there = {r.operator.removeprefix("aten::"): r for r in rules_used(about, 80)}
    assert [r.mark for r in there.values()] == ["calibrated", "assumed", "assumed", "assumed"]
    assert there["rms_norm"].seen == "sm 90, torch 2.11"
    assert there["scaled_dot_product_attention"].seen == "" and "flash before cuDNN" in (
        there["scaled_dot_product_attention"].kernel
    )
    older = {r.operator.removeprefix("aten::"): r.mark for r in rules_used({**about, "cudnn": 91002}, 90)}
    assert (older["lstm"], older["rms_norm"]) == ("assumed", "measured"), "cuDNN chooses anew in each version"
    assert {r.mark for r in rules_used({**about, "cudnn": 91900}, 90)} == {"calibrated", "measured"}
    assert rules_used({}, 90) == () == rules_used({"rules": ["acme::scale"]}, 90)
