"""Jobs with planted faults, simulated: the kind of fault and the rank at fault are named, the cascade is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fixtures.dumps.memory import verdict
from fixtures.dumps.scenarios import SCENARIOS
from fixtures.dumps.simulate import Action, Hang, Program, Sim, as_json, as_version, fsdp_step


def stays_behind(rank: int) -> Iterator[Action]:
    yield from fsdp_step(rank)
    if rank == 5:
        yield Hang()
    yield from fsdp_step(rank)


@pytest.mark.parametrize(("name", "want", "program", "options"), SCENARIOS, ids=[s[0] for s in SCENARIOS])
def test_cause(name: str, want: tuple, program: Program, options: dict) -> None:
    cause = verdict(Sim(program=program, **options).run()).conclusions[0]
    assert cause.kind in (want[0] if isinstance(want[0], tuple) else (want[0],)), cause
    assert cause.ranks == want[1], cause


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.4", "2.0", "2.1", "2.2", "2.3", "2.7", "2.10"])
def test_older_schemas(version: str) -> None:
    dumps = {r: as_version(d, version) for r, d in Sim(8, stays_behind).run().items()}
    cause = verdict(dumps).conclusions[0]
    assert (cause.kind, cause.ranks) == ("never entered", (5,))


def test_json_form() -> None:
    cause = verdict({r: as_json(d) for r, d in Sim(8, stays_behind).run().items()}).conclusions[0]
    assert (cause.kind, cause.ranks) == ("never entered", (5,))
