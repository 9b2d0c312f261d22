"""No facts whatever make a check raise, and none turns an unknown machine into a failure."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures import machines
from fixtures.memory import facts_of
from fsdp_doctor.engine.options import Options, Profile
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.findings import Result, Status
from fsdp_doctor.subjects.fact import Facts, Known, Unknown

T = TypeVar("T")
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))  # a fact's counts and bytes have 64 bits
CHECKS = registry().checks
KINDS = tuple({k: None for c in CHECKS for k in (*c.needs, *c.uses)})
OPTIONS = st.builds(
    Options,
    profile=st.sampled_from(Profile),
    nproc=st.none() | st.integers(1, 4096),
    nodes=st.none() | st.integers(1, 100_000),
    checkpoint=st.none() | st.just("/mnt/ckpt"),
    model_bytes=st.none() | st.integers(0, 2**50),
    allow_mixed_gpus=st.booleans(),
)
MACHINES: tuple[Callable[[], machines.Machine], ...] = (
    machines.h100,
    machines.a100,
    machines.l40s,
    machines.geforce,
    machines.h200_vm,
    machines.laptop,
    machines.h100_container,
    lambda: machines.job_node("n", "10.0.0.1/24"),
)


def errors(results: tuple[Result, ...]) -> list[str]:
    return [f"{r.code} {r.found} {r.evidence}" for r in results if r.status is Status.ERROR]


def facts_strategy(kinds: tuple[type[object], ...]) -> st.SearchStrategy[Facts]:
    """Facts of `kinds` made up from the types of their fields, with some unknown."""
    one = {k: st.just(Unknown("not known")) | st.builds(Known, st.from_type(k)) for k in kinds}
    return st.fixed_dictionaries(one).map(Facts)


@pytest.mark.parametrize("family", sorted({c.family for c in CHECKS}))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_made_up_facts_never_break_a_check(family: str, data: st.DataObject) -> None:
    checks = tuple(c for c in CHECKS if c.family == family)
    kinds = tuple(dict.fromkeys(k for c in checks for k in (*c.needs, *c.uses)))
    facts, options = data.draw(facts_strategy(kinds)), data.draw(OPTIONS)
    assert errors(run_checks(checks, facts, options)) == []


def holes(value: T, rng: random.Random, share: float) -> T:
    """The same value with a share of its optional fields gone and its collections emptied."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {}
        for field in dataclasses.fields(value):
            old = getattr(value, field.name)
            optional = field.default is None
            changed[field.name] = None if optional and rng.random() < share else holes(old, rng, share)
        return dataclasses.replace(value, **changed)
    if isinstance(value, tuple) and value:
        kept = tuple(holes(v, rng, share) for v in value)
        shorter = dataclasses.is_dataclass(kept[0]) and rng.random() < share  # (9, 0) keeps its length
        return kept[:1] if shorter else kept  # type: ignore[return-value]
    if isinstance(value, Mapping) and rng.random() < share:
        return {k: v for k, v in value.items() if rng.random() < 0.5}  # type: ignore[return-value]
    return value


def with_holes(seed: int) -> Iterator[tuple[Facts, Options]]:
    rng = random.Random(seed)
    for make in MACHINES:
        whole = facts_of(make(), KINDS)
        facts = {}
        for kind in KINDS:
            fact = whole.fact(kind)
            known = isinstance(fact, Known) and rng.random() > 0.1
            facts[kind] = Known(holes(fact.value, rng, 0.2)) if known else Unknown("taken away")  # type: ignore[union-attr]
        yield Facts(facts), Options(nproc=rng.choice([None, 1, 8]), nodes=rng.choice([None, 1, 2]))


@pytest.mark.parametrize("seed", range(20))
def test_machines_with_holes_never_break_a_check(seed: int) -> None:
    for facts, options in with_holes(seed):
        assert errors(run_checks(CHECKS, facts, options)) == []


def test_nothing_known_is_all_skips() -> None:
    results = run_checks(CHECKS, Facts({}), Options())
    assert {r.status for r in results} == {Status.SKIP}
