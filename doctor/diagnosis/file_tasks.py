"""Files that differ by one number alone: one for each task of a job, as srun's `%t` names them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fsdp_doctor.diagnosis.records import SourceScan

NUMBER = re.compile(r"\d{1,6}")
OTHER_THAN_TASKS = re.compile(
    r"(?:node|host|run|attempt|restart|retry|fold|seed|exp|experiment|trial|epoch|step|shard|part|day|v|\.(?:log|txt))[-_.]?$",
    re.IGNORECASE,
)
"""Before a number that counts something else: runs, parts of data, old logs that were put aside."""


def ranks_of_files(scans: Sequence[SourceScan]) -> dict[str, int]:
    """File -> rank, where a folder's files are numbered from 0 without a gap and none names its writer."""
    logs = [s for s in scans if s.kind == "log" and s.bytes]
    if len(logs) < 2 or any(_is_told(s) for s in logs):
        return {}
    families: dict[tuple[str, str], dict[str, int]] = {}
    for scan in logs:
        folder, _, base = scan.name.rpartition("/")
        for found in NUMBER.finditer(base):
            if not OTHER_THAN_TASKS.search(base[: found.start()]):
                form = f"{base[: found.start()]}#{base[found.end() :]}"
                families.setdefault((folder, form), {})[scan.name] = int(found[0])
    whole = [f for f in families.values() if _is_counted(f)]
    largest: Mapping[str, int] = max(whole, key=len, default={})
    return dict(largest) if len(whole) == 1 else {}


def _is_told(scan: SourceScan) -> bool:
    """Whether the lines or the path of a source name who wrote them."""
    named = (scan.path_rank, scan.path_local, scan.path_host)
    keys = (*scan.seen, *(f.key for f in scan.found))
    return any(n is not None for n in named) or any(n is not None for key in keys for n in key[:3])


def _is_counted(family: Mapping[str, int]) -> bool:
    return len(family) > 1 and sorted(family.values()) == list(range(len(family)))
