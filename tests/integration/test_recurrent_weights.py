"""What WRP022 says of torch, on a real rank: cuDNN's buffer made on the CPU as `_cudnn_rnn_flatten_weight` makes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

LOSSES = """
import copy, json
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))

def flatten(module):
    weights = module._flat_weights
    if any(type(w) not in (torch.Tensor, nn.Parameter) for w in weights):
        return
    with torch.no_grad():
        buffer, at = torch.empty(sum(w.numel() for w in weights)), 0
        for w in weights:
            view = buffer[at : at + w.numel()].view(w.shape)
            w.data = view.copy_(w)
            at += w.numel()

def losses(wrap):
    torch.manual_seed(0)
    model, x = wrap(nn.LSTM(8, 8, batch_first=True)), torch.randn(4, 5, 8)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=1.0), []
    for _ in range(4):
        loss = model(x)[0].pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found

def fixed(module):
    module.flatten_parameters = lambda: None
    return fully_shard(module, mesh=mesh)

plain = losses(lambda m: m)
nn.RNNBase.flatten_parameters = flatten
print("FOUND " + json.dumps({
    "plain": plain,
    "fsdp2": losses(lambda m: fully_shard(m, mesh=mesh)),
    "kept": losses(lambda m: fully_shard(m, mesh=mesh, reshard_after_forward=False)),
    "fixed": losses(fixed),
    "fsdp1": losses(lambda m: FSDP(m, device_id=torch.device("cpu"), use_orig_params=True)),
    "flat": losses(lambda m: FSDP(m, device_id=torch.device("cpu"), use_orig_params=False)),
}))
"""


@pytest.fixture(scope="module")
def losses() -> dict[str, list[float]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOSSES],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-2000:]
    found: dict[str, list[float]] = json.loads(lines[0][6:])
    return found


@pytest.mark.parametrize("way", ["fsdp2", "kept"])
def test_the_layer_stands_still(losses: dict[str, list[float]], way: str) -> None:
    assert losses[way] == [pytest.approx(losses["plain"][0])] * 4


@pytest.mark.parametrize("way", ["fixed", "fsdp1", "flat"])
def test_it_trains_without_the_buffer_and_under_fsdp1(losses: dict[str, list[float]], way: str) -> None:
    assert losses[way] == pytest.approx(losses["plain"])
    assert losses[way][-1] < losses[way][0] * 0.9
