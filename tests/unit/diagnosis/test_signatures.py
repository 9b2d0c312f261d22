"""The table of signatures: samples match, gates lose nothing, both matchers find the same."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.logs import incident_of
from fsdp_doctor.diagnosis.markers import MARKERS
from fsdp_doctor.diagnosis.matcher import EngineMatcher, PlainMatcher, matcher
from fsdp_doctor.tables.log_signatures import SIGNATURES
from fsdp_doctor.tables.log_signatures.model import Signature

ALL = (*SIGNATURES.values(), *MARKERS)
PRINTABLE = st.characters(min_codepoint=32, max_codepoint=126)


@pytest.mark.parametrize("signature", ALL, ids=lambda s: s.code)
def test_sample_passes_every_gate(signature: Signature) -> None:
    found = incident_of({"job.log": f"[rank1]: {signature.sample}\n"})
    if signature.code[0] != "_" and not signature.generic:
        assert signature.code in {h.code for h in found.hits}
    assert any(literal in signature.sample for literal in signature.literals)
    assert signature.gate is None or re.search(signature.gate, signature.sample)


@pytest.mark.parametrize("signature", ALL, ids=lambda s: s.code)
def test_engine_and_fallback_find_the_same(signature: Signature) -> None:
    pytest.importorskip("hyperscan")
    text = f"[rank1]: step 1 loss 2.0\n[rank2]: {signature.sample}\n[rank3]: information: 0 errors\n"
    assert incident_of({"a.log": text}) == incident_of({"a.log": text}, plain=True)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
@pytest.mark.parametrize("signature", [s for s in ALL if "(?!" not in s.pattern], ids=lambda s: s.code)
def test_no_match_lacks_a_literal(signature: Signature, data: st.DataObject) -> None:
    """Text made from the pattern itself always holds one of the literals, so the search for them is lossless."""
    text = data.draw(st.from_regex(signature.regex, alphabet=PRINTABLE))
    assert any(literal in text for literal in signature.literals), text
    if signature.gate is not None and "\n" not in text:
        assert re.search(signature.gate, text), text


def test_whole_log_gives_the_same_places_line_by_line() -> None:
    pytest.importorskip("hyperscan")
    text = "\n".join(s.sample for s in ALL).encode() * 3
    engine, plain = EngineMatcher(ALL), PlainMatcher(ALL)

    def lines(of: EngineMatcher | PlainMatcher) -> set[tuple[int, str]]:
        return {(text.count(b"\n", 0, p - 1), s.code) for p, g in of.places(text) for s in of.gates[g]}

    hit = {
        (n, s.code) for n, line in enumerate(text.decode().split("\n")) for s in ALL if s.regex.search(line)
    }
    assert hit <= lines(engine)
    assert hit <= lines(plain)


def test_the_installed_engine_is_used() -> None:
    pytest.importorskip("hyperscan")
    assert matcher().name == "hyperscan"
    assert matcher(True).name == "plain"


def test_codes_are_unique_and_in_their_rooms() -> None:
    assert all(re.fullmatch(r"LOG[1-7]\d\d", c) for c in SIGNATURES)
    for signature in SIGNATURES.values():
        assert 0 <= signature.weight <= 100
        assert signature.why
        assert signature.fix
        assert signature.sources
