"""The processes of a job's ranks on this host, by what their launcher put into their environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdp_doctor.subjects.stacks import RankProcess

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
JOBS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "OMPI_MCA_ess_base_jobid")
MEETING = ("MASTER_ADDR", "MASTER_PORT")
ENVIRONMENT_LIMIT = 1 << 20
PROCESS_LIMIT = 65536
LAUNCHERS = ("torchrun", "accelerate", "srun", "mpirun", "mpiexec", "deepspeed", "slurmstepd", "fsdp-doctor")
RUN = "FSDP_DOCTOR_PID"
"""Names the `fsdp-doctor run` that a process belongs to, though srun's daemon may have started it."""
MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "fsdp_doctor")


@dataclass(frozen=True, slots=True)
class Seen:
    """A process as /proc shows it."""

    pid: int
    parent: int
    environment: Mapping[str, str]
    command: tuple[str, ...]
    state: str


class NoRanks(Exception):
    """No rank was found; the message says what was looked at, in one line."""


def processes(root: Path = Path("/proc")) -> dict[int, Seen]:
    """Every process whose environment can be read by this user."""
    found: dict[int, Seen] = {}
    for entry in sorted(os.listdir(root))[:PROCESS_LIMIT]:
        if entry.isdigit():
            seen = _seen(root / entry, int(entry))
            if seen is not None:
                found[seen.pid] = seen
    return found


def _seen(folder: Path, pid: int) -> Seen | None:
    try:
        state, parent = _stat(folder)
        if state == "Z":
            return Seen(pid, parent, {}, (), state)
        environment = _pairs(_read(folder / "environ"))
        return Seen(pid, parent, environment, _words(_read(folder / "cmdline")), state)
    except (OSError, ValueError, IndexError):
        return None


def _stat(folder: Path) -> tuple[str, int]:
    fields = _read(folder / "stat").decode("latin-1").rpartition(")")[2].split()
    return fields[0], int(fields[1])


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(ENVIRONMENT_LIMIT)


def _words(raw: bytes) -> tuple[str, ...]:
    return tuple(w for w in raw.decode("utf-8", "replace").split("\0") if w)


def _pairs(raw: bytes) -> dict[str, str]:
    return dict(w.partition("=")[::2] for w in _words(raw) if "=" in w)


def ranks_below(table: Mapping[int, Seen], pid: int) -> tuple[Seen, ...]:
    """The ranks among a process and all that it started, itself or through srun, in order of rank.

    A rank's own children (loader workers, compilers) inherit its environment and are none. Raises `NoRanks`.
    """
    if pid not in table:
        raise NoRanks(f"there is no process {pid} of this user")
    family = _family(table, pid)
    below = set(family)
    family += [p for p, s in table.items() if s.environment.get(RUN) == str(pid) and p not in below]
    ranks = _ranks(table, family)
    if not ranks:
        above = _rank_above(table, pid)
        ranks = (above,) if above is not None else ()
    if ranks:
        return ranks
    leaves = [table[p] for p in family if _is_python(table[p]) and not _is_launcher(table[p])]
    tops = [s for s in leaves if s.parent not in {t.pid for t in leaves}]
    if not tops:
        raise NoRanks(f"process {pid} and its children are no Python programs with a rank")
    return tuple(sorted(tops, key=lambda s: s.pid))


def jobs(table: Mapping[int, Seen]) -> dict[str, tuple[Seen, ...]]:
    """All ranks of this user on this host, by job; without this process's own job of one."""
    own = _ancestors(table, os.getpid())
    found: dict[str, list[Seen]] = {}
    for seen in _ranks(table, [p for p in table if p not in own]):
        found.setdefault(job_name(seen), []).append(seen)
    return {name: tuple(members) for name, members in found.items()}


def job_name(seen: Seen) -> str:
    """What the ranks of one job have in common and those of another have not."""
    own = [seen.environment[n] for n in JOBS if seen.environment.get(n)]
    meeting = ":".join(seen.environment[n] for n in MEETING if seen.environment.get(n))
    return " ".join(dict.fromkeys(w for w in (*own, meeting) if w and w != "none")) or f"parent {seen.parent}"


def matches(name: str, members: Sequence[Seen], wanted: str) -> bool:
    """Whether a job is the one that a user means: an id of a launcher or scheduler, or a port."""
    words = {*name.split(), *name.replace(":", " ").split()}
    words |= {s.environment[n] for s in members for n in JOBS if s.environment.get(n)}
    return wanted in words


def _family(table: Mapping[int, Seen], pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for seen in table.values():
        children.setdefault(seen.parent, []).append(seen.pid)
    family, queue = [], [pid]
    while queue:
        found = queue.pop()
        family.append(found)
        queue += children.get(found, [])
    return family


def _ancestors(table: Mapping[int, Seen], pid: int) -> set[int]:
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found


def _ranks(table: Mapping[int, Seen], among: Iterable[int]) -> tuple[Seen, ...]:
    """Python processes that have a rank which their parent has not."""
    found = []
    for pid in among:
        seen = table[pid]
        rank = number(seen.environment, RANKS)
        if rank is None or seen.state == "Z" or not _is_python(seen) or _is_launcher(seen):
            continue
        if not _inherits(table, seen, rank):
            found.append(seen)
    return tuple(sorted(found, key=lambda s: (number(s.environment, RANKS) or 0, s.pid)))


def _inherits(table: Mapping[int, Seen], seen: Seen, rank: int) -> bool:
    """Whether a process above it is a rank already, with the same number: then this is one of its helpers."""
    parent = table.get(seen.parent)
    for _ in range(64):
        if parent is None:
            return False
        if number(parent.environment, RANKS) == rank and _is_python(parent) and not _is_launcher(parent):
            return True
        parent = table.get(parent.parent)
    return False


def _rank_above(table: Mapping[int, Seen], pid: int) -> Seen | None:
    """The rank that a process (a loader worker, say) belongs to."""
    return next(iter(_ranks(table, _ancestors(table, pid))), None)


def _is_python(seen: Seen) -> bool:
    return bool(seen.command) and ("python" in seen.command[0].rpartition("/")[2] or _is_script(seen))


def _is_script(seen: Seen) -> bool:
    return any(w.endswith(".py") for w in seen.command[:3])


def _is_launcher(seen: Seen) -> bool:
    names = {w.rpartition("/")[2] for w in seen.command[:3]}
    return bool(names.intersection(LAUNCHERS)) or any(w in MODULES for w in seen.command[:5])


def number(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    """The first of some variables that holds a whole number."""
    for name in names:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 8:
            return int(text)
    return None


def as_process(seen: Seen) -> RankProcess:
    """What the environment of a process says of its rank."""
    return RankProcess(
        pid=seen.pid,
        rank=number(seen.environment, RANKS),
        local_rank=number(seen.environment, LOCAL_RANKS),
        world_size=number(seen.environment, WORLD_SIZES),
        state=seen.state,
        command=seen.command,
    )
