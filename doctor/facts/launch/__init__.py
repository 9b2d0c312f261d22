"""Read a launch command without running it: `torchrun … train.py --lr 1e-4` into a `Launch`."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath

from fsdp_doctor.facts.launch.accelerate import read_accelerate
from fsdp_doctor.facts.launch.draft import Draft
from fsdp_doctor.facts.launch.schedulers import read_deepspeed, read_mpirun, read_srun
from fsdp_doctor.facts.launch.strip import strip
from fsdp_doctor.facts.launch.torchrun import read_torchrun
from fsdp_doctor.subjects.launch import Launch

__all__ = ["LaunchError", "parse_launch"]

PYTHON = re.compile(r"(python|pypy)[0-9.]*\Z")
TORCHRUN_MODULES = {"torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher.api"}
SCRIPT_LIMIT = 8 << 20
"""Bytes of a training script that are looked at."""
SCANNED_DEPTH = 4
"""Launchers inside launchers: srun → torchrun is two."""


class LaunchError(ValueError):
    """What was given is no launch command that can be read; the message is one line for the user."""


def parse_launch(words: Sequence[str], cwd: Path, variables: Mapping[str, str] | None = None) -> Launch:
    """Read a launch command as the shell would hand it over.

    `variables` is the environment it would start in (for `PET_*`, `SLURM_*` and accelerate's default
    file). What the launcher itself would refuse is in `problems`. Raises `LaunchError` where the words
    hold no launcher and no Python program.
    """
    if not words:
        raise LaunchError("no command after `--`")
    environment, rest = strip(words)
    if not rest:
        raise LaunchError(f"no command in {' '.join(words)!r}: only assignments and wrappers")
    draft = Draft("", tuple(words), environment)
    _read(draft, rest, {**(variables or {}), **environment}, cwd, SCANNED_DEPTH)
    return _freeze(draft, cwd)


def _read(draft: Draft, words: tuple[str, ...], variables: dict[str, str], cwd: Path, depth: int) -> None:
    name = PurePosixPath(words[0]).name
    if depth == 0:
        raise LaunchError(f"too many launchers inside each other at {name!r}")
    if name in ("torchrun", "torchrun.exe"):
        _own(draft, "torchrun")
        read_torchrun(draft, words[1:], variables)
    elif name == "accelerate" and words[1:2] == ("launch",):
        _own(draft, "accelerate")
        read_accelerate(draft, words[2:], variables, cwd)
    elif name == "accelerate-launch":
        _own(draft, "accelerate")
        read_accelerate(draft, words[1:], variables, cwd)
    elif name == "deepspeed":
        _own(draft, "deepspeed")
        read_deepspeed(draft, words[1:])
    elif name in ("srun", "mpirun", "mpiexec", "orterun", "prterun"):
        _own(draft, "srun" if name == "srun" else "mpirun")
        inner = read_srun(draft, words[1:], variables) if name == "srun" else read_mpirun(draft, words[1:])
        _inner(draft, inner, variables, cwd, depth)
    elif PYTHON.match(name):
        _python(draft, words, variables, cwd)
    elif name.endswith(".py"):
        _own(draft, "python")
        draft.program(words, module=False, what="the command")
    else:
        raise LaunchError(
            f"{name!r} is no launcher that fsdp-doctor reads (torchrun, accelerate launch, srun, mpirun, "
            "deepspeed, python [-m torch.distributed.run])"
        )


def _own(draft: Draft, launcher: str) -> None:
    """The outermost launcher names the command."""
    draft.launcher = draft.launcher or launcher


def _inner(draft: Draft, inner: tuple[str, ...], variables: dict[str, str], cwd: Path, depth: int) -> None:
    """Read what each task runs. A launcher inside counts its own processes; srun's tasks are then nodes."""
    environment, rest = strip(inner)
    draft.environment = {**draft.environment, **environment}
    if not rest:
        return
    tasks, per_node, nodes = draft.world_size, draft.nproc_per_node, draft.nodes
    draft.world_size = draft.nproc_per_node = draft.nodes = None
    try:
        _read(draft, rest, {**variables, **draft.environment}, cwd, depth - 1)
    except LaunchError:
        draft.script_arguments = rest
    if draft.nproc_per_node is None and draft.nproc_spec is None:
        draft.world_size, draft.nproc_per_node, draft.nodes = tasks, per_node, nodes
    elif draft.nodes in (None, (1, 1)) and nodes is not None and nodes[1] > 1:
        draft.nodes = nodes
        draft.world_size = None
        draft.problems.append(
            f"{draft.launcher} starts {nodes[1]} nodes, and the launcher inside is told of one: each node "
            "would train alone"
        )
    elif per_node is not None and per_node > 1:
        draft.problems.append(
            f"{draft.launcher} starts {per_node} tasks per node, and each starts a launcher of its own: "
            "one task per node is wanted (--ntasks-per-node=1)"
        )


