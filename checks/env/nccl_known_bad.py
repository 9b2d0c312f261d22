"""NCCL releases with a known defect, where the machine has what brings it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from fsdp_doctor.checks.env._stack import machine, nccl_wheels
from fsdp_doctor.engine.devices import used
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Row, Status, Subject, ok, skip
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.rdma import Rdma
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables import nccl_releases
from fsdp_doctor.tables.nccl_releases import DEFECTS, Condition, Defect
from fsdp_doctor.tables.versions import parse

FABRIC_COMPLETED = 3
SWITCH = 2
"""NVML_NVLINK_DEVICE_TYPE_SWITCH."""
ON = ("1", "true", "yes", "on")
Reading = Callable[[Facts], "str | None"]


def _variable(facts: Facts, name: str) -> str | None:
    """As NCCL and CUDA would read it: the launch command's own assignments first."""
    launch, env = facts.find(Launch), facts.find(Environment)
    if launch is not None and name in launch.environment:
        return launch.environment[name]
    return env.nccl(name) if env is not None else None


def _always(_: Facts) -> str | None:
    return ""


def _launch_blocking(facts: Facts) -> str | None:
    value = (_variable(facts, "CUDA_LAUNCH_BLOCKING") or "").lower()
    return f"CUDA_LAUNCH_BLOCKING={value}" if value in ON else None


def _nvls(facts: Facts) -> str | None:
    """NVLink SHARP needs Hopper or newer behind NVSwitch, and not to be switched off."""
    gpus = facts.find(Gpus)
    if gpus is None or _variable(facts, "NCCL_NVLS_ENABLE") == "0":
        return None
    able = [
        g
        for g in used(gpus)
        if g.capability is not None
        and g.capability[0] >= 9
        and (
            (g.fabric is not None and g.fabric.state == FABRIC_COMPLETED)
            or any(link.remote_type == SWITCH for link in g.nvlinks or ())
        )
    ]
    return f"{len(able)} GPUs behind NVSwitch" if len(able) > 1 else None


def _order(facts: Facts) -> str | None:
    gpus = facts.find(Gpus)
    shown = gpus.visible if gpus is not None else None
    if not shown or list(shown) == sorted(shown):
        return None
    return f"CUDA_VISIBLE_DEVICES lists GPUs as {','.join(map(str, shown[:16]))}"


def _permuted(facts: Facts) -> str | None:
    return _order(facts) if _nvls(facts) is not None else None


def _permuted_forced(facts: Facts) -> str | None:
    algorithms = (_variable(facts, "NCCL_ALGO") or "").upper()
    order = _permuted(facts)
    return f"{order}, NCCL_ALGO={algorithms[:60]}" if order is not None and "NVLS" in algorithms else None


def _roce(facts: Facts) -> str | None:
    rdma = facts.find(Rdma)
    if rdma is None or _variable(facts, "NCCL_IB_GID_INDEX") is not None:
        return None
    if _variable(facts, "NCCL_IB_DISABLE") == "1":
        return None
    names = [
        h.name
        for h in rdma.hcas
        if h.driver != "efa"
        and any(p.link_layer == "Ethernet" and p.state == "ACTIVE" for p in h.ports)
        and any("RoCE v2" in t for p in h.ports for t in p.gid_types.values())
    ]
    infiniband = any(p.link_layer == "InfiniBand" and p.state == "ACTIVE" for h in rdma.hcas for p in h.ports)
    return f"RoCE ports of {', '.join(names[:8])}" if names and not infiniband else None


def _rtx_pro_6000(facts: Facts) -> str | None:
    gpus = facts.find(Gpus)
    many = [g for g in used(gpus) if "RTX PRO 6000" in (g.name or "")] if gpus is not None else []
    return f"{len(many)} {many[0].name}" if len(many) > 1 else None


def _arm(facts: Facts) -> str | None:
    host, gpus = facts.find(Host), facts.find(Gpus)
    if gpus is None:
        return None
    arch = host.architecture if host is not None and host.architecture else machine(facts.find(Stack))
    return "an aarch64 host" if arch in ("aarch64", "arm64") else None


READINGS: Mapping[Condition, Reading] = {
    Condition.ALWAYS: _always,
    Condition.LAUNCH_BLOCKING: _launch_blocking,
    Condition.NVLS: _nvls,
    Condition.ROCE: _roce,
    Condition.PERMUTED_NVLS: _permuted,
    Condition.PERMUTED_NVLS_FORCED: _permuted_forced,
    Condition.RTX_PRO_6000: _rtx_pro_6000,
    Condition.ARM: _arm,
}
VARIABLES: Mapping[Condition, str] = {
    Condition.LAUNCH_BLOCKING: "CUDA_LAUNCH_BLOCKING",
    Condition.ROCE: "NCCL_IB_GID_INDEX",
    Condition.PERMUTED_NVLS: "CUDA_VISIBLE_DEVICES",
    Condition.PERMUTED_NVLS_FORCED: "CUDA_VISIBLE_DEVICES",
}


@check(
    "ENV024",
    Row.NCCL,
    needs=(Stack,),
    uses=(Torch, Gpus, Host, Environment, Rdma, Launch),
    tags=("nccl",),
)
def nccl_known_bad(facts: Facts, options: Options) -> Iterator[Finding]:
    """NCCL release has a known defect that this machine can meet.

    What: compares the loaded NCCL with a dated list of defects, each with the condition that brings it
        out: a variable, a processor, a GPU, a network. Stack limits and NUMA calls have checks of their own.
    Why: these end in hangs, crashes or, with permuted GPUs and NVLink SHARP, in shards that are silently
        in the wrong order, so that FSDP trains on scrambled weights.
    Fix: take away the condition, or move to the release that mends it.
    Sources: NCCL release notes and user guide; nccl#750, #1185, #1251, #1906, #2418; pytorch#97843,
        #149351, #174338.
    """
    stack, torch, gpus = facts[Stack], facts.find(Torch), facts.find(Gpus)
    wheels = nccl_wheels(stack.dists)
    text = torch.nccl_runtime or torch.nccl if torch is not None else None
    if text is None and len(wheels) == 1:
        text = next(iter(wheels.values()))
    version = parse(text)
    if version is None or (torch is not None and torch.hip is not None):
        yield skip("no NCCL is loaded or installed here")
        return
    if gpus is None:
        yield skip("no GPU on which NCCL would run")
        return
    clean = True
    for defect in DEFECTS:
        if not defect.covers(version):
            continue
        reading = READINGS[defect.condition](facts)
        if reading is not None:
            clean = False
            yield _finding(defect, text or "", reading)
    if clean:
        yield ok(f"NCCL {text}: no known defect applies (list of {nccl_releases.CHECKED_ON})")


def _finding(defect: Defect, version: str, reading: str) -> Finding:
    because = f" ({reading})" if reading else ""
    return Finding(
        defect.status,
        f"NCCL {version}{because}: {defect.symptom}",
        f"not NCCL {_range(defect)} here" if reading else f"not NCCL {_range(defect)}",
        why="" if defect.status is not Status.INFO else "known of this release; no sign of it was looked for",
        subject=Subject(variable=VARIABLES.get(defect.condition)),
        fix=Fix(defect.workaround, defect.command),
        row=defect.row,
        confidence=defect.confidence,
        evidence=(Evidence("source", defect.source),),
    )


def _range(defect: Defect) -> str:
    first, fixed = (".".join(map(str, v)) for v in (defect.first, defect.fixed))
    return f"from {first} to before {fixed}"
