"""Write beside a checkpoint what DCP does not store: checksums, ranks, strategy, wrapping, versions, order.

For training code: the standard library, and torch only where the caller has imported it.

    from fsdp_doctor.ckpt.manifest import write_manifest

    dcp.save(state, checkpoint_id=folder)
    write_manifest(folder, model=model, optimizer=optimizer, step=step)
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path

from fsdp_doctor.ckpt.dcp_metadata import read as read_metadata
from fsdp_doctor.ckpt.manifest_setup import described, ranks
from fsdp_doctor.ckpt.safe_pickle import PickleError
from fsdp_doctor.codec import to_json
from fsdp_doctor.subjects.checkpoint_manifest import MANIFEST_NAME, TAIL_BYTES, FileSum, Manifest

BLOCK = 4 << 20
THREADS = 4
TEMPORARY = (".tmp", ".part", ".converting")


def write_manifest(
    folder: str | os.PathLike[str],
    *,
    model: object = None,
    optimizer: object = None,
    step: int | None = None,
    world_size: int | None = None,
    extra: Mapping[str, str] | None = None,
    checksums: bool = True,
) -> Path | None:
    """Write `fsdp-doctor-manifest.json` into a checkpoint, for `ckpt check` and `ckpt inspect --verify`.

    Call it once the save is whole: after `dcp.save` has returned, or after `.result()` of `async_save`.
    Every rank may call it: rank 0 writes, the others return None at once; nothing is communicated. `model`
    and `optimizer` (FSDP2, FSDP1, DDP or plain) tell API, strategy, wrapping, mesh, dtypes and the
    optimizer's order of parameters; `extra` takes texts of your own. Without `checksums` sizes alone are
    noted, and nothing is read.

    Returns the file. Raises `FileNotFoundError` for an unfinished save, `OSError` where it cannot write.
    """
    rank, size = ranks()
    if rank:
        return None
    root = Path(folder)
    paths = _files(root)
    with ThreadPoolExecutor(THREADS) as pool:
        sums = dict(zip(paths, pool.map(lambda p: _sum(root / p, checksums), paths), strict=True))
    manifest = replace(
        described(model, optimizer),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        step=step,
        world_size=world_size or size,
        files=sums,
    )
    manifest = replace(
        manifest, extra={**manifest.extra, **{str(k): str(v) for k, v in (extra or {}).items()}}
    )
    return _write(root / MANIFEST_NAME, manifest)


def _files(root: Path) -> list[str]:
    """Files of the save, relative to the folder; data files that no metadata names are of another one."""
    found: list[str] = []
    for here, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.endswith(TEMPORARY))
        data = [n for n in names if n.endswith(".distcp")]
        named: frozenset[str] | None = None
        if data:
            metadata = os.path.join(here, ".metadata")
            if not os.path.exists(metadata) and not any(n.endswith(".metadata") for n in names):
                raise FileNotFoundError(
                    f"{metadata}: the save is not finished. Call write_manifest after dcp.save has returned, "
                    "or after .result() of async_save"
                )
            named = _named(metadata)
        for name in sorted(names):
            stale = named is not None and name in data and name not in named
            path = os.path.join(here, name)
            if name == MANIFEST_NAME or name.endswith(TEMPORARY) or stale or not os.path.isfile(path):
                continue
            found.append(os.path.relpath(path, root).replace(os.sep, "/"))
    return found


def _named(metadata: str) -> frozenset[str] | None:
    """Data files that the metadata names; None where it cannot be told."""
    try:
        with open(metadata, "rb") as file:
            return frozenset(read_metadata(file, os.path.getsize(metadata)).paths)
    except (OSError, PickleError):
        return None


def _sum(path: Path, checksums: bool) -> FileSum:
    size = path.stat().st_size
    if not checksums:
        return FileSum(size)
    whole, tail = sha256(), b""
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            whole.update(block)
            tail = (tail + block)[-TAIL_BYTES:]
    return FileSum(size, whole.hexdigest(), tail=sha256(tail).hexdigest())


def _write(path: Path, manifest: Manifest) -> Path:
    """Whole or not at all."""
    temporary = path.with_name(f"{path.name}.tmp")
    told = to_json(manifest)
    assert isinstance(told, dict)
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({"schema": manifest.schema, **told}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return path