def _python(draft: Draft, words: tuple[str, ...], variables: dict[str, str], cwd: Path) -> None:
    """`python [options] script`, `-m module`, and launchers started as modules."""
    draft.python = words[0]
    i = 1
    while i < len(words) and words[i].startswith("-") and words[i] != "-":
        word = words[i]
        if word == "-c" or (word.startswith("-c") and not word.startswith("--")):
            raise LaunchError("python -c holds no script that could be read")
        if word in ("-X", "-W", "--check-hash-based-pycs"):
            i += 2
        elif word.startswith("-m") or re.fullmatch(r"-[bBdEiIOPqRsSuvx]+m", word):
            module = word[2:] if word.startswith("-m") else ""
            rest = words[i + 1 :]
            if not module:
                if not rest:
                    raise LaunchError("python -m names no module")
                module, rest = rest[0], rest[1:]
            _module(draft, module, rest, variables, cwd)
            return
        else:
            i += 1
    _own(draft, "python")
    draft.program(words[i:], module=False, what="python")


def _module(draft: Draft, module: str, rest: tuple[str, ...], variables: dict[str, str], cwd: Path) -> None:
    if module in TORCHRUN_MODULES:
        _own(draft, "torchrun")
        read_torchrun(draft, rest, variables)
    elif module == "accelerate.commands.launch":
        _own(draft, "accelerate")
        read_accelerate(draft, rest, variables, cwd)
    elif module in ("accelerate", "accelerate.commands.accelerate_cli") and rest[:1] == ("launch",):
        _own(draft, "accelerate")
        read_accelerate(draft, rest[1:], variables, cwd)
    elif module == "deepspeed.launcher.runner":
        _own(draft, "deepspeed")
        read_deepspeed(draft, rest)
    else:
        _own(draft, "python")
        draft.module, draft.script_arguments = module, rest


def _freeze(draft: Draft, cwd: Path) -> Launch:
    exists, error = (None, None) if draft.script is None else script_state(cwd / draft.script)
    return Launch(
        launcher=draft.launcher,
        command=draft.command,
        environment=dict(draft.environment),
        nproc_per_node=draft.nproc_per_node,
        nproc_spec=draft.nproc_spec,
        nodes=draft.nodes,
        node_rank=draft.node_rank,
        world_size=draft.world_size,
        standalone=draft.standalone,
        rdzv_backend=draft.rdzv_backend,
        rdzv_endpoint=draft.rdzv_endpoint,
        master_addr=draft.master_addr,
        master_port=draft.master_port,
        config_file=draft.config_file,
        config=draft.config,
        config_error=draft.config_error,
        script=draft.script,
        module=draft.module,
        script_arguments=draft.script_arguments,
        script_exists=exists,
        script_error=error,
        python=draft.python,
        problems=tuple(draft.problems),
    )


def script_state(path: Path) -> tuple[bool, str | None]:
    """Whether a script is there, and why Python could not read it; it is never run or compiled."""
    try:
        if not path.exists():
            return False, f"{path}: no such file"
        if not path.is_file():
            return True, f"{path}: not a regular file"
        with path.open("rb") as file:
            raw = file.read(SCRIPT_LIMIT + 1)
    except OSError as error:
        return True, f"{path}: {error.strerror or error}"
    except ValueError as error:
        return False, f"{str(path)!r}: {error}"
    if len(raw) > SCRIPT_LIMIT:
        return True, f"{path}: larger than {SCRIPT_LIMIT >> 20} MiB"
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(raw).readline)
        text = raw.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        return True, f"{path}: not Python text: {error}"
    return True, f"{path}: holds a NUL byte" if "\0" in text else None
