"""Checkpoints made by hand, byte by byte, without torch: what tests change one thing of."""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import types
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

FLOATS = 4


def archive(entries: Mapping[str, bytes], root: str = "archive", **options: object) -> bytes:
    """A zip as torch.save writes it: stored, data.pkl first."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as made:
        for name, raw in entries.items():
            made.writestr(f"{root}/{name}", raw)
    return out.getvalue()


class Storage:
    """Stands for a storage: pickled as a persistent id."""

    def __init__(self, key: str, count: int, kind: str = "FloatStorage") -> None:
        self.key, self.count, self.kind = key, count, kind


class Tensor:
    """Stands for a tensor: pickled as torch's _rebuild_tensor_v2."""

    def __init__(self, key: str, shape: tuple[int, ...]) -> None:
        self.key, self.shape = key, shape

    @property
    def count(self) -> int:
        count = 1
        for n in self.shape:
            count *= n
        return count


@contextmanager
def modules(**members: Mapping[str, object]) -> Iterator[None]:
    """Modules that pickle can find while it writes, and that are gone afterwards."""
    before = {name.replace("__", "."): sys.modules.get(name.replace("__", ".")) for name in members}
    try:
        for name, values in members.items():
            full = name.replace("__", ".")
            module = types.ModuleType(full)
            for key, value in values.items():
                value.__module__, value.__qualname__ = full, key  # type: ignore[attr-defined]
                setattr(module, key, value)
            sys.modules[full] = module
        yield
    finally:
        for full, old in before.items():
            if old is None:
                sys.modules.pop(full, None)
            else:
                sys.modules[full] = old


def torch_file(tensors: Mapping[str, Tensor], more: Mapping[str, object] | None = None) -> bytes:
    """A torch.save file of a dictionary of float32 tensors and plain values."""
    pkl = pickled(dict(tensors) | dict(more or {}))
    data = {f"data/{t.key}": struct.pack(f"<{t.count}f", *range(t.count)) for t in tensors.values()}
    return archive({"data.pkl": pkl, "byteorder": b"little", **data, "version": b"3\n"})


def pickled(value: object) -> bytes:
    """Protocol 2, as torch.save writes: tensors as calls, storages as persistent ids."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: object) -> bytes:
    if isinstance(value, Tensor):
        storage = (
            b"("
            + _text("storage")
            + b"ctorch\nFloatStorage\n"
            + _text(value.key)
            + _text("cpu")
            + _int(value.count)
        )
        shape = b"(" + b"".join(map(_int, value.shape)) + b"t"
        strides = [1]
        for n in reversed(value.shape[1:]):
            strides.insert(0, strides[0] * n)
        stride = b"(" + b"".join(_int(s) for s in (strides if value.shape else [])) + b"t"
        hooks = b"ccollections\nOrderedDict\n)R"
        return (
            b"ctorch._utils\n_rebuild_tensor_v2\n("
            + storage
            + b"tQ"
            + _int(0)
            + shape
            + stride
            + b"\x89"
            + hooks
            + b"tR"
        )
    if isinstance(value, dict):
        return b"}(" + b"".join(_opcodes(k) + _opcodes(v) for k, v in value.items()) + b"u"
    if isinstance(value, (list, tuple)):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    return pickle.dumps(value, 2)[2:-1]


def _text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def _int(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def safetensors(tensors: Mapping[str, tuple[int, ...]], metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file of zeros in float32."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, shape in tensors.items():
        size = FLOATS
        for n in shape:
            size *= n
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(at)


class Dcp:
    """A DCP folder: tensors cut into rows over ranks, and values."""

    def __init__(self, ranks: int = 2) -> None:
        self.ranks = ranks
        self.tensors: dict[str, tuple[int, ...]] = {}
        self.values: dict[str, object] = {}
        self.change: dict[str, object] = {}
        self.paths: dict[str, str] = {}
        """File name -> the name that metadata gives instead."""

    def write(self, folder: Path) -> Path:
        """Write all files; the metadata last."""
        folder.mkdir(parents=True, exist_ok=True)
        described, places = {}, {}
        files = {f"__{r}_0.distcp": b"" for r in range(self.ranks)}
        chunk, index, info, tensor, properties = (self._class(n) for n in CLASSES)
        for key, shape in self.tensors.items():
            per = -(-shape[0] // self.ranks)
            chunks = []
            for rank in range(self.ranks):
                rows = min(per, shape[0] - rank * per)
                if rows <= 0:
                    continue
                part = (rows, *shape[1:])
                start = (rank * per, *(0 for _ in shape[1:]))
                raw = archive_of(Tensor("0", part))
                name = f"__{rank}_0.distcp"
                chunks.append(made(chunk, offsets=start, sizes=part))
                at = made(index, fqn=key, offset=start, index=len(chunks) - 1)
                where = self.paths.get(name, name)
                places[at] = made(info, relative_path=where, offset=len(files[name]), length=len(raw))
                files[name] += raw
            described[key] = made(
                tensor, properties=made(properties, dtype=self._class("float32")), size=shape, chunks=chunks
            )
        blob = self._class("BytesStorageMetadata")
        for key, value in self.values.items():
            raw = archive({"data.pkl": pickled(value), "version": b"3\n"})
            places[made(index, fqn=key, offset=None, index=None)] = made(
                info, relative_path="__0_0.distcp", offset=len(files["__0_0.distcp"]), length=len(raw)
            )
            files["__0_0.distcp"] += raw
            described[key] = made(blob)
        state = {
            "state_dict_metadata": described,
            "planner_data": {k: tuple(k.split(".", 1)) for k in described},
        }
        state |= {"storage_data": places, "storage_meta": None, "version": "1.0.0"} | self.change
        for name, raw in files.items():
            (folder / name).write_bytes(raw)
        top = made(self._class("Metadata"), **state)
        with modules(
            torch__distributed__checkpoint__metadata=self._of("metadata"),
            torch__distributed__checkpoint__filesystem=self._of("filesystem"),
            torch=self._of("torch"),
        ):
            (folder / ".metadata").write_bytes(pickle.dumps(top, 4))
        return folder

    def _class(self, name: str) -> type:
        if not hasattr(self, "_classes"):
            self._classes: dict[str, type] = {}
        return self._classes.setdefault(name, type(name, (), {}))

    def _of(self, module: str) -> dict[str, object]:
        owner = {"_StorageInfo": "filesystem", "float32": "torch"}
        return {n: c for n, c in self._classes.items() if owner.get(n, "metadata") == module}


CLASSES = (
    "ChunkStorageMetadata",
    "MetadataIndex",
    "_StorageInfo",
    "TensorStorageMetadata",
    "TensorProperties",
)


def made(kind: type, **state: object) -> object:
    """An instance with these fields."""
    one = kind()
    one.__dict__.update(state)
    return one


def archive_of(tensor: Tensor) -> bytes:
    """One item of a .distcp file."""
    data = struct.pack(f"<{tensor.count}f", *range(tensor.count))
    return archive(
        {"data.pkl": pickled(tensor), "byteorder": b"little", f"data/{tensor.key}": data, "version": b"3\n"}
    )


def small() -> Dcp:
    """A model with AdamW's state on two ranks."""
    dcp = Dcp()
    for name, shape in (("emb.weight", (11, 8)), ("layers.0.weight", (8, 8))):
        dcp.tensors[f"model.{name}"] = shape
        dcp.tensors[f"optim.state.{name}.exp_avg"] = shape
        dcp.tensors[f"optim.state.{name}.exp_avg_sq"] = shape
    dcp.values = {"step": 7, "optim.param_groups.0.lr": 0.01}
    return dcp
