"""What a recording consists of, as file name -> bytes: all that the providers asked for, without secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone

import fsdp_doctor
from fsdp_doctor.facts.collect import KINDS, collect
from fsdp_doctor.facts.recorded_parts import SCHEMA
from fsdp_doctor.facts.recording.recorder import Recorder
from fsdp_doctor.facts.redact import Redactor
from fsdp_doctor.facts.source import Json, Source
from fsdp_doctor.facts.trees import parts_of
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.scheduler import Identity

LOG_LIMIT = 4 << 20
"""Bytes of the kernel log that are kept, the newest ones."""


def contents(source: Source, *, checkpoint: str | None = None) -> dict[str, bytes]:
    """The recording of one rank; a name that ends in "/" is an empty folder.

    Runs every provider. `checkpoint` is the folder on the recorded machine that a run will save to.
    """
    recorder, redactor = Recorder(source), Redactor()
    facts = collect(recorder, KINDS, checkpoint=checkpoint)
    missing = dict(source.manifest.not_recorded) | recorder.unreadable
    out: dict[str, bytes] = {}
    env = recorder.env()
    if isinstance(env, Known):
        out["env.json"] = _dump(redactor.env(env.value))
    else:
        missing["env"] = env.reason
    for part, answer in (
        ("nvml", recorder.nvml()),
        ("stack", recorder.stack()),
        ("net", recorder.net()),
        ("statvfs", recorder.statvfs()),
    ):
        raw = _part(answer, redactor)
        if isinstance(raw, Unknown):
            missing[part] = raw.reason
        else:
            out[f"{part}.json"] = raw
    log = recorder.kernel_log()
    if isinstance(log, Known):
        # Twice as much is redacted as kept, so that no secret loses its beginning, by which it is known.
        lines = redactor.text(log.value[-2 * LOG_LIMIT :])
        out["kernel_log.txt"] = _newest(lines.encode("utf-8", "replace"))
    else:
        missing["kernel_log"] = log.reason
    out["links.json"] = _dump({k: recorder.links[k] for k in sorted(recorder.links)})
    out |= {f"root/{n}": redactor.file(n, raw) for n, raw in _files(recorder).items()}
    out["manifest.json"] = _dump(
        {
            k: redactor.json(v)
            for k, v in _manifest(recorder, facts.find(Identity), checkpoint, missing).items()
        }
    )
    return {name: redactor.again(out[name]) for name in sorted(out)}


def with_ranks(first: Mapping[str, bytes], further: Mapping[int, Mapping[str, bytes]]) -> dict[str, bytes]:
    """One recording of a job: the contents of one rank with those of others, by rank, below it."""
    out = dict(first)
    for rank, files in sorted(further.items()):
        out |= {f"ranks/{rank}/{name}": raw for name, raw in files.items()}
    return out


def _manifest(
    recorder: Recorder, identity: Identity | None, checkpoint: str | None, missing: Mapping[str, str]
) -> dict[str, Json]:
    own = recorder.manifest
    out: dict[str, Json] = {
        "schema": SCHEMA,
        "tool": f"fsdp-doctor {fsdp_doctor.__version__}",
        "created": own.created or datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "host": own.host,
        "rank": identity.rank if identity else own.rank,
        "world_size": identity.world_size if identity else own.world_size,
        "not_recorded": dict(sorted(missing.items())),
    }
    place = checkpoint if checkpoint is not None else own.checkpoint_dir
    if place is not None:
        out["checkpoint_dir"] = place
    if own.clock_offset_seconds is not None:
        out["clock_offset_seconds"] = own.clock_offset_seconds
    units = recorder.units()
    if units:
        out["units"] = dict(sorted(units.items()))
    if recorder.stats:
        out["stat"] = {f"/{n}": list(s) for n, s in sorted(recorder.stats.items())}
    return out


def _files(recorder: Recorder) -> dict[str, bytes]:
    """Files with their bytes. What is only known to be there is an empty folder, below /dev an empty file."""
    files, links = recorder.files, recorder.links
    known = {*files, *links, ""}
    above = {""}
    for name in (*files, *links, *recorder.folders, *recorder.named):
        parent = name.rpartition("/")[0]
        while parent not in above:
            above.add(parent)
            parent = parent.rpartition("/")[0]
    out = {n: raw for n, raw in files.items() if n not in above}
    for name in (recorder.folders | recorder.named) - known - above:
        node = name.startswith("dev/") and name not in recorder.folders
        out[name if node or name in recorder.stats else f"{name}/"] = b""
    return {n: raw for n, raw in out.items() if _is_writable(n)}


def _is_writable(name: str) -> bool:
    """Whether every file system and archive takes the name."""
    parts = parts_of(f"ranks/0/root/{name.rstrip('/')}")
    try:
        return parts is not None and all(len(p.encode("utf-8")) < 256 for p in parts)
    except UnicodeEncodeError:
        return False


def _part(
    answer: Known[Mapping[str, Json]] | Known[Mapping[str, Mapping[str, int]]] | Unknown, redactor: Redactor
) -> bytes | Unknown:
    if isinstance(answer, Unknown):
        return answer
    try:
        return _dump(redactor.json(answer.value))
    except (TypeError, ValueError, RecursionError) as error:
        return Unknown(f"the answers cannot be written: {error}")


def _dump(value: Json) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode("ascii")


def _newest(log: bytes) -> bytes:
    return log if len(log) <= LOG_LIMIT else log[-LOG_LIMIT:].partition(b"\n")[2]
