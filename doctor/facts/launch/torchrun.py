"""torchrun, `python -m torch.distributed.run` and the deprecated `torch.distributed.launch`."""

from __future__ import annotations

import re

from fsdp_doctor.facts.launch.draft import Draft
from fsdp_doctor.facts.launch.scan import Scan, scan, whole
from fsdp_doctor.tables.launchers import TORCHRUN

NODES = re.compile(r"(\d+)(?::(\d+))?\Z")
COUNTED = ("auto", "cpu", "gpu", "xpu")
"""Values of --nproc-per-node that torchrun turns into a count on the machine itself."""


def read_torchrun(draft: Draft, words: tuple[str, ...], variables: dict[str, str]) -> None:
    """Fill a draft from torchrun's arguments; `PET_*` variables stand in for options not given."""
    found = scan(words, TORCHRUN)
    draft.problems += found.problems
    _from_variables(found, variables)
    values = found.values
    _processes(draft, values.get("nproc_per_node", "1"))
    _nodes(draft, values.get("nnodes", "1:1"))
    draft.standalone = "standalone" in found.flags
    draft.node_rank = whole(values.get("node_rank"))
    draft.rdzv_backend = "c10d" if draft.standalone else values.get("rdzv_backend", "static")
    draft.rdzv_endpoint = values.get("rdzv_endpoint") or None
    draft.master_addr = values.get("master_addr")
    if "master_port" in values:
        draft.master_port = whole(values["master_port"])
        if draft.master_port is None:
            draft.problems.append(f"--master-port must be a number, not {values['master_port']!r}")
    if {"module", "no_python"} <= found.flags:
        draft.problems.append("torchrun: -m and --no-python exclude each other")
    draft.program(found.rest, module="module" in found.flags, what="torchrun")
    if "no_python" in found.flags:
        draft.script = None
    _rendezvous(draft)
    draft.finish_world()


def _from_variables(found: Scan, variables: dict[str, str]) -> None:
    for name in TORCHRUN.values:
        value = variables.get(f"PET_{name.upper()}")
        if value is not None:
            found.values.setdefault(name, value)
    for name in TORCHRUN.flags:
        if variables.get(f"PET_{name.upper()}", "0") == "1":
            found.flags.add(name)


def _processes(draft: Draft, text: str) -> None:
    if text in COUNTED:
        draft.nproc_spec = text
        return
    count = whole(text)
    if count is None or count < 1:
        draft.problems.append(
            f"--nproc-per-node must be a positive number or one of {', '.join(COUNTED)}, not {text!r}"
        )
    else:
        draft.nproc_per_node = count


def _nodes(draft: Draft, text: str) -> None:
    match = NODES.match(text)
    low = int(match[1]) if match else 0
    high = int(match[2] or match[1]) if match else 0
    if not 1 <= low <= high:
        draft.problems.append(f"--nnodes must be N or MIN:MAX with 1 <= MIN <= MAX, not {text!r}")
    else:
        draft.nodes = (low, high)


def _rendezvous(draft: Draft) -> None:
    """What makes torchrun refuse to start, or every node wait for itself."""
    many = draft.nodes is not None and draft.nodes[1] > 1
    if draft.standalone and many:
        draft.problems.append("--standalone is for one node, and --nnodes asks for more")
    if not many or draft.standalone:
        return
    if draft.rdzv_backend == "static":
        if draft.master_addr is None and draft.rdzv_endpoint is None:
            draft.problems.append(
                "several nodes, but neither --master-addr nor --rdzv-endpoint: every node would wait for "
                "itself on 127.0.0.1"
            )
        if draft.nodes is not None and draft.nodes[0] != draft.nodes[1]:
            draft.problems.append(
                "a range of --nnodes needs --rdzv-backend=c10d: static rendezvous is not elastic"
            )
    elif draft.rdzv_endpoint is None:
        draft.problems.append(
            f"several nodes and --rdzv-backend={draft.rdzv_backend}, but no --rdzv-endpoint=HOST:PORT"
        )
    if draft.node_rank is not None and draft.nodes is not None and draft.node_rank >= draft.nodes[1]:
        draft.problems.append(f"--node-rank {draft.node_rank} is not below --nnodes {draft.nodes[1]}")
