"""accelerate launch: options over its YAML or JSON configuration file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fsdp_doctor.facts.launch.draft import Draft, Scalar
from fsdp_doctor.facts.launch.scan import scan, whole
from fsdp_doctor.tables.launchers import ACCELERATE

CONFIG_LIMIT = 1 << 20
"""Bytes; a configuration file has some hundred."""


def default_config(variables: Mapping[str, str]) -> Path:
    """Where accelerate looks when no --config_file is given."""
    home = Path(os.path.expanduser(variables.get("HOME", "~")))  # a user without a home is none to fail for
    cache = Path(variables.get("XDG_CACHE_HOME") or home / ".cache")
    hf_home = Path(variables.get("HF_HOME") or cache / "huggingface")
    return hf_home / "accelerate" / "default_config.yaml"


def read_accelerate(draft: Draft, words: tuple[str, ...], variables: dict[str, str], cwd: Path) -> None:
    """Fill a draft from `accelerate launch` arguments and the configuration that they select."""
    found = scan(words, ACCELERATE)
    draft.problems += found.problems
    named = found.values.get("config_file")
    path = cwd / named if named is not None else default_config(variables)
    if named is not None or path.is_file():
        draft.config_file = str(path)
        try:
            draft.config = read_config(path)
        except ConfigError as error:
            draft.config_error = str(error)
    values: dict[str, Scalar] = {**draft.config, **found.values}
    machines = _count(draft, values, "num_machines") or 1
    processes = _count(draft, values, "num_processes")
    draft.nodes = (machines, machines)
    draft.node_rank = _number(values.get("machine_rank"))
    draft.master_addr = _text(values.get("main_process_ip"))
    draft.master_port = _number(values.get("main_process_port"))
    draft.rdzv_backend = _text(values.get("rdzv_backend")) or "static"
    if processes is None:
        draft.nproc_spec = "cpu" if "cpu" in found.flags or draft.config.get("use_cpu") is True else "gpu"
    else:
        draft.world_size = processes
        draft.nproc_per_node = max(processes // machines, 1)
        if processes % machines:
            draft.problems.append(
                f"num_processes {processes} (the total over all machines) is no multiple of num_machines "
                f"{machines}: accelerate starts {draft.nproc_per_node} on each and waits for the others"
            )
    if machines > 1 and draft.master_addr is None:
        draft.problems.append(f"num_machines is {machines}, but main_process_ip is not set")
    if machines > 1 and draft.node_rank is not None and draft.node_rank >= machines:
        draft.problems.append(f"machine_rank {draft.node_rank} is not below num_machines {machines}")
    draft.program(found.rest, module="module" in found.flags, what="accelerate launch")
    if "no_python" in found.flags:
        draft.script = None


class ConfigError(ValueError):
    """The configuration file cannot be used; the message says why in one line."""


def read_config(path: Path) -> dict[str, Scalar]:
    """The scalars of a configuration file; nested ones as `fsdp_config.fsdp_version`.

    Raises `ConfigError` where it is missing, too large, no text, no YAML or no mapping.
    """
    import yaml

    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ConfigError(f"{path}: not a regular file")
        with path.open("rb") as file:
            raw = file.read(CONFIG_LIMIT + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if len(raw) > CONFIG_LIMIT:
        raise ConfigError(f"{path}: larger than {CONFIG_LIMIT} bytes")
    try:
        loaded = yaml.safe_load(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(loaded, Mapping):
        raise ConfigError(f"{path}: not a mapping of settings")
    return _flatten(loaded)


def _flatten(mapping: Mapping[object, object]) -> dict[str, Scalar]:
    """One level of nesting is all that accelerate writes; deeper values are left out."""
    out: dict[str, Scalar] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            out |= {f"{key}.{k}": v for k, v in value.items() if _scalar(v)}
        elif _scalar(value):
            out[str(key)] = value  # type: ignore[assignment]  # _scalar has looked
    return out


def _scalar(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


def _text(value: Scalar) -> str | None:
    return None if value is None else str(value)


def _number(value: Scalar) -> int | None:
    return None if value is None or isinstance(value, bool) else whole(str(value))


def _count(draft: Draft, values: Mapping[str, Scalar], name: str) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    count = _number(value)
    if count is None or count < 1:
        draft.problems.append(f"{name} must be a positive number, not {value!r}")
        return None
    return count
