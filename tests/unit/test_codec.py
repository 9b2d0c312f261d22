"""Dataclasses to JSON and back, and everything that is no such JSON."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp_doctor.codec import FormatError, from_json, to_json, whole_json
from fsdp_doctor.findings import Result, Row, Status, Subject
from fsdp_doctor.subjects.rank_set import RankDigest, RankGpu

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.dictionaries(st.sampled_from(list(RankDigest.__dataclass_fields__)), JSON)


@settings(max_examples=200, deadline=None)
@given(st.from_type(RankDigest))
def test_every_digest_comes_back(digest: RankDigest) -> None:
    try:
        text = json.dumps(to_json(digest), allow_nan=False)
    except ValueError:
        return  # a float that JSON has no form for
    assert from_json(RankDigest, json.loads(text)) == digest


@settings(max_examples=300, deadline=None)
@given(JSON | FIELDS)
def test_anything_else_is_a_format_error(value: object) -> None:
    try:
        assert isinstance(from_json(RankDigest, value), RankDigest)
    except FormatError as error:
        assert str(error).startswith("RankDigest")


def test_defaults_are_left_out() -> None:
    assert to_json(RankDigest(3, gpu=RankGpu("GPU-1", capability=(9, 0)))) == {
        "rank": 3,
        "gpu": {"uuid": "GPU-1", "capability": [9, 0]},
    }


def test_enums_unions_and_tuples() -> None:
    result = Result("RNK001", "t", Row.START, Status.FAIL, Subject(rank=(1, 2), gpu=3), "found")
    assert from_json(Result, to_json(result)) == result


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"rank": "3"}, ".rank: found str, expected int"),
        ({"rank": True}, ".rank: found bool, expected int"),
        ({"rank": 1, "gpu": {"capability": [9]}}, ".gpu.capability: expected an array of 2"),
        ({"rank": 1, "dists": {"torch": None}}, ".dists.torch: found NoneType"),
        ({}, ": rank is missing"),
        ([], ": found list, expected an object"),
    ],
)
def test_the_error_names_the_field(value: object, words: str) -> None:
    with pytest.raises(FormatError, match=words.replace("[", r"\[")):
        from_json(RankDigest, value)


def test_text_that_could_not_be_written_is_mended() -> None:
    found = from_json(RankDigest, {"rank": 1, "host": "n\ud800e", "dists": {"a\udc80": "\udcff"}})
    assert found.host == "n?e" and dict(found.dists) == {"a?": "?"}


def test_every_field_is_in_the_whole() -> None:
    told = whole_json(RankDigest(1))
    assert isinstance(told, dict) and set(told) == {f.name for f in fields(RankDigest)}


def test_a_status_that_is_none() -> None:
    value = to_json(Result("RNK001", "t", None, Status.PASS, Subject(), "found"))
    assert isinstance(value, dict)
    with pytest.raises(FormatError, match="is no Status"):
        from_json(Result, {**value, "status": "fine"})
