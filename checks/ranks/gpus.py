"""The GPUs of all ranks: one each, and all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fsdp_doctor.checks.ranks._groups import known, named, split, subject
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.rank_set import RankDigest, RankGpu, RankSet
from fsdp_doctor.tables.rank_facts import CLOCK_DIFFERENCE, MEMORY_DIFFERENCE, POWER_DIFFERENCE


@check("RNK020", Row.START, needs=(RankSet,), tags=("ranks", "gpu"))
def same_gpu_twice(facts: Facts, options: Options) -> Iterator[Finding]:
    """Several ranks use the same GPU.

    What: compares the UUID of the GPU that each rank will use.
    Why: NCCL refuses it ("Duplicate GPU detected") or both ranks share one memory and run out of it.
    Fix: call torch.cuda.set_device(LOCAL_RANK) before init_process_group, and do not set
    CUDA_VISIBLE_DEVICES to one GPU for all ranks of a node.
    Sources: NCCL, init.cc; torchrun documentation.
    """
    ranks = facts[RankSet].ranks
    users: dict[str, list[RankDigest]] = {}
    for r in ranks:
        if r.gpu is not None and r.gpu.uuid:
            users.setdefault(r.gpu.uuid, []).append(r)
    if not users:
        yield skip("no rank says which GPU it uses")
        return
    shared = {uuid: those for uuid, those in users.items() if len(those) > 1}
    for uuid, those in shared.items():
        visible = {r.environment.get("CUDA_VISIBLE_DEVICES") for r in those} - {None}
        why = f" (CUDA_VISIBLE_DEVICES={visible.pop()} on each)" if len(visible) == 1 else ""
        yield fail(
            f"{named(those)} use the same GPU {uuid}{why}: a duplicate device",
            "one GPU per rank",
            subject=subject(those),
            fix=Fix(
                "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) and unset CUDA_VISIBLE_DEVICES"
            ),
        )
    if not shared:
        yield ok(f"{len(users)} GPUs for {sum(len(u) for u in users.values())} ranks")


@check("RNK021", Row.SLOW, needs=(RankSet,), tags=("ranks", "gpu"))
def gpu_models_differ(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks have different GPU models.

    What: compares the product name of each rank's GPU; `--allow-mixed-gpus` accepts the mix.
    Why: FSDP shards evenly, so the slowest GPU sets the pace and the smallest the memory of all.
    Fix: give the job nodes of one kind.
    Sources: PyTorch FSDP documentation (even sharding).
    """
    ranks = facts[RankSet].ranks
    if known(ranks, lambda r: r.gpu.name if r.gpu else None) < 2:
        yield skip("fewer than two ranks say which GPU they have")
        return
    groups = split(ranks, lambda r: r.gpu.name if r.gpu else None)
    if groups is None:
        return
    found = f"GPU model differs: {groups.words()}"
    fix = Fix("Ask the scheduler for nodes of one GPU model, or say --allow-mixed-gpus")
    if options.allow_mixed_gpus:
        yield info(found, subject=groups.subject)
    else:
        yield fail(found, "one GPU model on all ranks", subject=groups.subject, fix=fix)


def _apart(
    ranks: tuple[RankDigest, ...],
    value: Callable[[RankGpu], int | None],
    tolerance: float,
    words: Callable[[int], str],
) -> tuple[str, tuple[RankDigest, ...]] | None:
    """Ranks whose figure is below the usual one of the same model by more than the tolerance."""
    models = {r.gpu.name for r in ranks if r.gpu}
    for model in sorted(m for m in models if m):
        groups = split(ranks, lambda r, m=model: value(r.gpu) if r.gpu and r.gpu.name == m else None)  # type: ignore[misc]
        if groups is None:
            continue
        usual = groups.groups[0][0]
        far = [
            r for v, those in groups.groups[1:] if abs(v - usual) > tolerance * max(usual, 1) for r in those
        ]
        if far:
            return groups.words(words), tuple(sorted(far, key=lambda r: r.rank))
    return None


