"""A machine of a few literal files, as a source."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fsdp_doctor.facts.recorded import MemoryTree, RecordedSource
from fsdp_doctor.subjects.fact import Known, Unknown

MANIFEST = {"schema": "fsdp-doctor-recording/1", "host": "literal", "rank": 0, "world_size": 1}


def source(
    files: Mapping[str, str | bytes] | None = None,
    links: Mapping[str, str] | None = None,
    log: str | bytes | None = None,
    manifest: Mapping[str, object] | None = None,
    **parts: object,
) -> RecordedSource:
    """Files by path without the leading slash; `parts` are env, net, statvfs, … as values."""
    tree = {"manifest.json": json.dumps(MANIFEST | dict(manifest or {})).encode()}
    tree["links.json"] = json.dumps(dict(links or {})).encode()
    tree |= {f"{name}.json": json.dumps(value).encode() for name, value in parts.items()}
    for path, content in (files or {}).items():
        tree[f"root/{path}"] = content if isinstance(content, bytes) else content.encode()
    if log is not None:
        tree["kernel_log.txt"] = log if isinstance(log, bytes) else log.encode()
    return RecordedSource(MemoryTree(tree))


def known(fact: Known[object] | Unknown) -> object:
    """The value; a test that meets an unknown fact fails with its reason."""
    assert isinstance(fact, Known), fact
    return fact.value
