"""Run a probe with all ranks on this machine: torch elastic starts them, this watches and ends them."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fsdp_doctor import process
from fsdp_doctor.codec import whole_json
from fsdp_doctor.probe.assemble import Ending, assemble
from fsdp_doctor.probe.journals import Journal
from fsdp_doctor.probe.settle import standing_still
from fsdp_doctor.probe.tournament import rounds
from fsdp_doctor.probe.verdicts import recheck
from fsdp_doctor.probe.watching import endings, kill, look, over
from fsdp_doctor.subjects.probe import STAGES, NodeLinks, ProbePlan, ProbeResult

HERE = Path(__file__).absolute().parent
AGENT = HERE / "elastic_child.py"
WORKER = HERE / "worker" / "start.py"
STARTING = 60.0
"""Seconds that importing torch twice may take before a rank's own deadline begins to count."""
MARGIN = 5.0
"""Seconds after its own deadline that a rank may need to end."""
GRACE = 2.5
"""Seconds from the first sign of trouble until the other ranks have said theirs."""
ENDING = 6.0
"""Seconds that elastic may need to note how its ranks ended."""
POLL = 0.05
SAID = 2000
"""Characters of elastic's own output that are kept."""
PARENT = "FSDP_DOCTOR_PROBE_PARENT"
LAUNCHER_VARIABLES = frozenset(
    (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_NAME",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    )
)
LAUNCHER_PREFIXES = ("TORCHELASTIC_", "TORCH_ELASTIC_", "FSDP_DOCTOR_PROBE_")
SHOWN_VARIABLES = ("NCCL_", "GLOO_", "TORCH_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


class ProbeError(RuntimeError):
    """The probe could not be started; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class Request:
    """One probe on this machine."""

    plan: ProbePlan
    ranks: int
    python: str = sys.executable
    environment: Mapping[str, str] | None = None
    """None: this process's own."""
    devices: tuple[int | str, ...] | None = None
    """CUDA index or UUID by local rank; None: the local rank."""
    rotated: bool = False
    links: tuple[NodeLinks, ...] = ()
    until: float | None = None
    """Monotonic seconds at which everything must have ended."""
    script: Path = WORKER
    progress: Callable[[str], None] = field(default=lambda said: None)


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what another launcher put there for ranks of its own."""
    return {
        k: v
        for k, v in environment.items()
        if k not in LAUNCHER_VARIABLES and not k.startswith(LAUNCHER_PREFIXES)
    }


def shown(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that bear on communication."""
    return {k: v for k, v in sorted(environment.items()) if k.startswith(SHOWN_VARIABLES)}


def job(plan: ProbePlan, ranks: int, folder: Path, **more: object) -> dict[str, object]:
    """What every rank reads, for ranks of one machine; `more` replaces fields."""
    planned = [r.pairs for r in rounds(range(ranks))] if plan.pair_bytes else []
    return {
        "plan": whole_json(plan),
        "folder": str(folder),
        "name": uuid.uuid4().hex,
        "ranks": ranks,
        "rounds": planned,
        "groups": [],
        "most_local": ranks,
        "scattered": False,
        "devices": None,
        **more,
    }


def self_launch(request: Request) -> ProbeResult:
    """Start the ranks, measure, and end them all. Raises `ProbeError` where nothing could be started."""
    folder = Path(tempfile.mkdtemp(prefix="fsdp-doctor-probe-"))
    try:
        return _Run(request, folder).result()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    def __init__(self, request: Request, folder: Path) -> None:
        self._request, self._folder = request, folder
        self._environment = clean(os.environ if request.environment is None else request.environment)
        self._journals = [Journal(folder, r) for r in range(request.ranks)]
        self._began = time.monotonic()
        limit = self._began + STARTING + request.plan.deadline_seconds + MARGIN
        self._until = limit if request.until is None else min(limit, request.until)
        self._looked = False
        self._trouble: float | None = None

    def result(self) -> ProbeResult:
        """Everything that the ranks left."""
        request = self._request
        path = self._folder / "job.json"
        described = job(
            request.plan,
            request.ranks,
            self._folder,
            devices=list(request.devices) if request.devices else None,
            script=str(request.script),
        )
        path.write_text(json.dumps(described))
        variables = {
            **self._environment,
            PARENT: str(os.getpid()),
            **nccl_log(request.plan.backend, self._folder),
        }
        child = process.start([request.python, "-B", str(AGENT), str(path)], env=variables)
        with child:
            try:
                timed_out = self._watch(child)
                ends = self._settle()
            finally:
                kill(self._journals)
            left = time.monotonic() - self._began + ENDING
            outcome = child.result(left)
        kill(self._journals)
        codes = self._codes()
        if not any(j.begun for j in self._journals) and not codes and not timed_out:
            raise ProbeError(_start_problem(outcome, request.python))
        said = outcome.stderr.decode("utf-8", "replace")[-SAID:]
        found = assemble(
            request.plan,
            self._journals,
            [self._with_code(e, codes, said) for e in ends],
            device="cuda" if request.plan.backend == "nccl" else "cpu",
            deadline_passed=timed_out,
            environment=shown(self._environment),
            seconds=time.monotonic() - self._began,
            logs=self._folder,
        )
        return replace(found, rotated=request.rotated, links=request.links)

    def _watch(self, child: process.Child) -> bool:
        """Until all ranks are through, or trouble has had time to show; whether time ran out."""
        while True:
            now = time.monotonic()
            for journal in self._journals:
                journal.poll()
            ended = [j for j in self._journals if over(j)]
            if len(ended) == len(self._journals) or not child.running:
                return False
            if any(not j.done for j in ended):
                self._trouble = self._trouble or now
                if now > self._trouble + GRACE:
                    return False
            if now > self._until:
                return True
            if not self._looked and all(j.looked for j in self._journals):
                self._looked = True
                self._answer()
            self._request.progress(_words(self._journals))
            time.sleep(POLL)

    def _answer(self) -> None:
        """Tell the ranks what to measure again."""
        first = assemble(
            self._request.plan,
            self._journals,
            [Ending(j.rank) for j in self._journals],
            device="cuda" if self._request.plan.backend == "nccl" else "cpu",
        )
        wanted = recheck(replace(first, links=self._request.links))
        target = self._folder / "again.json"
        part = target.with_suffix(".part")
        part.write_text(json.dumps(whole_json(wanted)))
        part.replace(target)

    def _settle(self) -> list[Ending]:
        """What is to be seen of each rank before all are ended."""
        seen = [look(j) for j in self._journals]
        return endings(seen, self._journals, standing_still(seen))

    def _codes(self) -> Mapping[int, int]:
        """How the processes ended, by rank, as elastic notes it."""
        try:
            told = json.loads((self._folder / "ended.json").read_text())
            return {int(rank): int(code) for rank, code in told.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def _with_code(self, ending: Ending, codes: Mapping[int, int], said: str) -> Ending:
        code = codes.get(ending.rank) if ending.ended_itself else None
        return replace(ending, exit_code=code, output="" if self._journals[ending.rank].begun else said)


def _words(journals: Sequence[Journal]) -> str:
    """Where the rank is that is least far."""
    last = min(journals, key=lambda j: STAGES.index(j.stage) if j.stage in STAGES else 0)
    return f"{last.stage}: {last.detail}" if last.detail else last.stage


def nccl_log(backend: str, folder: Path) -> dict[str, str]:
    """Variables that have NCCL write down which way bytes take, into the job's folder."""
    if backend != "nccl":
        return {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": f"{folder}/nccl-%h-%p.log",
    }


def _start_problem(outcome: process.Outcome, python: str) -> str:
    lines = outcome.stderr.decode("utf-8", "replace").strip().splitlines()
    if any("No module named 'torch" in line for line in lines[-3:]):
        return f"{python} has no torch: name the Python of the training with --python"
    return f"the ranks could not be started: {outcome.problem or (lines[-1] if lines else 'no output')}"
