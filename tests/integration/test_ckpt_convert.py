"""Converted checkpoints against torch's own loaders: every value equal, whatever way it took."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.distributed.checkpoint as dcp  # noqa: E402
from safetensors import safe_open  # noqa: E402
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: E402

from fixtures.checkpoints.ranks import run  # noqa: E402
from fixtures.checkpoints.saved import checkpoint  # noqa: E402
from fixtures.checkpoints.saves import SAVES  # noqa: E402
from fixtures.checkpoints.setups import Setup, fresh  # noqa: E402
from fsdp_doctor.ckpt.convert.here import Order, convert  # noqa: E402
from fsdp_doctor.ckpt.convert.model import ConvertError  # noqa: E402

pytestmark = pytest.mark.timeout(120)

WHOLE_DCP = (
    "fsdp2_dcp.4", "fsdp2_dcp.3", "fsdp2_hsdp.4", "fsdp2_tp.4", "fsdp1_dcp.4", "fsdp1_uop_dcp.2", "fsdp1_mesh.4",
    "fsdp1_narrow.4", "ddp_dcp.2", "fsdp2_raw_optim.2", "fsdp2_flat_optim.4", "fsdp2_async.2", "fsdp2_app.4",
    "fsdp2_tied.4", "fsdp2_bf16.4", "fsdp2_groups.2", "fsdp2_sgdm.2", "titan.4", "fabric.2",
)  # fmt: skip
PER_RANK = {  # files per rank and the whole that holds the same values
    "fsdp2_files.4": "fsdp2_dcp.4", "fsdp2_files.2": "fsdp2_dcp.2", "verl.4": "fsdp2_dcp.4",
    "fsdp1_sharded_files.4": "fsdp1_dcp.4", "fsdp1_mesh_files.4": "fsdp1_mesh.4",
    "accelerate_files.2": "fsdp2_dcp.2", "fsdp2_hf.4": "fsdp2_dcp.4", "fsdp2_alone.4": "fsdp2_dcp.4",
}  # fmt: skip
WHOLE_FILES = ("full.2", "full_optim.2", "full_ddp.2", "full_plain.2", "safetensors.2")


def silent(_: int) -> None:
    """Progress that nobody watches."""


def converted(source: Path | str, target: Path, to: str, **options: object) -> Path:
    convert(Order(str(source), str(target), to, **options), silent, silent)  # type: ignore[arg-type]
    assert not [p for p in target.parent.iterdir() if p.name.endswith(".converting")]
    return target


@functools.cache
def truth(name: str) -> object:
    """What torch itself reads of a checkpoint."""
    source = checkpoint(name)
    if (source / ".metadata").exists():
        return dcp_whole(source)
    if (source / "model.safetensors").exists():
        return safe(source)
    return torch.load(source / "model.pt", weights_only=False)


def dcp_whole(folder: Path) -> object:
    with tempfile.TemporaryDirectory() as scratch:
        dcp_to_torch_save(folder, f"{scratch}/whole.pt")
        return torch.load(f"{scratch}/whole.pt", weights_only=False)


def safe(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found.update({k: file.get_tensor(k) for k in file.keys()})  # noqa: SIM118
    return found


def model_of(name: str) -> dict[str, torch.Tensor]:
    whole = truth(name)
    model = whole.get("model", whole)
    return {k: v for k, v in model.items() if isinstance(v, torch.Tensor)}


def same(a: object, b: object, where: str = "") -> None:
    """Equal values, types and order of nothing but lists; keys of dictionaries compared as text."""
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape, where
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert isinstance(b, dict) and set(map(str, a)) == set(map(str, b)), where
        other = {str(k): v for k, v in b.items()}
        for key, value in a.items():
            same(value, other[str(key)], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b), where
        for at, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}.{at}")
    else:
        assert a == b and type(a) is type(b), where


@pytest.mark.parametrize("name", WHOLE_DCP)
def test_dcp_to_torch_is_what_torch_makes_of_it(name: str, tmp_path: Path) -> None:
    file = converted(checkpoint(name), tmp_path / "whole.pt", "torch")
    same(truth(name), torch.load(file, weights_only=True))
    same(truth(name), torch.load(file, weights_only=True, mmap=True))


@pytest.mark.parametrize("name", WHOLE_DCP)
def test_dcp_to_safetensors_holds_the_model(name: str, tmp_path: Path) -> None:
    folder = converted(checkpoint(name), tmp_path / "safe", "safetensors")
    expected = model_of(name)
    found = safe(folder)
    assert set(found) <= set(expected)
    assert {k for k in expected if "." in k and not k.startswith(("optim", "lr_", "data", "train"))} <= set(
        found
    )
    same({k: expected[k] for k in found}, found)


@pytest.mark.parametrize("name", WHOLE_FILES)
def test_whole_files_to_dcp(name: str, tmp_path: Path) -> None:
    folder = converted(checkpoint(name), tmp_path / "dcp", "dcp")
    same(truth(name), dcp_whole(folder))


@pytest.mark.parametrize("name", WHOLE_FILES)
def test_whole_files_to_torch(name: str, tmp_path: Path) -> None:
    file = converted(checkpoint(name), tmp_path / "again.pt", "torch")
    same(truth(name), torch.load(file, weights_only=True))


@pytest.mark.parametrize("name", PER_RANK)
@pytest.mark.parametrize("to", ["dcp", "torch", "safetensors"])
def test_parts_become_whole(name: str, to: str, tmp_path: Path) -> None:
    target = converted(checkpoint(name), tmp_path / "out", to)
    if to == "safetensors":
        same(model_of(PER_RANK[name]), safe(target))
        return
    found = dcp_whole(target) if to == "dcp" else torch.load(target, weights_only=True)
    same(model_of(PER_RANK[name]), found.get("model", found))
    if isinstance(found.get("optim"), dict):
        expected = truth(PER_RANK[name])["optim"]["state"]
        moments = [v["exp_avg"] for v in found["optim"]["state"].values()]
        same([v["exp_avg"] for v in expected.values()], moments)


@pytest.mark.parametrize("name", ["fsdp2_dcp.4", "full_optim.2", "fsdp2_tp.4"])
def test_dcp_loads_on_one_and_two_ranks(name: str, tmp_path: Path) -> None:
    folder = str(converted(checkpoint(name), tmp_path / "dcp", "dcp"))
    expected = {k: v.sum().item() for k, v in model_of(name).items()}

    def load() -> dict[str, float]:
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        from torch.distributed.tensor import DTensor

        model, opt = fresh(Setup())
        msd, osd = get_state_dict(model, opt)
        dcp.load({"model": msd, "optim": osd}, checkpoint_id=folder)
        set_state_dict(model, opt, model_state_dict=msd, optim_state_dict=osd)
        whole = {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in model.state_dict().items()}
        return {k: v.sum().item() for k, v in whole.items()}

    for ranks in (1, 2):
        for answer in run(ranks, load):
            assert answer.get("value") == expected, answer


@pytest.mark.parametrize("ranks", [2, 3])
def test_merged_metadata_loads_on_other_ranks(ranks: int, tmp_path: Path) -> None:
    source = checkpoint("fsdp2_alone.4")
    target = converted(source, tmp_path / "merged", "merge-metadata")
    same(truth("fsdp2_dcp.4"), dcp_whole(target))
    assert os.stat(target / "__0_0.distcp").st_ino == os.stat(source / "__0_0.distcp").st_ino or (
        os.stat(target).st_dev != os.stat(source).st_dev
    )
    expected = {k: v.tolist() for k, v in model_of("fsdp2_dcp.4").items()}

    def load() -> dict[str, object]:
        from torch.distributed.tensor import DTensor

        model, _ = fresh(Setup())
        state = model.state_dict()
        dcp.load({"model": state}, checkpoint_id=str(target))
        return {k: (v.full_tensor() if isinstance(v, DTensor) else v).tolist() for k, v in state.items()}

    for answer in run(ranks, load):
        assert answer.get("value") == expected, answer


@pytest.mark.parametrize("to", ["dcp", "torch"])
def test_names_change_in_model_and_optimizer(to: str, tmp_path: Path) -> None:
    there = converted(checkpoint("fsdp2_dcp.4"), tmp_path / "there", to, add="module.")
    found = dcp_whole(there) if to == "dcp" else torch.load(there, weights_only=True)
    assert all(k.startswith("module.") for k in found["model"])
    assert set(found["optim"]["state"]) < set(found["model"])
    assert set(found["optim"]["param_groups"][0]["params"]) == set(found["optim"]["state"])
    back = converted(there, tmp_path / "back", to, strip="module.")
    same(truth("fsdp2_dcp.4"), dcp_whole(back) if to == "dcp" else torch.load(back, weights_only=True))


@pytest.mark.parametrize("name", ["ddp_raw.2", "compiled_raw.2"])
def test_wrappers_names_go(name: str, tmp_path: Path) -> None:
    strip = {"ddp_raw.2": "module.", "compiled_raw.2": "_orig_mod."}[name]
    folder = converted(checkpoint(name), tmp_path / "safe", "safetensors", strip=strip)
    same({k.replace(strip, ""): v for k, v in model_of(name).items()}, safe(folder))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_casts_are_torchs_own(dtype: str, tmp_path: Path) -> None:
    hard = torch.tensor(
        [0.0, -0.0, 1.0, 1 / 3, 1e-40, 6e-8, 65504.0, float("inf"), float("-inf"), float("nan")]
    )
    even = (torch.arange(0x3F800000, 0x3F800000 + 70000, 1, dtype=torch.int32)).view(torch.float32)
    state = {"a": torch.cat([hard, even, torch.randn(9999)]), "n": torch.arange(5)}
    torch.save(state, tmp_path / "m.pt")
    file = converted(tmp_path / "m.pt", tmp_path / "out.pt", "torch", dtype=dtype)
    found, expected = torch.load(file), state["a"].to(getattr(torch, dtype))
    assert found["a"].dtype == expected.dtype and torch.equal(found["n"], state["n"])
    assert torch.equal(found["a"].nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(found["a"].isnan(), expected.isnan())


def test_wide_again(tmp_path: Path) -> None:
    state = {"a": torch.randn(5000).bfloat16(), "b": torch.randn(5000).half(), "c": torch.randn(50).double()}
    torch.save(state, tmp_path / "m.pt")
    found = torch.load(converted(tmp_path / "m.pt", tmp_path / "o.pt", "torch", dtype="float32"))
    same({k: v.float() for k, v in state.items()}, found)


def test_every_dtype_and_odd_tensor(tmp_path: Path) -> None:
    state: dict[str, object] = {
        name: torch.arange(12).to(getattr(torch, name)).reshape(3, 4)
        for name in ("float64", "int64", "int8", "uint8", "bool", "complex64", "uint16", "bfloat16")
    }
    base = torch.randn(100)
    state |= {
        "float8": torch.randn(6).to(torch.float8_e4m3fn), "scalar": torch.tensor(3.5), "empty": torch.zeros(0, 4),
        "slice": base[10:20], "tied": base, "tied2": base, "grad": torch.nn.Parameter(torch.ones(2)),
        "none": None, "bytes": b"\x00\xff", "big": 1 << 80, "text": "ü", "nested": [{"t": torch.ones(1)}, (1, 2.5)],
        "dtype": torch.bfloat16, "device": torch.device("cuda", 1), "set": {1, 2}, "minus": -(1 << 40),
    }  # fmt: skip
    torch.save(state, tmp_path / "m.pt")
    file = converted(tmp_path / "m.pt", tmp_path / "o.pt", "torch")
    found = torch.load(file, weights_only=True)
    same({k: v for k, v in state.items() if k not in ("grad", "float8")},
         {k: v for k, v in found.items() if k not in ("grad", "float8")})  # fmt: skip
    assert torch.equal(found["float8"].view(torch.uint8), state["float8"].view(torch.uint8))
    assert found["tied"].data_ptr() == found["tied2"].data_ptr()
    assert found["grad"].requires_grad
    folder = converted(tmp_path / "m.pt", tmp_path / "dcp", "dcp")
    again = dcp_whole(folder)
    same({k: v for k, v in found.items() if k not in ("grad", "float8")},
         {k: v for k, v in again.items() if k not in ("grad", "float8")})  # fmt: skip


def test_shards_and_their_index(tmp_path: Path) -> None:
    state = {f"layers.{i}.weight": torch.randn(50, 40) for i in range(10)}
    torch.save(state, tmp_path / "m.pt")
    folder = converted(tmp_path / "m.pt", tmp_path / "hf", "safetensors", shard_bytes=20_000)
    assert len(list(folder.glob("model-*-of-00005.safetensors"))) == 5
    same(state, safe(folder))
    import json

    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 10 * 50 * 40 * 4
    for name, file in index["weight_map"].items():
        with safe_open(folder / file, "pt") as opened:
            assert torch.equal(opened.get_tensor(name), state[name])
    same(state, dcp_whole(converted(folder, tmp_path / "dcp", "dcp", shard_bytes=20_000)))
    assert len(list((tmp_path / "dcp").glob("*.distcp"))) > 2


def test_large_tensors_cut_across(tmp_path: Path) -> None:
    """Parts along another dimension than rows, larger than a slab, and rows larger than one."""

    def save() -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2,))
        torch.manual_seed(3)
        state = {
            "columns": distribute_tensor(torch.randn(3000, 1001), mesh, [Shard(1)]),
            "experts": distribute_tensor(torch.randn(2, 1800, 1301), mesh, [Shard(1)]),
            "deep": distribute_tensor(torch.randn(5, 7, 11, 3), mesh, [Shard(2)]),
        }
        dcp.save(state, checkpoint_id=str(tmp_path / "src"))

    assert all("error" not in a for a in run(2, save))
    found = safe(converted(tmp_path / "src", tmp_path / "out", "safetensors"))
    same(dcp_whole(tmp_path / "src"), found)


def test_resumes_and_notices_a_changed_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdp_doctor.ckpt.convert import output

    monkeypatch.setattr(output, "EVERY", 1)
    state = {f"l{i}": torch.randn(100, 100) for i in range(20)}
    torch.save(state, tmp_path / "m.pt")
    for to, name in (("torch", "o.pt"), ("dcp", "dcp"), ("safetensors", "safe")):
        for damage in (False, True):
            target = tmp_path / f"{damage}-{name}"
            order = Order(str(tmp_path / "m.pt"), str(target), to)
            done = 0

            def interrupt(count: int) -> None:
                nonlocal done
                done += count
                if done > 400_000:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                convert(order, silent, interrupt)
            assert not target.exists()
            work = tmp_path / f".{target.name}.converting" / "files"
            if damage:
                part = next(p for p in work.iterdir() if p.stat().st_size > 300_000)
                with part.open("r+b") as file:
                    file.seek(250_000)
                    file.write(b"\xff" * 64)
            answer = convert(order, silent, silent)
            assert 200_000 < answer.resumed < (300_000 if damage else 500_000)
            found = {"torch": torch.load, "dcp": dcp_whole, "safetensors": safe}[to](target)
            same(state, found)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("fsdp1_local_files.2", "", "LOCAL_STATE_DICT"),
        ("fsdp1_local_dcp.2", "", "LOCAL_STATE_DICT"),
        ("fsdp1_local_uop_dcp.2", "", "not whole|LOCAL_STATE_DICT"),
        ("fsdp1_raw_optim.2", "", "not whole"),
        ("fsdp1_optim_files.2", "", "differ by rank|of 2 ranks alone"),
        ("full_extras.2", "", "argparse.Namespace"),
        ("full_legacy.2", "", "before torch 1.6"),
        ("megatron.2", "", "Megatron"),
        ("deepspeed.2", "", "zero_to_fp32"),
    ],
)
def test_refuses_what_it_cannot_do_exactly(name: str, damage: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=words) as error:
        converted(checkpoint(name, damage), tmp_path / "out", "dcp")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_flipped_byte_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "src"
    dcp.save({"w": torch.ones(1 << 16)}, checkpoint_id=str(source), no_dist=True)
    data = source / "__0_0.distcp"
    raw = bytearray(data.read_bytes())
    raw[len(raw) // 2] ^= 1
    data.write_bytes(raw)
    for to in ("torch", "safetensors", "dcp"):
        with pytest.raises(ConvertError, match="CRC-32"):
            converted(source, tmp_path / f"out-{to}", to)
        assert not (tmp_path / f"out-{to}").exists()


def test_saves_are_covered() -> None:
    """A new kind of save is converted or refused on purpose."""
    tried = {n.rpartition(".")[0] for n in (*WHOLE_DCP, *PER_RANK, *WHOLE_FILES)}
    assert len(tried & set(SAVES)) >= 28
