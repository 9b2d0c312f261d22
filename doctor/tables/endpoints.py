"""How an endpoint is written: HOST, HOST:PORT, [V6]:PORT, with or without a scheme."""

from __future__ import annotations


def split_endpoint(text: str) -> tuple[str, int | None]:
    """Host and port of "head:29400" or "tcp://[::1]:29400"; no port, or a bad one, is None."""
    bare = text.strip().split("://", 1)[-1].split("/", 1)[0].strip()
    if bare.startswith("["):
        host, _, rest = bare[1:].partition("]")
        port = rest.removeprefix(":")
    elif bare.count(":") == 1:
        host, _, port = bare.partition(":")
    else:
        host, port = bare, ""
    return host, int(port) if port.isascii() and port.isdigit() and len(port) < 8 else None
