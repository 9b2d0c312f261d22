"""The limit of locked memory where RDMA adapters have to register it."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.host._reading import has_capability, is_set
from fsdp_doctor.engine.job import USES, multi_node
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, fail, info, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts, Unknown
from fsdp_doctor.subjects.host import Host, Limit
from fsdp_doctor.subjects.rdma import Hca, Rdma
from fsdp_doctor.tables.host_thresholds import CAP_IPC_LOCK, MEMLOCK_ENOUGH, RDMA_ETHERNET_GBPS
from fsdp_doctor.tables.units import size

LIMIT = "locked memory"


@check(
    "HST004",
    Row.NCCL,
    needs=(Host,),
    uses=(Rdma, Environment, *USES),
    tags=("rdma", "limits"),
)
def locked_memory(facts: Facts, options: Options) -> Iterator[Finding]:
    """Locked memory is limited where RDMA needs it

    What: Reads the soft limit of locked memory (ulimit -l, memlock) of this process and whether there are
        InfiniBand, RoCE or EFA adapters that NCCL would use. A finite limit without such an adapter is
        normal; with slow Ethernet ports alone it is a warning unless the job spans nodes.
    Why: NCCL registers its buffers with the adapter, which pins them. Below what it needs, ibv_reg_mr or
        ibv_create_cq fails with "Cannot allocate memory" and the first collective between nodes ends
        with "unhandled system error".
    Fix: Set memlock to unlimited for the service that starts the ranks: limits.conf, LimitMEMLOCK=infinity
        of slurmd or containerd, docker run --ulimit memlock=-1.
    Sources: NCCL user guide, troubleshooting, InfiniBand; rdma-core; getrlimit(2), RLIMIT_MEMLOCK.
    """
    host = facts[Host]
    limit = host.limits.get(LIMIT)
    if limit is None:
        yield skip("the limit of locked memory could not be read", enable="/proc/self/limits")
        return
    if limit.soft is None:
        yield ok("locked memory is unlimited")
        return
    found = f"locked memory (ulimit -l, memlock) is limited to {size(limit.soft)}"
    rdma = facts.fact(Rdma)
    if isinstance(rdma, Unknown) and not rdma.absent:
        yield skip(f"{found}; whether RDMA needs more is not known: {rdma.reason}", enable=rdma.enable)
        return
    adapters = _used_adapters(facts)
    if not adapters:
        yield ok(f"{found}; no RDMA adapter that NCCL would use")
    elif has_capability(host, CAP_IPC_LOCK):
        yield info(f"{found}, which does not bind here: the process has CAP_IPC_LOCK")
    elif host.memory_total and limit.soft * 2 >= host.memory_total:
        yield ok(f"{found}, which is half of the memory or more")
    else:
        yield _judge(found, limit, adapters, multi_node(facts, options))


def _judge(found: str, limit: Limit, adapters: tuple[Hca, ...], nodes: bool | None) -> Finding:
    named = ", ".join(h.name for h in adapters[:8]) + (" …" if len(adapters) > 8 else "")
    expected = f"unlimited, since NCCL registers memory with {named}"
    device = adapters[0].name if len(adapters) == 1 else None
    subject, fix = Subject(device=device, variable="memlock"), _raise(limit)
    if nodes is False:
        why = "A job on one node does not pin memory for RDMA; the first job on two nodes would fail."
        return warn(found, expected, subject=subject, fix=fix, why=why)
    slow = not nodes and not any(_fast(h) for h in adapters)
    if slow or (limit.soft or 0) >= MEMLOCK_ENOUGH:
        return warn(found, expected, subject=subject, fix=fix)
    return fail(found, expected, subject=subject, fix=fix)


def _raise(limit: Limit) -> Fix:
    if limit.hard is None:
        return Fix("Raise the soft limit in the shell that starts the ranks", "ulimit -l unlimited")
    return Fix(
        "Set memlock to unlimited where the ranks are started: '* - memlock unlimited' in "
        "/etc/security/limits.conf, LimitMEMLOCK=infinity for slurmd or containerd, "
        "or docker run --ulimit memlock=-1:-1",
        risk=Risk.NEEDS_ROOT,
        owner=Owner.ADMIN,
    )


def _used_adapters(facts: Facts) -> tuple[Hca, ...]:
    """Adapters with an active port that NCCL is not told to leave alone."""
    rdma, environment = facts.find(Rdma), facts.find(Environment)
    if rdma is None or is_set(facts, "NCCL_IB_DISABLE"):
        return ()
    if environment is not None and (environment.nccl("NCCL_NET") or "").strip().lower() == "socket":
        return ()
    return tuple(h for h in rdma.hcas if any((p.state or "").upper() == "ACTIVE" for p in h.ports))


def _fast(hca: Hca) -> bool:
    """Whether it is there for training: InfiniBand, or Ethernet faster than a machine's own port."""
    return any(
        p.link_layer != "Ethernet" or p.rate_gbps is None or p.rate_gbps >= RDMA_ETHERNET_GBPS
        for p in hca.ports
    )
