"""The machine that runs this process as a `Source`.

Files of the kernel are read here. Whatever can hang is asked by children, all started at once and waited
for when their answer is first wanted, so that a hung file server costs its own answer and no other.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path

from fsdp_doctor.facts.addresses import interface_addresses
from fsdp_doctor.facts.asked import Asked
from fsdp_doctor.facts.child_answers import nvml_answers, stack_answers
from fsdp_doctor.facts.containment import container
from fsdp_doctor.facts.guard import Guard
from fsdp_doctor.facts.host import device_nodes
from fsdp_doctor.facts.live_files import LiveFiles
from fsdp_doctor.facts.scheduler import read_scheduler
from fsdp_doctor.facts.source import Json, Manifest, PathFacts
from fsdp_doctor.subjects.fact import Known, Unknown

CHILDREN = Path(__file__).absolute().parent / "children"
SYSTEM, NVML, STACK = "system", "nvml", "stack"
PARTS = frozenset({SYSTEM, NVML, STACK})
"""What may be asked: file systems, names, log and units; the GPUs; the Python environment."""
PATH_SECONDS = 5.0
"""Patience with a file system or a device node; a healthy one answers in milliseconds."""
NAME_SECONDS = 12.0
"""Two rounds of a resolver's own patience."""
PLACES = ("/", "/tmp", "/dev/shm")
PLACE_VARIABLES = (
    "HOME",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TORCH_HOME",
    "CUDA_CACHE_PATH",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
)
PATH_FACTS = frozenset(("exists", "is_dir", "writable", "nearest", "real", "error"))
UNITS = ("nvidia-fabricmanager", "nvidia-persistenced", "nvidia-imex")


