"""NVLink domains that span nodes (GB200 NVL72 and alike)."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine import job
from fsdp_doctor.engine.devices import by_value, counted, gpu_subject, gpu_words
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, fail, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.host import Host


@check("LNK007", Row.NCCL, needs=(Gpus,), uses=(*job.USES, Host), tags=("nvlink", "fabric", "multi-node"))
def imex(facts: Facts, options: Options) -> Iterator[Finding]:
    """The multi-node NVLink domain is not usable.

    What: for GPUs that belong to a multi-node NVLink domain (GB200 and alike: a cluster UUID), looks at the
        IMEX channel nodes and at the clique of each GPU of this node.
    Why: NCCL shares memory between nodes of a domain through an IMEX channel. Without one it fails at
        start, or falls back to InfiniBand; GPUs in different cliques cannot reach each other by NVLink.
    Fix: start the IMEX daemon on all nodes of the domain and create the channel, then pass it to the
        container.
    Sources: NVIDIA IMEX documentation; NCCL user guide (NCCL_MNNVL_ENABLE); pytorch/ci-infra#541.
    """
    gpus, host = facts[Gpus].present, facts.find(Host)
    inside = [g for g in gpus if g.fabric is not None and (g.fabric.cluster_uuid or "").strip("0-")]
    if not inside:
        yield ok("the GPUs belong to no multi-node NVLink domain")
        return
    cliques = by_value(
        (g, (g.fabric.cluster_uuid, g.fabric.clique_id))
        for g in inside
        if g.fabric is not None and g.fabric.clique_id is not None
    )
    if len(cliques) > 1:
        odd = min(cliques.values(), key=len)
        yield fail(
            "GPUs of this node are in different NVLink cliques: "
            + "; ".join(f"clique {clique} for {gpu_words(group)}" for (_, clique), group in cliques.items()),
            "one cluster UUID and clique on all GPUs of a node",
            subject=gpu_subject(odd),
            fix=Fix("Correct the partition in the fabric's configuration", owner=Owner.ADMIN),
        )
    channels = [n for n in host.device_nodes if "imex-channels/channel" in n] if host is not None else []
    if host is None or not host.device_nodes:
        yield skip("device nodes are not known, so the IMEX channels are not judged")
    elif not channels:
        several = job.multi_node(facts, options)
        say = fail if several else warn
        yield say(
            f"no IMEX channel in /dev/nvidia-caps-imex-channels for {counted(inside)} of an NVLink domain",
            "/dev/nvidia-caps-imex-channels/channel0",
            subject=Subject(path="/dev/nvidia-caps-imex-channels/channel0"),
            fix=Fix(
                "Start the IMEX daemon on every node of the domain, create channel 0 (driver option "
                "NVreg_CreateImexChannel0=1), and pass it to containers",
                "sudo systemctl enable --now nvidia-imex",
                Risk.NEEDS_ROOT,
                Owner.ADMIN,
            ),
        )
    elif len(cliques) < 2:
        yield ok(f"{counted(inside)} in one clique, {len(channels)} IMEX channels")
