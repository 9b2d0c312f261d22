"""Providers of `Stack` and `Torch`: the Python environment that would train, from stack.json."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from fsdp_doctor.facts.source import Json, Source
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.stack import Stack, Torch

NCCL = "libnccl.so.2"
LOADER_FOLDERS = (
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/nvidia/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)
"""Where the loader looks without a variable, or where CUDA images tell it to."""


def stack(source: Source) -> Known[Stack] | Unknown:
    """What the interpreter holds; unknown where it could not be started."""
    answers = source.stack()
    if isinstance(answers, Unknown):
        return answers
    value = answers.value
    python = _text(value.get("python"))
    if python is None:
        error = _text(value.get("error"))
        return Unknown(error or "the answers of the Python environment hold no Python version")
    libc = _texts(value.get("libc"))
    return Known(
        Stack(
            python=python,
            executable=_text(value.get("executable")) or "python",
            platform=_text(value.get("platform")),
            libc=(libc[0], libc[1]) if len(libc) == 2 else None,
            dists={k: v for k, v in _table(value.get("dists")).items() if isinstance(v, str)},
            requires={k: _texts(v) for k, v in _table(value.get("requires")).items()},
            dlopen={k: _text(v) for k, v in _table(value.get("dlopen")).items()},
            torch_error=_torch_error(value),
            system_nccl=_system_nccl(source, value),
            dlopen_errors={k: v for k, v in _table(value.get("dlopen_errors")).items() if isinstance(v, str)},
        ),
        answers.source or "stack.json",
    )


def torch(source: Source) -> Known[Torch] | Unknown:
    """The answers of an imported torch; unknown where it is not installed or its import failed."""
    answers = source.stack()
    if isinstance(answers, Unknown):
        return answers
    value = answers.value
    where = _text(value.get("executable")) or "this Python environment"
    told, error = _table(value.get("torch")), _torch_error(value)
    if error is not None:
        late = told.get("late") is True
        return Unknown(
            f"import torch failed: {error}", f"make `{where} -c 'import torch'` succeed", late=late
        )
    version = _text(told.get("version"))
    if version is None:
        broken = _text(value.get("error"))
        if broken is not None:
            return Unknown(broken)
        return Unknown(
            f"torch is not installed in {where}", "install torch there, or name another --python", absent=True
        )
    return Known(
        Torch(
            version=version,
            cuda=_text(told.get("cuda")),
            hip=_text(told.get("hip")),
            nccl=_version(told.get("nccl")),
            nccl_runtime=_version(value.get("nccl_runtime")),
            arch_list=_texts(told.get("arch_list")),
            cuda_available=_flag(told.get("cuda_available")),
            device_count=_count(told.get("device_count")),
            cuda_error=_text(told.get("cuda_error")),
            path=_text(told.get("path")),
            distributed_available=_flag(told.get("distributed_available")),
            nccl_available=_flag(told.get("nccl_available")),
            libraries=_texts(value.get("libraries")),
        ),
        answers.source or "stack.json",
    )


def _torch_error(value: Mapping[str, Json]) -> str | None:
    told = value.get("torch")
    return (
        (_text(told.get("error")) or "unknown error")
        if isinstance(told, Mapping) and "error" in told
        else None
    )


def _system_nccl(source: Source, value: Mapping[str, Json]) -> tuple[str, ...]:
    """Files outside the environment, in the loader's order: preloaded, variable, cache, defaults, mapped."""
    env = source.env()
    variables: Mapping[str, str] = {} if isinstance(env, Unknown) else env.value
    preloaded = variables.get("LD_PRELOAD", "").replace(":", " ").split()
    paths = [p for p in preloaded if posixpath.basename(p).startswith("libnccl.so")]
    folders = [f for f in variables.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":") if f]
    paths += [f"{f.rstrip('/')}/{NCCL}" for f in folders]
    cached = _text(_table(value.get("dlopen")).get(NCCL))
    paths += [cached] if cached is not None else []
    paths += [f"{f}/{NCCL}" for f in LOADER_FOLDERS]
    loaded = _texts(value.get("libraries"))
    mapped = [p for p in loaded if posixpath.basename(p).startswith("libnccl.so")]
    found: dict[str, str] = {}
    for path in paths:
        if path in mapped or path == cached or (path.startswith("/") and source.exists(path)):
            found.setdefault(source.realpath(path), path)
    for path in mapped:
        found.setdefault(path, path)
    return tuple(
        p for real, p in found.items() if not (_in_environment(p, value) or _in_environment(real, value))
    )


def _in_environment(path: str, value: Mapping[str, Json]) -> bool:
    """Whether a file belongs to the interpreter's packages."""
    if "/site-packages/" in path or "/dist-packages/" in path:
        return True
    executable = _text(value.get("executable")) or ""
    prefix = posixpath.dirname(posixpath.dirname(executable))
    return prefix not in ("", "/", "/usr", "/usr/local") and path.startswith(f"{prefix}/")


def _text(value: Json) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def _texts(value: Json) -> tuple[str, ...]:
    items = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return tuple(v for v in items if isinstance(v, str))


def _table(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def _flag(value: Json) -> bool | None:
    return value if isinstance(value, bool) else None


def _count(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _version(value: Json) -> str | None:
    """2.29.7, from text or from [2, 29, 7]."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = [str(v) for v in value if isinstance(v, int)]
        return ".".join(parts) if parts and len(parts) == len(value) else None
    return _text(value)
