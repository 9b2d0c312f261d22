"""Dumps in JSON, whole or cut."""

from __future__ import annotations

import json
import re

from .plain import Cut

_ENTRIES = re.compile(r'"entries"\s*:\s*\[')


def load(data: bytes) -> object:
    """The object of a JSON text. Raises `Cut` where it is not whole."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Cut(f"{type(error).__name__}: {error}"[:200]) from None


def salvage(data: bytes) -> object:
    """The whole entries of a cut text. Raises `Cut` if there are none."""
    text = data.decode("utf-8", "replace")
    start = _ENTRIES.search(text)
    entries: list[object] = []
    at = start.end() if start else len(text)
    decoder = json.JSONDecoder()
    while at < len(text):
        try:
            item, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        entries.append(item)
        while at < len(text) and text[at] in ", \t\r\n":
            at += 1
    if not entries:
        raise Cut("nothing can be read")
    return {"entries": entries}
