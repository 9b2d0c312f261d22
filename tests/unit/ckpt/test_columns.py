"""The reader of large metadata keeps numbers only: the same comes of it as of reading every object."""

from __future__ import annotations

import io
import pickle
from array import array
from collections.abc import Callable

import pytest

from fixtures.checkpoints import saved
from fsdp_doctor.ckpt import dcp_columns, dcp_metadata, dcp_places, dcp_records
from tests.unit.ckpt.making import CLASSES, made, modules

pytestmark = pytest.mark.timeout(60)
CLASS = {name: type(name, (), {}) for name in (*CLASSES, "Metadata", "BytesStorageMetadata")}
DTYPE = type("float32", (), {})
SHAPES = {"scalar": (), "norm": (90,), "weight": (90, 7), "conv": (90, 2, 3)}
RANKS = 30
FAR = 1 << 33
"""A place beyond what four bytes hold."""

Record = tuple[object, object]


def metadata(
    change: Callable[[list[Record]], None] = lambda records: None, rank_by_rank: bool = True
) -> bytes:
    """Tensors in a part per rank, as torch writes them: all chunks, and then the places rank by rank."""
    described: dict[str, object] = {}
    by_rank: list[list[Record]] = [[] for _ in range(RANKS)]
    for number, (key, shape) in enumerate(SHAPES.items()):
        parts = RANKS if shape else 1
        chunks = []
        for rank in range(parts):
            offset, size = (rank * 3, *(0 for _ in shape[1:])), (3, *shape[1:])
            offset, size = (offset, size) if shape else ((), ())
            chunks.append(made(CLASS["ChunkStorageMetadata"], offsets=offset, sizes=size))
            index = made(CLASS["MetadataIndex"], fqn="".join(key), offset=tuple(offset), index=rank)
            where = made(
                CLASS["_StorageInfo"],
                relative_path=f"__{rank}_0.distcp",
                offset=number * FAR + rank,
                length=100 + number,
            )
            by_rank[rank].append((index, where))
        properties = made(CLASS["TensorProperties"], dtype=DTYPE)
        described[key] = made(
            CLASS["TensorStorageMetadata"], properties=properties, size=shape, chunks=chunks
        )
    described["step"] = made(CLASS["BytesStorageMetadata"])
    by_rank[0].append(
        (
            made(CLASS["MetadataIndex"], fqn="step", offset=None, index=None),
            made(CLASS["_StorageInfo"], relative_path="__0_0.distcp", offset=5 * FAR, length=7),
        )
    )
    records = [r for rank in by_rank for r in rank]
    if not rank_by_rank:
        records.sort(key=lambda r: r[0].__dict__["fqn"])
    change(records)
    top = made(
        CLASS["Metadata"], state_dict_metadata=described, planner_data=None, storage_data=dict(records)
    )
    owner = {"_StorageInfo": "filesystem"}
    with modules(
        torch__distributed__checkpoint__metadata={n: c for n, c in CLASS.items() if n not in owner},
        torch__distributed__checkpoint__filesystem={n: c for n, c in CLASS.items() if n in owner},
        torch={"float32": DTYPE},
    ):
        return pickle.dumps(top, 4)


def both(raw: bytes, buffer: int = 1 << 16) -> tuple[dcp_metadata.Metadata, dcp_metadata.Metadata]:
    """Read by columns, a few bytes at a time, and object by object."""
    columns, exact = (io.BufferedReader(io.BytesIO(raw), buffer) for _ in range(2))  # type: ignore[arg-type]
    return (
        dcp_metadata._read(columns, len(raw), dcp_columns.Columns()),
        dcp_metadata._read(exact, len(raw), dcp_records.Exact()),
    )


def out_of_order(records: list[Record]) -> None:
    records.sort(key=lambda r: r[0].__dict__["offset"] or (), reverse=True)


def without_position(records: list[Record]) -> None:
    for index, _ in records:
        del index.__dict__["index"]


def wrong_position(records: list[Record]) -> None:
    records[1][0].__dict__["index"], records[6][0].__dict__["index"] = 9, -4


def unknown_chunk(records: list[Record]) -> None:
    records[3][0].__dict__["offset"] = (1, 1, 1)


def unknown_tensor(records: list[Record]) -> None:
    records[4][0].__dict__["fqn"] = "stranger"


def transformed(records: list[Record]) -> None:
    for number, (_, where) in enumerate(records):
        where.__dict__["transform_descriptors"] = ["zstd"] if number == 40 else None


def missing(records: list[Record]) -> None:
    del records[10:12]


@pytest.mark.parametrize("batch", [1, 7, 500])
@pytest.mark.parametrize("rank_by_rank", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        lambda records: None,
        out_of_order,
        without_position,
        wrong_position,
        unknown_chunk,
        unknown_tensor,
        transformed,
        missing,
    ],
)
def test_the_same_comes_of_both(
    change: Callable[[list[Record]], None], rank_by_rank: bool, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcp_columns, "BATCH", batch)
    columns, exact = both(metadata(change, rank_by_rank), buffer=64)
    assert columns == exact
    assert exact.tensors["weight"].rows[-1] == -1 and len(exact.tensors["weight"].rows) == RANKS * 8


def put(field: str, value: object, of: int = 1) -> Callable[[list[Record]], None]:
    def change(records: list[Record]) -> None:
        records[5][of].__dict__[field] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        put("offset", True),
        put("offset", 1.0),
        put("offset", -1),
        put("length", None),
        put("length", 1 << 70),
        put("relative_path", 3),
        put("offset", (True, 0), of=0),
        put("offset", [0, 0], of=0),
        put("offset", (0,) * 70, of=0),
        put("fqn", 5, of=0),
        put("index", "1", of=0),
    ],
)
def test_what_is_no_number_is_left_to_the_other_reader(change: Callable[[list[Record]], None]) -> None:
    raw = metadata(change)
    with pytest.raises(dcp_records.Irregular):
        both(raw)


def test_real_metadata_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcp_columns, "BATCH", 3)
    columns, exact = both((saved.checkpoint("fsdp2_dcp.2") / ".metadata").read_bytes(), buffer=64)
    assert columns == exact and columns.tensors


def test_numbers_widen_and_refuse() -> None:
    held = dcp_places.Numbers()
    held.extend([1, (1 << 32) - 1])
    assert held.held == array("I", [1, (1 << 32) - 1])
    held.extend([FAR])
    assert held.held == array("Q", [1, (1 << 32) - 1, FAR])
    for wrong in (-1, 1 << 62, 1 << 70):
        with pytest.raises(OverflowError):
            held.extend([wrong])
    with pytest.raises(TypeError):
        held.extend([1.5])  # type: ignore[list-item]
