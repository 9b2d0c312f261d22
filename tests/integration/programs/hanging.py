"""Ranks that reduce step by step, until a file tells one of them to be elsewhere.

`hanging.py FOLDER`: rank R sleeps while FOLDER/sleep-R is there, spins while FOLDER/spin-R is there, and waits
for a loader's worker while FOLDER/load-R is there.
FOLDER/at-R holds the step that R has come to. All end when FOLDER/end is there.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

FOLDER = Path(sys.argv[1])
RANK = int(os.environ["RANK"])


def fetch_batch() -> None:
    while (FOLDER / f"sleep-{RANK}").exists():
        time.sleep(0.2)


def pack_sequences() -> None:
    while (FOLDER / f"spin-{RANK}").exists():
        for _ in range(1000):
            pass


class Samples(Dataset):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        while (FOLDER / f"load-{RANK}").exists():
            time.sleep(0.2)
        return index


def epoch() -> None:
    for _ in DataLoader(Samples(), num_workers=1):
        pass


def reduce_gradients(x: torch.Tensor) -> None:
    dist.all_reduce(x)


dist.init_process_group("gloo", timeout=timedelta(seconds=300))
step, going = 0, torch.zeros(1)
while going.item() < dist.get_world_size():
    fetch_batch()
    pack_sequences()
    if (FOLDER / f"load-{RANK}").exists():
        epoch()
    going = torch.tensor([1.0 if (FOLDER / "end").exists() else 0.0])
    reduce_gradients(going)
    step += 1
    (FOLDER / f"at-{RANK}").write_text(str(step))
    time.sleep(0.02)
dist.destroy_process_group()
