"""Messages between ranks: length-prefixed JSON with a cap, and proofs that both ends share a secret.

    server -> client   FSDP-DOCTOR/1 NONCE and a line feed, before the client has sent a byte
    client -> server   frame {"type": "hello", …, "proof"}
    server -> client   frame {"type": "welcome", "proof", "plan"} or {"type": "refused", "reason"}

A frame is a 4-byte length, one byte of kind (J: JSON, Z: JSON compressed by zlib), and the body.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import struct
import zlib
from collections.abc import Iterator, Mapping

PROTOCOL = 1
BANNER = re.compile(rb"FSDP-DOCTOR/(\d{1,4}) ([0-9a-f]{32})\n\Z")
BANNER_SIZE = len(b"FSDP-DOCTOR/1 ") + 32 + 1
HEAD = struct.Struct("!IB")
PLAIN, PACKED = b"JZ"
STRANGER_LIMIT = 4096
"""Bytes of a frame of a peer that has not proved anything."""
FRAME_LIMIT = 32 << 20
"""Bytes of a frame on the wire; a rank's whole recording takes 0.1 to 2 MiB."""
BODY_LIMIT = 256 << 20
"""Bytes of a frame's JSON after decompression."""
PACK_FROM = 2048
LARGEST = 1e12
"""Seconds and the like beyond it are nonsense."""

Message = Mapping[str, object]


class WireError(Exception):
    """The peer does not speak this protocol; the text says what it did."""


def banner(nonce: str) -> bytes:
    """What a server says first."""
    return f"FSDP-DOCTOR/{PROTOCOL} {nonce}\n".encode()


def read_banner(raw: bytes) -> str:
    """The nonce of a banner. Raises `WireError` for what is none, or is of another version."""
    match = BANNER.match(raw)
    if match is None:
        raise WireError("something else answers there")
    if int(match.group(1)) != PROTOCOL:
        raise WireError(f"an fsdp-doctor of another version answers there (protocol {int(match.group(1))})")
    return match.group(2).decode()


def nonce() -> str:
    """128 random bits."""
    return secrets.token_hex(16)


def secret(token: str | None, job_id: str | None, port: int) -> bytes:
    """What the ranks of one job share: the token that the user gave, the id of the job, and the port.

    Without a token it tells jobs apart and does not keep out somebody who knows the job's id.
    """
    parts = ("fsdp-doctor ranks", token or "", job_id or "", str(port))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).digest()


def proof(key: bytes, *words: object) -> str:
    """That the sender knows the secret, bound to the words."""
    return hmac.new(key, "\0".join(map(str, words)).encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def proves(given: object, key: bytes, *words: object) -> bool:
    """Whether a peer's proof is right."""
    return isinstance(given, str) and hmac.compare_digest(
        given.encode("utf-8", "replace"), proof(key, *words).encode()
    )


def pack(message: Message, limit: int = FRAME_LIMIT) -> bytes:
    """A message as a frame. Raises `WireError` where it is too large to be taken."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii")
    kind = PLAIN
    if len(body) > PACK_FROM:
        body, kind = zlib.compress(body, 1), PACKED
    if len(body) > limit:
        raise WireError(f"a message of {len(body) >> 20} MiB is more than the {limit >> 20} MiB allowed")
    return HEAD.pack(len(body), kind) + body


def unpack(kind: int, body: bytes, limit: int = BODY_LIMIT) -> Message:
    """The message in a frame. Raises `WireError`."""
    if kind == PACKED:
        inflate = zlib.decompressobj()
        try:
            body = inflate.decompress(body, limit)
        except zlib.error as error:
            raise WireError(f"a frame that does not decompress: {error}") from None
        if inflate.unconsumed_tail or not inflate.eof:
            raise WireError("a frame that decompresses to more than is allowed, or is cut")
    elif kind != PLAIN:
        raise WireError(f"a frame of unknown kind {kind}")
    try:
        message = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a frame that is no JSON: {str(error)[:80]}") from None
    if not isinstance(message, dict):
        raise WireError("a frame that is no object")
    return message


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def number(value: object) -> float | None:
    """A figure of a peer, such as seconds; None for anything that is no sane one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < LARGEST:
        return None
    return float(value)


def text(value: object, limit: int = 1000) -> str:
    """Words of a peer that can be printed; empty for anything that is no text."""
    return value[:limit].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


class Frames:
    """Cuts a stream into messages. `limit` is what a frame may have; raise it once the peer is known."""

    def __init__(self, limit: int = FRAME_LIMIT) -> None:
        self.limit = limit
        self._buffer = bytearray()

    @property
    def held(self) -> int:
        """Bytes that wait for the rest of their frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Message]:
        """Messages that are complete. Raises `WireError`, after which the stream is useless."""
        self._buffer += data
        while len(self._buffer) >= HEAD.size:
            size, kind = HEAD.unpack_from(self._buffer)
            if size > self.limit:
                raise WireError(f"a frame of {size} bytes, {self.limit} are allowed")
            if len(self._buffer) < HEAD.size + size:
                return
            body = bytes(memoryview(self._buffer)[HEAD.size : HEAD.size + size])
            del self._buffer[: HEAD.size + size]
            yield unpack(kind, body)
