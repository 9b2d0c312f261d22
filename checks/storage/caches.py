"""Where compiled kernels and downloaded models are kept: file system, permission to map, room."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_doctor.checks.storage._reading import absolute, described, space_of
from fsdp_doctor.engine.job import USES, local_ranks, node_count
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Row, Subject, fail, info, ok, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.storage import Mount, Storage
from fsdp_doctor.tables.filesystems import (
    CACHE_LOW,
    COMPILE_CACHES,
    DATA_CACHES,
    PARALLEL,
    is_network,
)
from fsdp_doctor.tables.units import size

LOCAL = "/tmp/$USER/triton"


@dataclass(frozen=True, slots=True)
class _Cache:
    """One cache folder; `variable` names it, or would name it where the default is in use."""

    variable: str
    path: str
    set: bool
    mount: Mount | None


def _caches(facts: Facts, variables: tuple[str, ...], defaults: bool) -> list[_Cache]:
    """Cache folders by variable, and the defaults of Triton and Inductor where none is set."""
    storage, environment, host = facts[Storage], facts.find(Environment), facts.find(Host)
    home = environment.get("HOME") if environment is not None else None
    home = home or (host.home if host is not None else None)
    found: list[_Cache] = []
    for variable in variables:
        value = environment.get(variable) if environment is not None else None
        path = absolute(value, home) if value else None
        if path is not None:
            found.append(_Cache(variable, path, True, storage.mount_of(path)))
    if defaults:
        temporary = (environment.get("TMPDIR") if environment is not None else None) or "/tmp"
        for variable, default in (
            ("TRITON_CACHE_DIR", absolute("~/.triton", home)),
            ("TORCHINDUCTOR_CACHE_DIR", absolute(temporary, home)),
        ):
            if default is not None and variable not in {c.variable for c in found}:
                found.append(_Cache(variable, default, False, storage.mount_of(default)))
    return found


def _move(variable: str) -> Fix:
    folder = LOCAL if variable != "TORCHINDUCTOR_CACHE_DIR" else "/tmp/$USER/inductor"
    return Fix("Point the cache to a local disk", f"mkdir -p {folder} && export {variable}={folder}")


@check("STO012", Row.SLOW, needs=(Storage, Environment), uses=(Host, *USES), tags=("cache", "nfs"))
def on_network(facts: Facts, options: Options) -> Iterator[Finding]:
    """Caches that every rank writes are on a network file system

    What: Looks where TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR, TORCH_EXTENSIONS_DIR and the caches of
        Hugging Face lie. Compiled kernels on a network file system are a warning when several ranks
        share them, and so are other caches on NFS or an object store.
    Why: Ranks of all nodes compile the same kernels at the same moment and rename files over each other.
        On NFS that ends with "Stale file handle", "Device or resource busy" or a missing file, and lookups
        of many small files hold up the first steps; the slowest rank can pass NCCL's timeout.
    Fix: Point the compile caches to a local disk. Shared model weights may stay; load them before the run.
    Sources: pytorch#173679; triton#4002; Hugging Face documentation, environment variables (HF_HOME).
    """
    ranks = max(local_ranks(facts, options), 1) * max(node_count(facts, options) or 1, 1)
    seen = False
    for cache in _caches(facts, COMPILE_CACHES + DATA_CACHES, defaults=True):
        if cache.mount is None or not is_network(cache.mount.fstype):
            continue
        compiles = cache.variable in COMPILE_CACHES
        if not compiles and cache.mount.fstype in PARALLEL:
            continue
        seen = True
        name = (
            f"{cache.variable}={cache.path}" if cache.set else f"{cache.path} (default of {cache.variable})"
        )
        found, subject = (
            f"{name} is on {described(cache.mount)}",
            Subject(variable=cache.variable, path=cache.path),
        )
        expected = "a local disk" if compiles else "a local disk, or weights that were loaded before the run"
        if ranks > 1 and cache.set:
            fix = (
                _move(cache.variable) if compiles else Fix("Load the files once before the run, or copy them")
            )
            yield warn(f"{found}; {ranks} ranks share it", expected, subject=subject, fix=fix)
        else:
            yield info(
                found, expected=expected, subject=subject, fix=_move(cache.variable) if compiles else None
            )
    if not seen:
        yield ok("no cache on a network file system")


@check("STO013", Row.START, needs=(Storage, Environment), uses=(Host,), tags=("cache",))
def not_executable(facts: Facts, options: Options) -> Iterator[Finding]:
    """Compiled kernels are kept where nothing may be executed

    What: Looks whether TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR or TORCH_EXTENSIONS_DIR, or the defaults
        below the home folder and /tmp, lie on a mount with noexec.
    Why: Triton and torch.compile build shared objects there and map them. With noexec that ends with
        "failed to map segment from shared object", at the first compiled step.
    Fix: Point the variable to a file system without noexec.
    Sources: pytorch#123054, pytorch#184362; mount(8), noexec.
    """
    seen = False
    for cache in _caches(facts, COMPILE_CACHES, defaults=True):
        if cache.mount is None or "noexec" not in cache.mount.options:
            continue
        seen = True
        subject = Subject(variable=cache.variable, path=cache.path)
        where = f"{described(cache.mount)} with noexec"
        fix = Fix(
            "Point the cache to a file system without noexec",
            f'mkdir -p "$HOME/.cache/fsdp" && export {cache.variable}="$HOME/.cache/fsdp"',
        )
        if cache.set:
            found = f"{cache.variable}={cache.path} is on {where}"
            yield fail(found, "a mount that allows execution", subject=subject, fix=fix)
        else:
            found = f"{cache.path}, the default of {cache.variable}, is on {where}"
            yield warn(found, "a mount that allows execution, if the run compiles", subject=subject, fix=fix)
    if not seen:
        yield ok("compile caches may be executed")


@check("STO014", Row.START, needs=(Storage, Environment), uses=(Host,), tags=("cache", "space"))
def not_writable(facts: Facts, options: Options) -> Iterator[Finding]:
    """Caches cannot be written, or have no room

    What: Looks whether the home folder can be written, and whether the caches of Triton, Inductor, PyTorch
        and Hugging Face lie on a read-only mount or one with less than 1 GiB left.
    Why: Triton, torch.compile, extensions and model downloads write below the home folder unless told
        otherwise. Where they cannot, the first compiled kernel or the first from_pretrained ends with
        "Permission denied", "Read-only file system" or "No space left on device", on every rank at once.
    Fix: Set TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR and HF_HOME to a folder that can be written.
    Sources: Triton, runtime/cache.py (TRITON_CACHE_DIR); PyTorch documentation, torch.compile caching;
        Hugging Face documentation, environment variables.
    """
    storage, host, bad = facts[Storage], facts.find(Host), False
    caches = _caches(facts, COMPILE_CACHES + DATA_CACHES, defaults=False)
    home = host.home if host is not None else None
    home_mount = storage.mount_of(home) if home else None
    read_only = home_mount is not None and "ro" in home_mount.options
    closed = read_only or (host is not None and host.home_writable is False)
    if home and closed and "TRITON_CACHE_DIR" not in {c.variable for c in caches}:
        bad = True
        reason = (
            f"on {described(home_mount)}, mounted read-only" if read_only else "not writable for this user"
        )
        yield warn(
            f"the home folder {home} is {reason}, and TRITON_CACHE_DIR is not set",
            "a folder that can be written for TRITON_CACHE_DIR and HF_HOME",
            subject=Subject(variable="TRITON_CACHE_DIR", path=home),
            fix=Fix(
                "Set the caches to a folder that can be written",
                f"mkdir -p {LOCAL} && export TRITON_CACHE_DIR={LOCAL} HF_HOME=/tmp/$USER/hf",
            ),
        )
    for cache in caches:
        space = space_of(storage, cache.path)
        subject = Subject(variable=cache.variable, path=cache.path)
        if cache.mount is not None and "ro" in cache.mount.options:
            if cache.variable in COMPILE_CACHES:
                bad = True
                found = f"{cache.variable}={cache.path} is on {described(cache.mount)}, mounted read-only"
                yield fail(found, "a folder that can be written", subject=subject, fix=_move(cache.variable))
        elif space is not None and space.total > 0 and space.available < CACHE_LOW:
            bad = True
            yield warn(
                f"{size(space.available)} of {size(space.total)} free for {cache.variable}={cache.path}",
                f"{size(CACHE_LOW)} or more",
                subject=subject,
                fix=Fix("Empty the cache or move it", f"du -sh {shlex.quote(cache.path)}"),
            )
    if not bad:
        yield ok("caches can be written")
