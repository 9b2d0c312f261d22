"""Variables that fix what NCCL would choose, and those that make it talk."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.vars._values import about, provider_profile, says, unset
from fsdp_doctor.engine import job
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import Setting, settings
from fsdp_doctor.findings import Finding, Fix, Row, fail, info, ok, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.tables import nccl_variables as table

P2P_NVLINK, P2P_OK = 2, 0
DEFAULTS = {
    "NCCL_BUFFSIZE": "4194304",
    "NCCL_NTHREADS": "512",
    "NCCL_LAUNCH_MODE": "PARALLEL",
    "NCCL_IB_AR_THRESHOLD": "8192",
    "NCCL_P2P_NET_CHUNKSIZE": "131072",
    "NCCL_P2P_LL_THRESHOLD": "16384",
}


@check("VAR005", Row.SLOW, needs=(Environment,), uses=job.USES, tags=("vars", "nccl"))
def tuning_is_fixed(facts: Facts, options: Options) -> Iterator[Finding]:
    """NCCL's algorithm, protocol, channels or buffer sizes are fixed by hand

    What: a variable such as NCCL_ALGO, NCCL_PROTO, NCCL_BUFFSIZE, NCCL_NTHREADS or NCCL_MAX_NCHANNELS is
        set. Where the cloud's network profile prescribes it (GPUDirect-TCPX, TCPXO), it is only named.
    Why: NCCL chooses per operation, size and topology; a value that was good for one all-reduce benchmark
        slows the all-gathers and reduce-scatters of FSDP, and stays behind through upgrades. Forcing LL128
        where it is not supported (without NVLink) can corrupt data.
    Fix: unset it, measure, and set it again only with a number that shows why.
    Sources: NCCL user guide, env.rst (class "Debugging", NCCL_ALGO, NCCL_PROTO); GPUDirect-TCPX notes.
    """
    variables = settings(facts)
    found = [s for n in sorted(table.TUNING) if (s := variables.get(n)) is not None and _changes(s)]
    profile = provider_profile(variables)
    if found and profile is not None:
        yield info(f"{', '.join(says(s) for s in found)}: as the profile of {profile} prescribes")
        return
    for setting in found:
        if setting.name == "NCCL_PROTO" and _forces_ll128(setting) and _without_nvlink(facts):
            yield fail(
                f"{says(setting)} on GPUs without NVLink: LL128 is not safe there",
                "unset, or Simple and LL",
                why="LL128 needs 128-byte stores to arrive whole, which PCIe does not promise: the data of a "
                "collective can be wrong without an error.",
                subject=about(setting),
                fix=unset(setting),
                row=Row.WRONG,
            )
        else:
            yield warn(says(setting), "unset: NCCL chooses", subject=about(setting), fix=unset(setting))
    if not found:
        yield ok("algorithms, channels and buffers are left to NCCL")


def _changes(setting: Setting) -> bool:
    return bool(setting.value.strip()) and setting.value.strip() != DEFAULTS.get(setting.name)


def _forces_ll128(setting: Setting) -> bool:
    words = setting.value.lower().replace(";", ",").replace(":", ",").split(",")
    return "^" not in setting.value and "ll128" in [w.strip() for w in words]


def _without_nvlink(facts: Facts) -> bool:
    """Whether NVML says so; its silence is no answer."""
    gpus = facts.find(Gpus)
    if gpus is None or not gpus.present:
        return False
    peers = [s for g in gpus.present for (_, kind), s in g.p2p.items() if kind == P2P_NVLINK]
    said = all(g.nvlinks == () for g in gpus.present) or bool(peers)
    linked = any(x.active for g in gpus.present for x in g.nvlinks or ()) or P2P_OK in peers
    return said and not linked


@check("VAR006", Row.SLOW, needs=(Environment,), uses=job.USES, tags=("vars", "nccl"))
def nccl_talks_too_much(facts: Facts, options: Options) -> Iterator[Finding]:
    """NCCL writes lines for every collective, or all ranks into one file

    What: NCCL_DEBUG=TRACE, NCCL_DEBUG_SUBSYS with ALL, COLL, CALL, PROXY or P2P, or NCCL_DEBUG_FILE without
        %p for several ranks.
    Why: FSDP issues hundreds of collectives per step and rank; a line for each slows the step, fills the
        disk and buries the one line that matters. Ranks that share a file overwrite each other.
    Fix: NCCL_DEBUG=WARN for training; INFO with INIT,NET,ENV to look at start-up; one file per process.
    Sources: NCCL user guide, env.rst (NCCL_DEBUG, NCCL_DEBUG_SUBSYS, NCCL_DEBUG_FILE) and logging.
    """
    variables = settings(facts)
    level, parts = variables.get("NCCL_DEBUG"), variables.get("NCCL_DEBUG_SUBSYS")
    word = level.value.strip().upper() if level is not None else ""
    bad = False
    if level is not None and word == "TRACE":
        bad = True
        yield warn(
            says(level), "WARN, or INFO", subject=about(level), fix=Fix("Use WARN", "export NCCL_DEBUG=WARN")
        )
    elif parts is not None and word == "INFO" and not parts.value.startswith("^"):
        loud = [p for p in parts.value.upper().split(",") if p.strip() in table.PER_COLLECTIVE_SUBSYSTEMS]
        if loud:
            bad = True
            yield warn(
                f"NCCL_DEBUG=INFO with {says(parts)}: {', '.join(loud)} write lines for every collective",
                "INIT,NET,ENV",
                subject=about(parts),
                fix=Fix("Keep the subsystems of start-up", "export NCCL_DEBUG_SUBSYS=INIT,NET,ENV"),
            )
    target = variables.get("NCCL_DEBUG_FILE")
    shared = target is not None and "%p" not in target.value and not target.value.startswith("/dev/")
    if (
        target is not None
        and shared
        and word in ("INFO", "TRACE", "WARN")
        and job.local_ranks(facts, options) > 1
    ):
        bad = True
        yield warn(
            f"{says(target)}: {job.local_ranks(facts, options)} ranks would write the same file",
            "a name with %h and %p",
            subject=about(target),
            fix=Fix("Let each process write its own file", f"export NCCL_DEBUG_FILE={target.value}.%h.%p"),
        )
    if not bad and level is not None and word == "INFO":
        bad = True
        yield info(f"{says(level)}: every communicator describes itself at start", subject=about(level))
    if not bad:
        yield ok(says(level) if level is not None else "NCCL_DEBUG is not set: NCCL is silent")
