"""Models whose bytes can be reckoned: every tensor that counts is a whole number of 2 MiB blocks."""

import torch
from torch import nn

DIM = 2048


class Block(nn.Module):
    """One matrix of DIM x DIM."""

    def __init__(self, dim=DIM):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, dim))

    def forward(self, x):
        return x @ self.weight


class Adapted(Block):
    """The same, with a low-rank part that trains beside the frozen matrix."""

    def __init__(self, dim=DIM, rank=128):
        super().__init__(dim)
        self.weight.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.empty(dim, rank)), nn.Parameter(torch.empty(rank, dim))

    def forward(self, x):
        return super().forward(x) + x @ self.down @ self.up


class Net(nn.Module):
    """`layers` blocks, between an embedding and a head of the root's; `tied` shares one matrix."""

    def __init__(self, layers=4, kind=Block, tied=False, kept=False):
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(layers))
        self.first = nn.Linear(DIM, DIM, bias=False)
        self.last = nn.Linear(DIM, DIM, bias=False)
        if tied:
            self.last.weight = self.first.weight
        self.kept = Kept() if kept else nn.Identity()

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(self.kept(x)).float().mean()


class Kept(Block):
    """Kept out of sharding by its class."""


def net(**kw):
    return Net(**kw)


def adapted(**kw):
    return Net(kind=Adapted, **kw)


def frozen(**kw):
    model = Net(**kw)
    model.first.weight.requires_grad_(False)
    for block in model.blocks[:2]:
        block.requires_grad_(False)
    return model


def batch(device, rows=8):
    return (torch.zeros(rows, DIM, device=device),)
