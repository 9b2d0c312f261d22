"""A signature's sentence, filled with what its lines name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import Formatter

from fsdp_doctor.subjects.incident import Hit
from fsdp_doctor.tables.log_signatures import Signature

EMPTY = re.compile(r"\s*[(\[]\s*(?:signal|bytes|it supports CUDA)?\s*[)\]]")
"""Brackets around what is not known."""
DANGLING = re.compile(r"(?::? tried to allocate|: |, | in | of | while writing | at )$")
"""Words at the end that led to what is not known."""


def sentence(signature: Signature, hits: Sequence[Hit]) -> str:
    """What the signature says of these lines, without the parts that none of them fills."""
    if signature.says is None:
        return signature.title
    said = _Blank().vformat(signature.says, (_values(signature.says, hits),), {}).strip()
    said = DANGLING.sub("", EMPTY.sub("", said).strip())
    return re.sub(r"\s{2,}", " ", said).strip(" :,")


def _values(says: str, hits: Sequence[Hit]) -> dict[str, str]:
    """Name -> the first value. Patterns number the groups of alternatives: `path2` counts as `path` too."""
    values: dict[str, str] = {}
    for hit in hits:
        for name, value in hit.fields.items():
            base = name.rstrip("0123456789")
            values.setdefault(name, value.strip())
            if base in says or name != base:
                values.setdefault(base, value.strip())
    return values


class _Blank(Formatter):
    """Fills what is known, and leaves out what is not."""

    def get_value(self, key: int | str, args: Sequence[object], kwargs: object) -> str:
        values = args[0]
        assert isinstance(values, dict)
        return str(values.get(str(key), ""))
