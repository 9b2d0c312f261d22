"""Variables that turn NCCL's fast transports and features off."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.vars._values import about, leading_number, says, switched_off, switched_on, unset
from fsdp_doctor.engine import job
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import Setting, Settings, settings
from fsdp_doctor.findings import Finding, Row, fail, info, ok, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts, Unknown
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.subjects.rdma import Hca, Rdma

P2P_READ, P2P_NVLINK, P2P_OK = 0, 2, 0
HOPPER = (9, 0)
LINK_TO_SWITCH = 2
FABRIC_READY = 3


def _gpus(facts: Facts) -> tuple[Gpu, ...]:
    gpus = facts.find(Gpus)
    if gpus is None:
        return ()
    return tuple(g for g in gpus.present if gpus.visible is None or g.index in gpus.visible)


def _nvlink(gpus: tuple[Gpu, ...]) -> bool:
    known = {g.index for g in gpus}
    linked = any(link.active for g in gpus for link in g.nvlinks or ())
    peers = any(s == P2P_OK and i == P2P_NVLINK and p in known for g in gpus for (p, i), s in g.p2p.items())
    return linked or peers


def _peers(gpus: tuple[Gpu, ...]) -> bool | None:
    """Whether any two of the GPUs reach each other's memory; None where NVML does not say."""
    known = {g.index for g in gpus}
    said = [s for g in gpus for (p, i), s in g.p2p.items() if i == P2P_READ and p in known and p != g.index]
    return any(s == P2P_OK for s in said) if said else None


def _peer_settings(variables: Settings) -> Iterator[Setting]:
    disabled = variables.get("NCCL_P2P_DISABLE")
    if disabled is not None and leading_number(disabled.value) == 1:
        yield disabled
    level = variables.get("NCCL_P2P_LEVEL")
    if level is not None and (level.value == "LOC" or leading_number(level.value) == 0):
        yield level


@check("VAR001", Row.SLOW, needs=(Environment,), uses=job.USES, tags=("vars", "nccl"))
def gpu_paths_are_off(facts: Facts, options: Options) -> Iterator[Finding]:
    """NCCL is told not to use the direct paths between the GPUs of a node

    What: NCCL_P2P_DISABLE=1, NCCL_P2P_LEVEL=LOC or NCCL_SHM_DISABLE=1 on a machine whose GPUs have NVLink
        or can reach each other, or need shared memory to meet. Without peer access (GeForce) the first two
        change nothing.
    Why: collectives of FSDP then pass host memory, or the network card, instead of NVLink: 5 to 30 times
        less bandwidth, and hundreds of MB more of /dev/shm. Such a variable is a debugging step that was
        left behind.
    Fix: unset it. If the job hangs without it, look for ACS or IOMMU between the GPUs instead.
    Sources: NCCL user guide, env.rst (class "Debugging") and GPU troubleshooting; nccl#2079, nccl#631.
    """
    variables, gpus = settings(facts), _gpus(facts)
    peer = list(_peer_settings(variables))
    shared = switched_on(variables, "NCCL_SHM_DISABLE")
    if not peer and shared is None:
        yield ok("peer access and shared memory are left to NCCL")
        return
    together = max(len(gpus), 0)
    fact = facts.fact(Gpus)
    absent = isinstance(fact, Unknown) and fact.absent
    alone = absent or (facts.find(Gpus) is not None and (together < 2 or job.local_ranks(facts, options) < 2))
    reach, nvlink = _peers(gpus), _nvlink(gpus)
    what = "NVLink between them" if nvlink else "peer access over PCIe"
    for setting in peer:
        if alone or (reach is False and not nvlink):
            why = (
                "there is no GPU here"
                if absent
                else "one GPU takes part"
                if alone
                else "these GPUs have no peer access anyway"
            )
            yield info(f"{says(setting)}: no effect, {why}", subject=about(setting), fix=unset(setting))
        elif nvlink or reach:
            yield fail(
                f"{says(setting)} on {together} GPUs with {what}",
                "unset",
                subject=about(setting),
                fix=unset(setting),
            )
        else:
            yield warn(says(setting), "unset", subject=about(setting), fix=unset(setting))
    if shared is not None:
        if alone:
            yield info(
                f"{says(shared)}: no effect, {'there is no GPU here' if absent else 'one GPU takes part'}",
                subject=about(shared),
                fix=unset(shared),
            )
        elif together == 0:
            yield warn(says(shared), "unset", subject=about(shared), fix=unset(shared))
        else:
            rest = (
                "every pair of GPUs" if peer or (reach is False and not nvlink) else "every pair without P2P"
            )
            yield fail(
                f"{says(shared)} on {together} GPUs: {rest} would meet over the network card",
                "unset",
                subject=about(shared),
                fix=unset(shared),
            )


def _verbs(facts: Facts) -> tuple[Hca, ...]:
    rdma = facts.find(Rdma)
    return () if rdma is None else tuple(h for h in rdma.hcas if h.driver != "efa")


