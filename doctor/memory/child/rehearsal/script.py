"""Runs the script as its launcher would have started rank 0."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from typing import Any

from .notes import Notes, Refusal


def environment(job: dict[str, Any]) -> dict[str, str]:
    """The variables that torchrun gives rank 0."""
    world, local = int(job["world_size"]), int(job["local_world_size"])
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": str(max(1, world // local)),
        "ROLE_RANK": "0",
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "rehearsal",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def accelerate_environment(words: list[str], world: int, local: int, notes: Notes) -> dict[str, str]:
    """What `accelerate launch` tells its ranks, in the words of the installed accelerate."""
    try:
        launch = importlib.import_module("accelerate.commands.launch")
        tools = importlib.import_module("accelerate.utils.launch")
    except ImportError as error:
        raise Refusal("accelerate", f"accelerate launch: {error}") from None
    before = dict(os.environ)
    try:
        arguments = launch.launch_command_parser().parse_args(words)
        arguments.num_processes = world
        arguments.num_machines = max(1, world // local)
        arguments.machine_rank = 0
        arguments, _, _ = launch._validate_launch_command(arguments)
        told: dict[str, str] = tools.prepare_multi_gpu_env(arguments)
    except SystemExit:
        raise Refusal("accelerate", "accelerate launch refuses its arguments") from None
    except (ValueError, KeyError, AttributeError, TypeError, NotImplementedError) as error:
        raise Refusal("accelerate", f"accelerate launch: {type(error).__name__}: {error}") from None
    finally:
        os.environ.clear()
        os.environ.update(before)
    return {k: v for k, v in told.items() if k.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_"))}


def run(job: dict[str, Any]) -> None:
    """Run the script or module; raises what it raises."""
    arguments = [str(a) for a in job["arguments"]]
    if job.get("module"):
        sys.path.insert(0, os.getcwd())
        sys.argv = [str(job["module"]), *arguments]
        runpy.run_module(str(job["module"]), run_name="__main__", alter_sys=True)
        return
    path = str(job["script"])
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    runpy.run_path(path, run_name="__main__")