@check("RNK022", Row.OOM, needs=(RankSet,), tags=("ranks", "gpu"))
def gpu_memory_differs(facts: Facts, options: Options) -> Iterator[Finding]:
    """GPUs of one model have different memory.

    What: compares the total memory of the ranks' GPUs, model by model.
    Why: FSDP shards evenly: the rank with the smallest memory runs out first. A smaller total on one
    board points at ECC, MIG or a different variant.
    Fix: find out why, or plan for the smallest.
    Sources: NVML, nvmlDeviceGetMemoryInfo.
    """
    apart = _apart(
        facts[RankSet].ranks, lambda g: g.memory_total, MEMORY_DIFFERENCE, lambda v: f"{v / 2**30:.1f} GiB"
    )
    if apart is not None:
        yield warn(
            f"GPU memory differs: {apart[0]}",
            "the same memory on GPUs of one model",
            subject=subject(apart[1]),
            fix=Fix("Compare ECC, MIG and the product variant of these GPUs", None, Risk.SAFE, Owner.ADMIN),
        )


@check("RNK023", Row.SLOW, needs=(RankSet,), tags=("ranks", "gpu"))
def gpu_power_differs(facts: Facts, options: Options) -> Iterator[Finding]:
    """GPUs of one model have different power limits or clocks.

    What: compares the enforced power limit and the highest SM clock, model by model.
    Why: every collective waits for the slowest rank; one capped GPU slows the whole job.
    Fix: set the same limit everywhere.
    Sources: NVML, nvmlDeviceGetEnforcedPowerLimit and nvmlDeviceGetMaxClockInfo.
    """
    ranks = facts[RankSet].ranks
    power = _apart(ranks, lambda g: g.power_limit, POWER_DIFFERENCE, lambda v: f"{v / 1000:.0f} W")
    clock = _apart(ranks, lambda g: g.clock_sm_max, CLOCK_DIFFERENCE, lambda v: f"{v} MHz")
    for what, apart in (("power limit", power), ("highest SM clock", clock)):
        if apart is not None:
            yield warn(
                f"{what} differs: {apart[0]}",
                f"the same {what} on GPUs of one model",
                subject=subject(apart[1]),
                fix=Fix(
                    "Set the limits and clocks alike (nvidia-smi -pl, -rgc)",
                    None,
                    Risk.NEEDS_ROOT,
                    Owner.ADMIN,
                ),
            )


@check("RNK024", Row.START, needs=(RankSet,), tags=("ranks", "gpu"))
def gpus_per_host_differ(facts: Facts, options: Options) -> Iterator[Finding]:
    """Hosts show different numbers of GPUs.

    What: compares the number of GPUs that NVML shows on each host.
    Why: a host with fewer GPUs than its neighbours has lost one, or was given fewer; its ranks have no
    device, or the mesh that the script builds does not fit.
    Fix: check the host with fewer; drain it if a GPU fell off the bus.
    Sources: NVML, nvmlDeviceGetCount.
    """
    firsts = {r.host: r for r in reversed(facts[RankSet].ranks) if r.host}
    groups = split(firsts.values(), lambda r: r.gpu_count)
    if groups is not None:
        yield warn(
            f"GPUs per host differ: {groups.words(lambda n: f'{n} GPUs')}",
            "the same number of GPUs on every host",
            subject=groups.subject,
            fix=Fix("Look for a lost GPU on the hosts with fewer", None, Risk.SAFE, Owner.ADMIN),
        )


@check("RNK025", Row.NCCL, needs=(RankSet,), tags=("ranks", "gpu"))
def fabric_cliques_differ(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks are in different multi-node NVLink domains.

    What: compares cluster UUID and clique id of the ranks' GPUs where the fabric has them.
    Why: GPUs of different cliques do not reach each other by NVLink: traffic falls back to the network,
    or NCCL fails if it was told to use MNNVL.
    Fix: place the job in one domain, or bring IMEX up on all its nodes.
    Sources: NVIDIA IMEX guide; NVML, nvmlDeviceGetGpuFabricInfoV.
    """
    groups = split(facts[RankSet].ranks, lambda r: r.gpu.fabric_clique if r.gpu else None)
    if groups is not None:
        yield warn(
            f"NVLink fabric cliques differ: {groups.words()}",
            "one clique for the ranks that should share NVLink",
            subject=groups.subject,
            fix=Fix("Place the job in one NVLink domain or repair IMEX", None, Risk.SAFE, Owner.ADMIN),
        )