@check("VAR002", Row.SLOW, needs=(Environment,), uses=(*job.USES, Rdma), tags=("vars", "nccl", "rdma"))
def rdma_is_off(facts: Facts, options: Options) -> Iterator[Finding]:
    """NCCL is told not to use the RDMA adapters, or not to reach GPU memory through them

    What: NCCL_IB_DISABLE=1 or NCCL_NET=Socket while adapters with active ports are there; or GPUDirect RDMA
        is switched off with NCCL_NET_GDR_LEVEL=LOC.
    Why: data between nodes then goes over TCP (a tenth of the bandwidth), or through host memory.
    Fix: unset the variable; if RDMA fails without it, repair RDMA (port state, /dev/infiniband, memlock).
    Sources: NCCL user guide, env.rst (NCCL_IB_DISABLE, NCCL_NET, NCCL_NET_GDR_LEVEL).
    """
    variables, hcas = settings(facts), _verbs(facts)
    active = [h.name for h in hcas if any(p.state == "ACTIVE" for p in h.ports)]
    single = job.multi_node(facts, options) is False
    off = switched_on(variables, "NCCL_IB_DISABLE")
    net = variables.get("NCCL_NET")
    sockets = net if net is not None and net.value.strip().lower() == "socket" else None
    bad = False
    for setting in (off, sockets):
        if setting is None:
            continue
        bad = True
        if not active:
            yield info(f"{says(setting)}: no effect, no RDMA port is active here", subject=about(setting))
            continue
        say = warn if single else fail
        yield say(
            f"{says(setting)} with {len(active)} active RDMA adapters ({', '.join(active[:8])})",
            "unset",
            subject=about(setting),
            fix=unset(setting),
        )
    level = variables.get("NCCL_NET_GDR_LEVEL")
    if level is not None and (level.value == "LOC" or leading_number(level.value) == 0) and active:
        bad = True
        yield warn(
            f"{says(level)}: GPUDirect RDMA is off, with {len(active)} active RDMA adapters",
            "unset, or PIX, PXB, PHB or SYS",
            subject=about(level),
            fix=unset(level),
        )
    if not bad:
        yield ok("RDMA is left to NCCL")


@check("VAR004", Row.SLOW, needs=(Environment,), uses=(*job.USES, Rdma), tags=("vars", "nccl"))
def features_are_off(facts: Facts, options: Options) -> Iterator[Finding]:
    """A fast feature of NCCL is switched off on hardware that has it

    What: NCCL_NVLS_ENABLE=0 or NCCL_CUMEM_ENABLE=0 on Hopper or newer behind NVSwitch, NCCL_MNNVL_ENABLE=0 in
        an NVLink domain of several nodes, NCCL_PXN_DISABLE=1 with NVLink and several adapters, or InfiniBand
        retries below NCCL's own.
    Why: NVLink SHARP halves the traffic of all-reduce and reduce-scatter and needs few SMs; without MNNVL
        an NVL72 talks over the network between its nodes; without PXN some adapters are reached across
        sockets. With fewer retries a short congestion ends the job.
    Fix: unset the variable. Where it was a workaround for one NCCL version, set it for that version only.
    Sources: NCCL user guide, env.rst (NCCL_NVLS_ENABLE, NCCL_CUMEM_ENABLE, NCCL_MNNVL_ENABLE,
        NCCL_PXN_DISABLE, NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT).
    """
    variables, gpus = settings(facts), _gpus(facts)
    switched = len(gpus) > 1 and any(
        (g.capability or (0, 0)) >= HOPPER and any(x.remote_type == LINK_TO_SWITCH for x in g.nvlinks or ())
        for g in gpus
    )
    domain = any(
        g.fabric is not None and g.fabric.state == FABRIC_READY and (g.fabric.cluster_uuid or "").strip("0-")
        for g in gpus
    )
    many_rails = _nvlink(gpus) and len(_verbs(facts)) > 1 and job.multi_node(facts, options) is not False
    found = (
        (switched_off(variables, "NCCL_NVLS_ENABLE"), switched, "NVLink SHARP is off"),
        (switched_off(variables, "NCCL_CUMEM_ENABLE"), switched, "NVLink SHARP and symmetric memory are off"),
        (switched_off(variables, "NCCL_MNNVL_ENABLE"), domain, "NVLink between nodes is off"),
        (switched_on(variables, "NCCL_PXN_DISABLE"), many_rails, "adapters are not reached through NVLink"),
        (
            _below(variables, "NCCL_IB_TIMEOUT", 14),
            bool(_verbs(facts)),
            "InfiniBand gives up sooner than NCCL's 20",
        ),
        (
            _below(variables, "NCCL_IB_RETRY_CNT", 7),
            bool(_verbs(facts)),
            "InfiniBand retries less than NCCL's 7",
        ),
    )
    bad = False
    for setting, matters, effect in found:
        if setting is None:
            continue
        bad = True
        if matters:
            yield warn(f"{says(setting)}: {effect}", "unset", subject=about(setting), fix=unset(setting))
        else:
            yield info(
                f"{says(setting)}: {effect}, which changes nothing on this hardware", subject=about(setting)
            )
    if not bad:
        yield ok("no feature is switched off")


def _below(variables: Settings, name: str, limit: int) -> Setting | None:
    setting = variables.get(name)
    number = leading_number(setting.value) if setting is not None else None
    return setting if number is not None and number < limit else None
