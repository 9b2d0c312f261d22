"""Files that are no dumps, or mean harm: nothing is run, memory and time are bounded, the others are read."""

from __future__ import annotations

import pickle
import random
import struct
from pathlib import Path

import pytest

from fixtures.dumps.simulate import Sim, fsdp_step, write
from fsdp_doctor.diagnosis import flight
from fsdp_doctor.diagnosis.flight.child import dump


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, (f"touch {self.path}",)


def _payloads(canary: Path) -> dict[str, bytes]:
    command = f"touch {canary}".encode()
    text = b"X" + struct.pack("<I", len(command)) + command
    return {
        "reduce": pickle.dumps(_Runs(canary), protocol=2),
        "nested": pickle.dumps({"version": "2.10", "entries": [_Runs(canary)]}, protocol=4),
        "stack_global": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text + b"\x85R.",
        "torch_form": b"\x80\x02}(X\x07\x00\x00\x00entriesq\x00](cos\nsystem\n" + text + b"\x85Reu.",
        "inst": b"\x80\x02(" + text + b"ios\nsystem\n.",
        "obj": b"\x80\x02(cos\nsystem\n" + text + b"o.",
        "newobj": b"\x80\x02cbuiltins\neval\n" + text + b"\x85\x81.",
        "build": b"\x80\x02cos\nenviron\n}X\x01\x00\x00\x00aX\x01\x00\x00\x00bsb.",
        "persistent": b"\x80\x02" + text + b"Q.",
        "extension": b"\x80\x02\x82\x01.",
        "memo_index": b"\x80\x02}r\xff\xff\xff\x7f.",
        "long_text": b"\x80\x02X\xff\xff\xff\xff",
        "deep_list": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
        "deep_key": b"\x80\x02})" + b"\x85" * 500_000 + b"K\x01s.",
        "laughs": b"\x80\x02}(X\x07\x00\x00\x00entries]" + b"(h\x00h\x00e" * 5 + b"u.",
        "doubled_key": b"\x80\x02})" + b"".join(b"2\x86" for _ in range(60)) + b"K\x01s.",
        "nothing": b"",
        "noise": bytes(random.Random(1).randbytes(4000)),
        "deep_json": b'{"pg_config": ' + b"[" * 300_000,
    }


@pytest.mark.timeout(150)
def test_hostile_files_run_nothing_and_hide_nobody(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    folder = write(Sim(4, lambda r: fsdp_step(r, world=4)).run(), tmp_path / "d")
    payloads = _payloads(canary)
    files = []
    for number, (name, data) in enumerate(payloads.items()):
        path = tmp_path / f"{name}_nccl_trace_rank_{100 + number}"
        path.write_bytes(data)
        files.append(str(path))
    found = flight.read([*files, str(folder)], deadline=120)
    assert not canary.exists()
    assert [d.rank for d in found.dumps if d.rank < 100] == [0, 1, 2, 3]
    assert all(not len(d.entries) for d in found.dumps if d.rank >= 100)
    refused = {Path(u.path).name.partition("_nccl")[0] for u in found.unread if u.kind == "refused"}
    assert {
        "reduce",
        "nested",
        "stack_global",
        "torch_form",
        "inst",
        "obj",
        "newobj",
        "build",
        "persistent",
    } <= refused


def test_payloads_are_what_they_claim(tmp_path: Path) -> None:
    """The canary would be made by a plain loader: the refusals above mean something."""
    canary = tmp_path / "canary"
    pickle.loads(_payloads(canary)["reduce"])
    assert canary.exists()
    assert b"system" in _payloads(canary)["stack_global"]


def test_other_pickles_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(
        pickle.dumps({"segments": [], "device_traces": [[]]}, protocol=4)
    )
    (tmp_path / "nccl_trace_rank_1").write_bytes(pickle.dumps([1, 2, 3], protocol=2))
    kinds = {u.path[-1]: u.kind for u in flight.read([str(tmp_path)]).unread}
    assert kinds == {"0": "snapshot", "1": "other"}


@pytest.mark.parametrize("seed", range(8))
def test_damaged_dumps_never_raise(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    whole = Path(__file__).parents[4] / "fixtures" / "dumps" / "gloo" / "extra" / "nccl_trace_rank_1"
    original = whole.read_bytes()
    for number in range(25):
        data = bytearray(original)
        for _ in range(rng.randint(1, 12)):
            data[rng.randrange(2, len(data))] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        path = tmp_path / f"rank_{number}"
        path.write_bytes(data)
        answer = dump.describe(str(path))
        assert answer["kind"] in ("dump", "unreadable", "other", "refused", "snapshot")
