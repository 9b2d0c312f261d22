"""Programs that the script starts: a shell script that fetches data, git, nvidia-smi, the job itself.

They run, and the kernel keeps their writes in the rehearsal's folder; so that one which writes files may fail
there, or end well without having written any. What they did is noted, and taken into account where the script
fails after one. Without the kernel's word only those run that are known to write nothing.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..offline import ASKING, _commands
from .notes import Notes, Refusal, script_place
from .overlay import Overlay, _lexists

READERS = frozenset((
    "git", "nvidia-smi", "nvcc", "rocm-smi", "hostname", "uname", "lscpu", "lspci", "ldconfig", "ldd",
    "which", "whoami", "id", "free", "df", "du", "cat", "ls", "echo", "printf", "head", "tail", "wc",
    "grep", "stat", "sha256sum", "md5sum", "numactl", "ibstat", "ibv_devinfo", "ip", "ifconfig",
    "scontrol", "squeue", "sinfo", "getconf", "date", "true", "false", "test", "sleep", "sysctl", "env",
    "printenv", "nproc", "file", "ps", "uptime", "lsb_release", "readlink", "realpath", "dirname",
    "basename", "pip", "gcc", "g++", "cc", "c++", "ld", "as",
))  # fmt: skip
"""Programs that write nothing that a job reads later; compilers write to the folder for temporary files."""
LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "srun", "mpirun", "mpiexec")
MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed")
EVENTS = {"subprocess.Popen": 1, "os.posix_spawn": 1, "os.system": 0, "os.exec": 1}
SHOWN = 80
"""Characters of a command."""
MOST = 100


@dataclass
class Started:
    """A program; `status` is None while it runs."""

    words: str
    place: str
    writes: bool
    pid: int = 0
    status: int | None = None

    def told(self) -> str:
        """The command and how it ended, where it did not end well."""
        return f"`{self.words}`" + (f" ended with status {self.status}" if self.status else "")


class Programs:
    """What the script started. `confined`: the kernel keeps writes in the rehearsal's folder."""

    def __init__(self, notes: Notes, overlay: Overlay, *, confined: bool) -> None:
        self._notes, self._overlay, self._confined = notes, overlay, confined
        self._own = os.getpid()
        self.started: list[Started] = []

    def install(self, replaced: Any) -> None:
        """Listen, and follow what is started. `replaced(words, place)`: the process is to be replaced."""
        sys.addaudithook(self._heard)
        self._popen()
        module: Any = os
        system = os.system

        def ran(command: Any) -> int:
            one = self._note(command, shell=True)
            status = system(command)
            one.status = os.waitstatus_to_exitcode(status) if sys.platform != "win32" else status
            return status

        module.system = ran
        for name in ("execv", "execve"):
            real = getattr(os, name)

            def exchange(path: Any, words: Any, *more: Any, real: Any = real) -> Any:
                if os.getpid() == self._own:
                    replaced(line(words), script_place())
                return real(path, words, *more)

            setattr(module, name, exchange)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        where = EVENTS.get(event)
        if where is None:
            return
        words, shell = args[where], event == "os.system"
        starts = launcher(words, shell=shell)
        if starts:
            raise Refusal("refused", f"the script starts a job by {starts}: rehearse `{line(words)}` itself")
        if not self._confined and writing(words, shell=shell):
            raise Refusal(
                "refused", f"`{line(words)}` is not run: nothing here would keep it from writing files"
            )

    def _popen(self) -> None:
        kind: Any = subprocess.Popen
        begin, ended = kind.__init__, kind._handle_exitstatus

        def init(process: Any, args: Any, *more: Any, **named: Any) -> None:
            one = process._doctor_started = self._note(args, shell=bool(named.get("shell")))
            if named.get("cwd") is not None:
                named["cwd"] = self._overlay.reading(named["cwd"])
            if isinstance(args, (list, tuple)):
                args = [self._seen(word) for word in args]
            try:
                begin(process, args, *more, **named)
            except Refusal:
                self.started = [other for other in self.started if other is not one]
                raise
            except FileNotFoundError as error:
                one.status, one.writes = 127, False
                error._doctor_program = one  # type: ignore[attr-defined]
                raise
            one.pid = process.pid

        def handle(process: Any, *args: Any, **named: Any) -> Any:
            done = ended(process, *args, **named)
            one = getattr(process, "_doctor_started", None)
            if one is not None:
                one.status = process.returncode
            return done

        kind.__init__, kind._handle_exitstatus = init, handle

    def _seen(self, word: Any) -> Any:
        """A path that is in the rehearsal's folder alone, where it is."""
        full = self._overlay._absolute(word) if isinstance(word, (str, os.PathLike)) and word else None
        if full is None or _lexists(full):
            return word
        place = self._overlay._place(full)
        return place if _lexists(place) else word

    def _note(self, words: Any, *, shell: bool) -> Started:
        one = Started(line(words), script_place(), writing(words, shell=shell))
        if os.getpid() == self._own and len(self.started) < MOST:
            self.started.append(one)
        return one

    # ------------------------------------------------------------------------------------ afterwards
    def finish(self) -> None:
        """Note what was started, and end what still runs."""
        for one in self.started:
            runs = one.status is None and one.pid > 0 and _is_child(one.pid)
            if one.writes:
                end = "; it still ran, and was ended" if runs else ""
                self._notes.add(
                    "handled", f"{one.told()}: it may write in the rehearsal's folder alone{end}", one.place
                )
            if runs:
                with suppress(OSError):
                    own = os.getpgid(one.pid) == one.pid
                    (os.killpg if own else os.kill)(one.pid, signal.SIGKILL)

    def blamed(self, error: BaseException | None) -> tuple[str, str] | None:
        """Text and place where a program's part in an error is such that the script may be right."""
        if isinstance(error, subprocess.CalledProcessError):
            return f"`{line(error.cmd)}` ended with status {error.returncode}" + self._why(error.cmd), ""
        missing = getattr(error, "_doctor_program", None)
        if isinstance(missing, Started):
            return f"{missing.words.split()[0]}: no such program on this machine", missing.place
        writers = [one for one in self.started if one.writes]
        failed = [one for one in writers if one.status]
        if failed or (writers and isinstance(error, OSError)):
            one = (failed or writers)[-1]
            return f"{one.told()} before, at {one.place}" + self._why(None), ""
        return None

    def _why(self, words: Any) -> str:
        if words is not None and not writing(words, shell=isinstance(words, str)):
            return ""
        return ": in a rehearsal it can write no files of the job"


