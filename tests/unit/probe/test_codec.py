"""Results survive JSON, and what is not one is refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.probes import Bench
from fsdp_doctor.codec import FormatError, from_json
from fsdp_doctor.codec import whole_json as to_json
from fsdp_doctor.probe.verdicts import conclude, recheck
from fsdp_doctor.subjects.fabric import Fabric
from fsdp_doctor.subjects.probe import ProbePlan, ProbeResult, RankMeasurement

RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize(
    "bench", [Bench(), Bench(world=16, nodes=2, device="cuda").slow_rank(3, 2.0)], ids=["cpu", "cuda"]
)
def test_there_and_back(bench: Bench) -> None:
    result = bench.measured()
    again = from_json(ProbeResult, json.loads(json.dumps(to_json(result))))
    assert again == result
    fabric = conclude(result)
    assert to_json(from_json(Fabric, json.loads(json.dumps(to_json(fabric))))) == to_json(fabric)


@RELAXED
@given(st.from_type(ProbeResult))
def test_any_result_survives(result: ProbeResult) -> None:
    # NaN is equal to nothing, itself included; its text is.
    text = json.dumps(to_json(result))
    assert json.dumps(to_json(from_json(ProbeResult, json.loads(text)))) == text


@RELAXED
@given(st.from_type(ProbeResult))
def test_no_result_whatever_makes_the_conclusions_raise(result: ProbeResult) -> None:
    conclude(result)
    recheck(result)


def test_defaults_stand_in_and_unknown_names_are_ignored() -> None:
    assert from_json(RankMeasurement, {"rank": 3, "later": [1]}) == RankMeasurement(3)
    assert from_json(ProbePlan, {"backend": "gloo", "size_seconds": 2}).size_seconds == 2.0


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (RankMeasurement, {}, "RankMeasurement: rank is missing"),
        (RankMeasurement, {"rank": "3"}, r"RankMeasurement\.rank: found str, expected int"),
        (RankMeasurement, {"rank": True}, "found bool, expected int"),
        (RankMeasurement, [], "found list, expected an object"),
        (RankMeasurement, {"rank": 1, "pairs": {}}, r"pairs: found dict, expected an array"),
        (
            RankMeasurement,
            {"rank": 1, "work": [{"wall_seconds": [1, None]}]},
            r"work\[0\]\.wall_seconds\[1\]: found NoneType",
        ),
        (RankMeasurement, {"rank": 1, "counters_before": []}, "found list, expected an object"),
        (RankMeasurement, {"rank": 1, "hung": 1}, "found int, expected bool"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(kind: type[object], value: object, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        from_json(kind, value)
