"""Frames, banners and proofs; bytes from anybody."""

from __future__ import annotations

import contextlib
import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp_doctor.ranks import wire
from fsdp_doctor.ranks.wire import Frames, WireError

VALUE = st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text()), max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.lists(VALUE, max_size=5), st.integers(1, 50))
def test_messages_come_out_as_they_went_in(messages: list[dict[str, object]], step: int) -> None:
    stream = b"".join(wire.pack(m) for m in messages)
    frames, found = Frames(), []
    for i in range(0, len(stream), step):
        found += list(frames.feed(stream[i : i + step]))
    assert found == messages
    assert frames.held == 0


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=400), st.integers(1, 40))
def test_hostile_bytes_are_a_wire_error_or_wait_for_more(data: bytes, step: int) -> None:
    frames = Frames(limit=1000)
    try:
        for i in range(0, len(data), step):
            for message in frames.feed(data[i : i + step]):
                assert isinstance(message, dict)
    except WireError:
        return
    assert frames.held <= 1000 + wire.HEAD.size


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([b"J", b"Z", b"Q", b"\0"]), st.binary(max_size=200))
def test_a_frame_with_any_body(kind: bytes, body: bytes) -> None:
    with contextlib.suppress(WireError):
        list(Frames().feed(wire.HEAD.pack(len(body), kind[0]) + body))


def frame(body: bytes, kind: bytes = b"J") -> bytes:
    return wire.HEAD.pack(len(body), kind[0]) + body


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (frame(b"[1]"), "no object"),
        (frame(b"{"), "no JSON"),
        (frame(b'{"a": NaN}'), "no JSON"),
        (frame(b"[" * 200_000), "no JSON"),
        (frame(b'{"a": ' + b"9" * 5000 + b"}"), "no JSON"),
        (frame(b"\xff\xfe{}"), "no JSON|no object"),
        (frame(b"{}", b"X"), "unknown kind"),
        (frame(b"abc", b"Z"), "decompress"),
        (frame(zlib.compress(b'{"a": 1}')[:-4], b"Z"), "cut"),
        (wire.HEAD.pack(1 << 31, b"J"[0]), "bytes"),
    ],
)
def test_what_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        list(Frames().feed(data))


def test_a_bomb_is_not_unpacked() -> None:
    bomb = zlib.compress(b" " * (64 << 20))
    with pytest.raises(WireError, match="more than is allowed"):
        wire.unpack(b"Z"[0], bomb, limit=1 << 20)


def test_large_messages_are_packed_and_capped() -> None:
    big = {"text": "x" * 100_000}
    assert len(wire.pack(big)) < 2000
    with pytest.raises(WireError, match="MiB"):
        wire.pack({"noise": json.dumps([str(hash(str(i))) for i in range(100_000)])}, limit=1 << 16)


def test_banner() -> None:
    nonce = wire.nonce()
    raw = wire.banner(nonce)
    assert len(raw) == wire.BANNER_SIZE
    assert wire.read_banner(raw) == nonce
    with pytest.raises(WireError, match="another version"):
        wire.read_banner(raw.replace(b"DOCTOR/1", b"DOCTOR/2"))
    for other in (b"", b"SSH-2.0-OpenSSH_9.6\r\n", raw[:-1], raw + b"x", raw.upper()):
        with pytest.raises(WireError):
            wire.read_banner(other)


def test_a_secret_is_of_one_job_and_token() -> None:
    same = wire.secret("t", "job", 29500)
    assert same == wire.secret("t", "job", 29500)
    assert (
        len(
            {
                same,
                wire.secret(None, "job", 29500),
                wire.secret("t", "other", 29500),
                wire.secret("t", "job", 1),
            }
        )
        == 4
    )


def test_a_proof_is_bound_to_its_words() -> None:
    key = wire.secret("t", None, 1)
    right = wire.proof(key, "hello", "nonce", 3)
    assert wire.proves(right, key, "hello", "nonce", 3)
    assert not wire.proves(right, key, "hello", "nonce", 4)
    assert not wire.proves(right, wire.secret("u", None, 1), "hello", "nonce", 3)
    for bad in (None, 3, "", right[:-1], "é" * 64, "\ud800"):
        assert not wire.proves(bad, key, "hello", "nonce", 3)