def _is_child(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except OSError:
        return False


def line(words: Any) -> str:
    """A command as one would type it, shortened."""
    if isinstance(words, (str, bytes, os.PathLike)):
        text = os.fsdecode(words)
    else:
        texts = [os.fsdecode(w) for w in words]
        if len(texts) == 3 and texts[1] == "-c" and os.path.basename(texts[0]) == "sh":
            text = texts[2]  # what shell=True made of a text
        else:
            text = shlex.join(texts)
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _simple(words: Any, shell: bool) -> list[list[str]]:
    texts = [words] if isinstance(words, (str, bytes, os.PathLike)) else list(words or ())
    try:
        return list(_commands([os.fsdecode(w) for w in texts], shell and len(texts) == 1))
    except TypeError:
        return []


def writing(words: Any, *, shell: bool) -> bool:
    """Whether a command may write files that a job reads later."""
    commands = _simple(words, shell)
    return not commands or any(os.path.basename(c[0]) not in READERS for c in commands)


def launcher(words: Any, *, shell: bool) -> str:
    """The launcher of jobs that a command starts; "" for none."""
    for command in _simple(words, shell):
        name, rest = os.path.basename(command[0]), command[1:]
        if name.startswith("python") and rest[:1] == ["-m"] and len(rest) > 1 and rest[1] in MODULES:
            return rest[1]
        if name in LAUNCHERS and rest and rest[0] not in ASKING:
            if name == "accelerate" and rest[0] != "launch":
                continue
            return name
    return ""
