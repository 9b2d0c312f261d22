"""CUDA libraries of another place that are loaded before torch's own."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from fsdp_doctor.checks.env._libraries import brings_libraries, is_foreign, name_of, origin
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Risk, Row, Subject, info, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.versions import parse, same


@check("ENV023", Row.NCCL, needs=(Stack,), uses=(Torch, Environment), tags=("nccl", "cuda"))
def library_shadowed(facts: Facts, options: Options) -> Iterator[Finding]:
    """A CUDA or NCCL library from outside the environment takes the place of torch's own.

    What: torch pins nvidia wheels, and a libnccl, libcudart, libcublas, libcudnn, libnvJitLink, libcusparse
        or libnvshmem that is mapped (or preloaded) lies outside the Python packages: LD_LIBRARY_PATH,
        LD_PRELOAD, conda, or a system package.
    Why: the version then depends on the node and not on the environment: ranks differ, symbols are
        missing, and a fix in torch's pinned NCCL is not the one that runs.
    Fix: take the folder out of the variable, or uninstall the other copy.
    Sources: pytorch#119932, cugraph#4465; manual page ld.so(8).
    """
    stack, torch, env = facts[Stack], facts.find(Torch), facts.find(Environment)
    if not brings_libraries(stack):
        yield skip("torch brings no nvidia wheels here: it is a conda, system or CPU build")
        return
    loaded = [p for p in (torch.libraries if torch is not None else ()) if name_of(p) is not None]
    preload = (env.get("LD_PRELOAD") if env is not None else None) or ""
    named = [p for p in preload.replace(":", " ").split() if name_of(p) and is_foreign(p)]
    named += [p for p in stack.system_nccl if origin(p, env)[1] == "LD_LIBRARY_PATH"]
    if not loaded:
        if not named:
            yield skip("which libraries torch maps is not known", enable="let `import torch` succeed")
            return
        loaded = named
    foreign = [p for p in loaded if is_foreign(p)]
    if not foreign:
        if named:
            yield info(
                f"{', '.join(named[:4])} could be loaded {origin(named[0], env)[0]}, and was not taken",
                expected="torch's own copies are mapped",
            )
        else:
            yield ok(f"{len(loaded)} CUDA libraries, all of the environment")
        return
    # An NCCL of another version is the finding of ENV020, which names the file too.
    if torch is not None and _differs(torch):
        foreign = [p for p in foreign if name_of(p) != "libnccl"]
    by_origin: dict[tuple[str, str | None], list[str]] = {}
    for path in foreign:
        by_origin.setdefault(origin(path, env), []).append(path)
    for (reason, variable), paths in by_origin.items():
        yield _finding(reason, variable, paths, loaded)
    if not by_origin:
        yield skip("only libnccl is of another place: NCCL's version is judged by ENV020")


def _differs(torch: Torch) -> bool:
    built, runtime = parse(torch.nccl), parse(torch.nccl_runtime)
    return built is not None and runtime is not None and not same(built, runtime)


def _finding(reason: str, variable: str | None, paths: list[str], loaded: list[str]) -> Finding:
    names = sorted({name_of(p) or p for p in paths})
    twice = [n for n in names if any(name_of(p) == n and not is_foreign(p) for p in loaded)]
    folders = sorted({posixpath.dirname(p) for p in paths})
    found = f"{', '.join(names)} come{'s' if len(names) == 1 else ''} {reason}: {', '.join(paths[:6])}"
    if twice:
        found += f"; {', '.join(twice)} is mapped twice, torch's own too"
    if variable == "LD_PRELOAD":
        fix = Fix("Take the library out of LD_PRELOAD", "unset LD_PRELOAD")
    elif variable == "LD_LIBRARY_PATH":
        fix = Fix(f"Take {', '.join(folders)} out of LD_LIBRARY_PATH", "unset LD_LIBRARY_PATH")
    elif variable is not None:
        fix = Fix("Remove the conda packages that pip's wheels replace", None, Risk.DISRUPTIVE)
    else:
        fix = Fix(
            "Uninstall the system copy, or find what puts its folder before the wheels (ld.so.conf, rpath)",
            f"ldconfig -p | grep -E '{'|'.join(names)}'",
        )
    return warn(
        found,
        "the copies in nvidia/ of the environment, which torch pins",
        subject=Subject(variable=variable, path=paths[0]),
        fix=fix,
        evidence=tuple(Evidence("mapped", p) for p in paths[:12]),
    )
