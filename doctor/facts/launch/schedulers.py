"""srun, mpirun and deepspeed: what they say themselves, before the program that they start is read."""

from __future__ import annotations

from fsdp_doctor.facts.launch.draft import Draft
from fsdp_doctor.facts.launch.scan import Scan, scan, whole
from fsdp_doctor.tables.launchers import DEEPSPEED, MPIRUN, SRUN


def read_srun(draft: Draft, words: tuple[str, ...], variables: dict[str, str]) -> tuple[str, ...]:
    """Nodes and tasks of srun; returns the command that each task runs."""
    found = scan(words, SRUN)
    draft.problems += found.problems
    values = found.values
    nodes = _first_number(values.get("nodes") or variables.get("SLURM_NNODES"))
    tasks = _first_number(values.get("ntasks") or variables.get("SLURM_NTASKS"))
    per_node = _first_number(
        values.get("ntasks_per_node")
        or values.get("tasks_per_node")
        or variables.get("SLURM_NTASKS_PER_NODE")
    )
    if nodes is not None:
        draft.nodes = (nodes, nodes)
    if per_node is None and tasks is not None and nodes and tasks % nodes == 0:
        per_node = tasks // nodes
    draft.nproc_per_node = per_node
    draft.world_size = tasks
    draft.finish_world()
    if not found.rest:
        draft.problems.append("srun names no command")
    return found.rest


def read_mpirun(draft: Draft, words: tuple[str, ...]) -> tuple[str, ...]:
    """Processes of mpirun or mpiexec; returns the command that each process runs."""
    found = _scan_mpi(words)
    draft.problems += found.problems
    values = found.values
    total = whole(values.get("np") or values.get("n") or values.get("c"))
    per_node = whole(values.get("npernode") or values.get("N") or values.get("ppn") or values.get("perhost"))
    draft.world_size = total
    draft.nproc_per_node = per_node
    hosts = _hosts(values.get("host") or values.get("hosts"))
    if hosts:
        draft.nodes = (hosts, hosts)
    if total is not None and per_node and total % per_node == 0:
        draft.nodes = (total // per_node, total // per_node)
    elif total is not None and hosts and total % hosts == 0:
        draft.nproc_per_node = total // hosts
    environment = dict(draft.environment)
    for export in found.repeated.get("x", ()):
        name, equals, value = export.partition("=")
        if equals:
            environment[name] = value
    draft.environment = environment
    if not found.rest:
        draft.problems.append("mpirun names no command")
    return found.rest


def _scan_mpi(words: tuple[str, ...]) -> Scan:
    """`--mca KEY VALUE` takes two words, which no grammar of single values says: drop them first."""
    kept: list[str] = []
    i = 0
    while i < len(words) and (words[i].startswith("-") or (kept and kept[-1].startswith("-"))):
        if words[i].lstrip("-") in ("mca", "gmca", "prtemca", "pmixmca", "genv") and words[i].startswith("-"):
            i += 3
            continue
        kept.append(words[i])
        i += 1
    return scan((*kept, *words[i:]), MPIRUN)


def read_deepspeed(draft: Draft, words: tuple[str, ...]) -> None:
    """The deepspeed launcher: processes per node are its --num_gpus, else every GPU."""
    found = scan(words, DEEPSPEED)
    draft.problems += found.problems
    values = found.values
    nodes = whole(values.get("num_nodes"))
    draft.nodes = (nodes, nodes) if nodes and nodes > 0 else None
    if draft.nodes is None and not values.get("hostfile"):
        draft.nodes = (1, 1)
    draft.nproc_per_node = whole(values.get("num_gpus"))
    if draft.nproc_per_node is None:
        draft.nproc_spec = "gpu"
    draft.master_addr = values.get("master_addr")
    draft.master_port = whole(values.get("master_port"))
    draft.program(found.rest, module="module" in found.flags, what="deepspeed")
    draft.finish_world()


def _first_number(text: str | None) -> int | None:
    """`2`, `2-4` (minimum to maximum) and `8(x2)` (Slurm's repetition) begin with the number wanted."""
    if not text:
        return None
    digits = ""
    for letter in text:
        if not letter.isdigit():
            break
        digits += letter
    return int(digits) if digits else None


def _hosts(text: str | None) -> int | None:
    if not text:
        return None
    return len({h.split(":", 1)[0] for h in text.split(",") if h})
