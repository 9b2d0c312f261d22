"""What is around a training loop: the scheduler's variables, programs that are started, FSDP1's ways of saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.test_rehearse import finding, rehearse

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)

WIDTH, RANKS = 64, 8
WEIGHTS = 4 * (2 * WIDTH * WIDTH + 2 * WIDTH)
"""Bytes of the model in float32."""
LEFT = "300.0417"
"""Seconds that a program would run on after the script."""
COUNTERS = 16
"""Bytes of the optimizer's step of each parameter, which those of one flat parameter share."""

SCRIPT = f"""
import os, subprocess
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, ShardedStateDictConfig
from torch.distributed.fsdp import FullOptimStateDictConfig, ShardedOptimStateDictConfig, StateDictType
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
assert (os.environ["SLURM_JOB_NUM_NODES"], os.environ["SLURM_JOB_NODELIST"]) == ("2", "rehearsal-[0-1]")
subprocess.run(["bash", "fetch.sh"])
try:
    subprocess.check_output(["no-such-program", "--list"])
except FileNotFoundError:
    pass
subprocess.Popen(["sleep", "{LEFT}"], start_new_session=True)
dist.init_process_group("nccl", rank=rank, world_size=world)

def build():
    return torch.nn.Sequential(torch.nn.Linear({WIDTH}, {WIDTH}), torch.nn.Linear({WIDTH}, {WIDTH}))

model = build()
assert all(p.is_cuda for p in model.to(0).parameters())
copied = [p.cpu() for p in model.parameters()]
assert len({{p.untyped_storage().data_ptr() for p in copied}}) == 4 == len({{p.data_ptr() for p in copied}})
models = {{"flat": FSDP(model), "orig": FSDP(build(), use_orig_params=True, device_id=0)}}
optimizers = {{name: torch.optim.AdamW(model.parameters()) for name, model in models.items()}}

for step in range(2):
    for name, model in models.items():
        model(torch.randn(4, {WIDTH}, device=0)).sum().backward()
        optimizers[name].step()
        optimizers[name].zero_grad()
        before = torch.cuda.memory_allocated()
        with FSDP.state_dict_type(
            model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=True),
            ShardedOptimStateDictConfig(offload_to_cpu=True),
        ):
            state = {{"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizers[name])}}
            dcp.save(state, checkpoint_id=f"ckpt/{{name}}")
        assert torch.cuda.memory_allocated() <= before
        with FSDP.state_dict_type(
            model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True),
            FullOptimStateDictConfig(True, True),
        ):
            state = FSDP.optim_state_dict(model, optimizers[name])
            assert state["state"]["0.weight"]["exp_avg"].shape == ({WIDTH}, {WIDTH})
            torch.save(state, f"ckpt/{{name}}.pt")
        if name == "flat":
            with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
                torch.save(model.state_dict(), "ckpt/local.pt")
open("data/tokens.txt")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("around")
    (made / "train.py").write_text(SCRIPT)
    (made / "fetch.sh").write_text("mkdir -p data\necho 1 > data/tokens.txt\n")
    (made / "ckpt").mkdir()
    return made


@pytest.fixture(scope="module")
def found(folder: Path) -> tuple[int, dict[str, Any]]:
    srun = ("srun", "-N", "2", "--ntasks-per-node", str(RANKS // 2), "python", "train.py")
    return rehearse(*srun, options=("--steps", "3"), cwd=folder)


def test_what_would_be_saved_has_its_size(found: tuple[int, dict[str, Any]]) -> None:
    saved = {Path(u["path"]).name: u["bytes"] for u in found[1]["data"]["not_written"] if u["bytes"]}
    assert saved["local.pt"] == WEIGHTS // RANKS
    for name in ("flat", "orig"):
        assert 0 < saved[f"{name}.pt"] - 2 * WEIGHTS <= COUNTERS
        assert 0 < saved[name] - 3 * WEIGHTS // RANKS <= COUNTERS


def test_nothing_is_written_by_what_a_script_starts(folder: Path, found: tuple[int, dict[str, Any]]) -> None:
    handled = [h["what"] for h in found[1]["data"]["handled"]]
    assert any("`bash fetch.sh`" in what for what in handled)
    assert not any(LEFT in (p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
    assert sorted(p.name for p in folder.rglob("*")) == ["ckpt", "fetch.sh", "train.py"]


def test_a_script_that_misses_what_a_program_wrote_is_not_accused(found: tuple[int, dict[str, Any]]) -> None:
    code, report = found
    said = finding(report)
    assert (code, said["status"], report["data"]["steps_done"]) == (3, "error", 2)
    assert "tokens.txt" in said["found"] and "`bash fetch.sh`" in said["found"]
