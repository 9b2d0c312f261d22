"""What `ckpt estimate` predicts against the resident memory of real gloo ranks: python -m bench.ckpt_estimate.

Each way runs in ranks of its own; the rank's high-water mark is reset before it. On the CPU the memory of a GPU
is host memory, so that both are added. Prints a table in Markdown.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence

from fixtures.checkpoints.ranks import run
from fsdp_doctor.ckpt.estimate import Job, Sizes, costs
from fsdp_doctor.subjects.checkpoint_cost import Cost

WIDTH, LAYERS = 1024, 8
RANKS = 2
PARAMETERS = LAYERS * WIDTH * WIDTH * 4
SIZES = Sizes(PARAMETERS, 2 * PARAMETERS, WIDTH * WIDTH * 4)
MIB = 1 << 20
SAVES = ("dcp", "async", "full", "rank0", "plain", "per-rank")
LOADS = ("load-dcp", "load-broadcast", "load-mmap", "load-each", "load-per-rank")


def status(name: str) -> int:
    """Bytes of a line of /proc/self/status."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


def trained(fill: bool) -> tuple[object, object]:
    """A sharded model and its optimizer, after a step where `fill`."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    if fill:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def way(name: str, folder: str) -> int:
    """Do it on this rank; bytes above what was resident before."""
    import gc

    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_optimizer_state_dict,
        get_state_dict,
        set_model_state_dict,
        set_optimizer_state_dict,
        set_state_dict,
    )

    model, optimizer = trained(True)
    rank = dist.get_rank()
    whole = StateDictOptions(full_state_dict=True)
    group = dist.new_group(backend="gloo")
    gc.collect()
    # What training has freed and the allocator keeps would hide as much of what the way takes.
    ctypes.CDLL(None).malloc_trim(0)
    dist.barrier()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    before = status("VmRSS")
    if name in ("dcp", "async", "load-dcp"):
        msd, osd = get_state_dict(model, optimizer)
        state = {"model": msd, "optim": osd}
        if name == "dcp":
            dcp.save(state, checkpoint_id=f"{folder}/dcp")
        elif name == "async":
            dcp.async_save(state, checkpoint_id=f"{folder}/async", process_group=group).result()
        else:
            dcp.load(state, checkpoint_id=f"{folder}/dcp")
            set_state_dict(model, optimizer, model_state_dict=msd, optim_state_dict=osd)
    elif name in ("full", "rank0"):
        options = whole if name == "full" else StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = {"model": get_model_state_dict(model, options=options)}
        state["optim"] = get_optimizer_state_dict(model, optimizer, options=options)
        if rank == 0:
            torch.save(state, f"{folder}/{name}.pt")
    elif name == "plain":
        torch.save(model.state_dict(), f"{folder}/plain{rank}.pt")
    elif name == "per-rank":
        torch.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, f"{folder}/rank{rank}.pt")
    elif name == "load-per-rank":
        state = torch.load(f"{folder}/rank{rank}.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optim"])
    else:
        state = {"model": {}, "optim": {}}
        if name != "load-broadcast" or rank == 0:
            state = torch.load(f"{folder}/full.pt", mmap=name == "load-mmap")
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=name == "load-broadcast")
        set_model_state_dict(model, state["model"], options=options)
        set_optimizer_state_dict(model, optimizer, state["optim"], options=options)
    peak = status("VmHWM")
    dist.barrier()
    return peak - before


def measure(
    ways: Sequence[str] = (*SAVES, *LOADS), deadline: float = 120.0
) -> Iterator[tuple[Cost, list[int]]]:
    """Each way with the bytes per rank."""
    import torch.distributed.checkpoint.state_dict  # once, before the ranks are forked
    import torch.distributed.fsdp  # noqa: F401

    known = {c.way.value: c for c in costs(SIZES, Job(RANKS, RANKS))}
    folder = tempfile.mkdtemp()
    try:
        for name in ways:
            answers = run(RANKS, functools.partial(way, name, folder), deadline)
            assert all("value" in a for a in answers), (name, answers)
            yield known[name], [int(str(a["value"])) for a in answers]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Print the table."""
    print(f"{RANKS} gloo ranks, P = {PARAMETERS // MIB} MiB, O = {2 * PARAMETERS // MIB} MiB, in MiB\n")
    print("| way | predicted rank 0 | measured | predicted rank 1 | measured |")
    print("|---|---|---|---|---|")
    for cost, values in measure():
        first, second = cost.gpu_per_rank + cost.host_rank0, cost.gpu_per_rank + cost.host_per_rank
        cells = (first, values[0], second, values[1])
        print(f"| {cost.way.value} | " + " | ".join(f"{c / MIB:.0f}" for c in cells) + " |", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
