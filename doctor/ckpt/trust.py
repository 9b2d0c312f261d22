"""How far a global that a pickle names can be trusted."""

from __future__ import annotations

from fsdp_doctor.subjects.checkpoint import Trust
from fsdp_doctor.tables.pickle_globals import (
    DANGEROUS,
    DCP_METADATA,
    HARMLESS,
    KNOWN,
    WEIGHTS_ONLY,
    WEIGHTS_ONLY_PATTERN,
)


def trust_of(name: str) -> Trust:
    """By its name; a name that is on no list is unknown."""
    if name in WEIGHTS_ONLY or WEIGHTS_ONLY_PATTERN.fullmatch(name) or DCP_METADATA.fullmatch(name):
        return Trust.TORCH
    if name in HARMLESS:
        return Trust.KNOWN
    if DANGEROUS.fullmatch(name):
        return Trust.DANGEROUS
    return Trust.KNOWN if KNOWN.fullmatch(name) else Trust.UNKNOWN