class LiveSource(LiveFiles):
    """The machine itself. `seconds` is what all answers together may take from now on."""

    def __init__(
        self,
        *,
        python: str | None = None,
        seconds: float = 10.0,
        checkpoint: str | None = None,
        names: Iterable[str] = (),
        ask: Iterable[str] = PARTS,
    ) -> None:
        until = time.monotonic() + seconds
        super().__init__(Guard(until))
        self._env = {k: _clean(v) for k, v in os.environ.items()}
        self._python = python or sys.executable
        self._ask = frozenset(ask)
        self._hostname = socket.gethostname()
        self._asked: dict[str, Asked] = {}
        self._until = until
        if NVML in self._ask:
            self._start(NVML, sys.executable, "-I", str(CHILDREN / "nvml_child.py"), *binding())
        if STACK in self._ask:
            self._start(STACK, self._python, "-B", str(CHILDREN / "torch_child.py"))
        if SYSTEM in self._ask:
            self._start_system(checkpoint, names)

    def _start_system(self, checkpoint: str | None, names: Iterable[str]) -> None:
        places = [*PLACES, *(self._env.get(v, "") for v in PLACE_VARIABLES), checkpoint or ""]
        self._ask_system("paths", [p for p in places if p.startswith("/")], PATH_SECONDS)
        wanted = [self._hostname, self._env.get("MASTER_ADDR", ""), *names]
        self._ask_system("names", [n for n in wanted if n], NAME_SECONDS)
        self._ask_system("log", [])
        self._ask_system("nodes", device_nodes(self), PATH_SECONDS)
        # The units of a container are not those of the machine.
        if self.exists("/run/systemd/system") and container(self) is None:
            self._ask_system("units", UNITS)

    def _ask_system(self, part: str, names: Iterable[str], patience: float = inf, key: str = "") -> None:
        script = str(CHILDREN / "system_child.py")
        arguments = dict.fromkeys(names)
        self._start(key or part, sys.executable, "-I", "-S", script, part, *arguments, patience=patience)

    def _start(self, key: str, *argv: str, patience: float = inf) -> None:
        self._asked[key] = Asked(argv, min(patience, self._until - time.monotonic()))

    def _answers(self, key: str, kind: str) -> dict[str, Json]:
        """Answers of one kind by name, as far as they came."""
        asked = self._asked.get(key)
        return asked.answers(kind) if asked else {}

    def close(self) -> None:
        """End the children that still run, and the thread that reads files."""
        self._guard.close()
        for asked in self._asked.values():
            asked.end()

    @property
    def manifest(self) -> Manifest:
        """The host, and the rank that the environment names."""
        found = read_scheduler(self._env)
        return Manifest(host=self._hostname, rank=found.rank, world_size=found.world_size)

    def openable(self, path: str) -> bool | None:
        """As in `Source`; None for a node that was not there at the start or did not answer."""
        answer = self._answers("nodes", "node").get(path)
        return answer if isinstance(answer, bool) else None

    def path_facts(self, path: str) -> PathFacts:
        """As in `Source`; a path that was not named at the start is asked now."""
        if SYSTEM not in self._ask:
            return PathFacts()
        answer = self._answers("paths", "path").get(path)
        key = f"path {path}"
        if answer is None and not self._was_asked("paths", path):
            if key not in self._asked:
                self._ask_system("paths", [path], PATH_SECONDS, key)
            answer = self._answers(key, "path").get(path)
        if not isinstance(answer, Mapping):
            asked = self._asked[key if key in self._asked else "paths"]
            return PathFacts(error=asked.outcome().problem or "no answer")
        facts = {k: v for k, v in answer.items() if k in PATH_FACTS and isinstance(v, (str, bool))}
        return PathFacts(**facts)  # type: ignore[arg-type]

    def _was_asked(self, key: str, name: str) -> bool:
        return key in self._asked and name in self._asked[key].argv

    def units(self) -> Mapping[str, str]:
        """As in `Source`."""
        return {k: v for k, v in self._answers("units", "unit").items() if isinstance(v, str)}

    def env(self) -> Known[Mapping[str, str]] | Unknown:
        """The variables of this process."""
        return Known(self._env, "the environment")

    def nvml(self) -> Known[Mapping[str, Json]] | Unknown:
        """What NVML answered until its deadline."""
        asked = self._asked.get(NVML)
        return nvml_answers(asked.outcome()) if asked else Unknown("NVML was not asked")

    def stack(self) -> Known[Mapping[str, Json]] | Unknown:
        """What the interpreter of the training says of itself and of its torch."""
        asked = self._asked.get(STACK)
        if asked is None:
            return Unknown("the Python environment was not asked")
        return stack_answers(asked.outcome(), self._python)

    def net(self) -> Known[Mapping[str, Json]] | Unknown:
        """Addresses of the interfaces, and the names that were asked."""
        return Known(
            {
                "hostname": self._hostname,
                "interfaces": interface_addresses(),
                "resolve": self._answers("names", "name"),
            },
            "the kernel and the resolver",
        )

    def statvfs(self) -> Known[Mapping[str, Mapping[str, int]]] | Unknown:
        """Space of every path that answered, by what exists of it."""
        found: dict[str, Mapping[str, int]] = {}
        for key in [k for k in self._asked if k == "paths" or k.startswith("path ")]:
            for path, facts in self._answers(key, "path").items():
                space = facts.get("space") if isinstance(facts, Mapping) else None
                if isinstance(facts, Mapping) and isinstance(space, Mapping):
                    place = path if facts.get("exists") else str(facts.get("nearest"))
                    found[place] = {k: v for k, v in space.items() if isinstance(v, int)}
        if found:
            return Known(found, "statvfs")
        asked = self._asked.get("paths")
        if asked is None:
            return Unknown("the file systems were not asked")
        problem = asked.outcome().problem or "no file system gave an answer"
        return Unknown(problem, late=asked.outcome().timed_out)

    def kernel_log(self) -> Known[str] | Unknown:
        """The log from the first reader that this user is allowed to use."""
        asked = self._asked.get("log")
        if asked is None:
            return Unknown("the kernel log was not asked")
        texts = [(n, t) for n, t in self._answers("log", "log").items() if isinstance(t, str)]
        if texts:
            return Known(texts[-1][1], texts[-1][0])
        reason = self._answers("log", "unreadable").get("log") or asked.outcome().problem
        return Unknown(
            f"the kernel log could not be read: {reason or 'no answer'}",
            "run as root, or as a member of the group adm or systemd-journal",
            late=asked.outcome().timed_out,
        )


def binding() -> tuple[str, ...]:
    """Arguments that name the file of pynvml, which may lie where an isolated Python does not look."""
    try:
        spec = importlib.util.find_spec("pynvml")
    except (ImportError, ValueError):
        return ()
    return ("--pynvml", spec.origin) if spec and spec.origin else ()


def _clean(value: str) -> str:
    """Text that can be encoded: bytes of a variable that are no UTF-8 become question marks."""
    return value.encode("utf-8", "replace").decode("utf-8")
