"""The NCCL that is loaded against the one torch was built with and pins."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.env._libraries import is_foreign, name_of, origin
from fsdp_doctor.checks.env._stack import nccl_wheels, pip, reinstall
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Risk, Row, Subject, fail, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.versions import Version, at_least, parse, same


@check("ENV020", Row.NCCL, needs=(Stack, Torch), uses=(Environment,), tags=("nccl", "torch"))
def nccl_version_differs(facts: Facts, options: Options) -> Iterator[Finding]:
    """NCCL that is loaded is not the one torch was built with.

    What: asks the mapped libnccl.so.2 for its version (ncclGetVersion) and compares it with the constant
        that torch was compiled with (torch.cuda.nccl.version()) and with the installed wheel.
    Why: an older NCCL lacks functions that torch calls and mends no hang that torch's release counted on;
        a newer one is untested with it. Ranks that load different ones hang at init or report odd byte
        counts, and torch prints the compiled version in both cases.
    Fix: reinstall the NCCL that torch pins, and take other copies out of the loader's path.
    Sources: pytorch#72768, verl#6621, nccl#1328; torch/csrc/cuda/nccl.cpp.
    """
    stack, torch, env = facts[Stack], facts[Torch], facts.find(Environment)
    wheels = nccl_wheels(stack.dists)
    built, loaded = parse(torch.nccl), parse(torch.nccl_runtime)
    if torch.hip is not None or (torch.cuda is None and built is None):
        yield skip("torch is built without CUDA")
        return
    if built is None:
        yield skip("torch was not asked which NCCL it was built with")
        return
    if len(wheels) > 1 and loaded is not None and not same(loaded, built):
        yield skip(
            f"NCCL {torch.nccl_runtime} is loaded: {' and '.join(wheels)} overwrite each other (ENV021)"
        )
        return
    path = next((p for p in torch.libraries if name_of(p) == "libnccl"), None)
    where = f" from {path}" if path is not None else ""
    if loaded is not None:
        seen, source = loaded, f"NCCL {torch.nccl_runtime} is loaded{where}"
    elif len(wheels) == 1 and path is None:
        name, version = next(iter(wheels.items()))
        installed = parse(version)
        if installed is None:
            yield skip("the version of the loaded NCCL is not known")
            return
        seen, source = installed, f"{name} {version} is installed"
    else:
        yield skip("no libnccl.so.2 was mapped: NCCL is linked into torch, or was not asked")
        return
    if same(seen, built):
        yield ok(f"{source}, as torch {torch.version} was built with")
        return
    reason, variable = origin(path, env) if path is not None and is_foreign(path) else ("", None)
    found = f"{source}{' ' + reason if reason else ''}; torch {torch.version} was built with {torch.nccl}"
    subject = Subject(path=path, variable=variable)
    fix = _fix(stack, torch, wheels, variable)
    if not at_least(seen, built) and _is_older_series(seen, built):
        yield fail(
            f"{found}: older than torch expects",
            f"NCCL {torch.nccl}",
            subject=subject,
            fix=fix,
        )
    else:
        order = "newer" if at_least(seen, built) else "an older patch release"
        yield warn(f"{found}: {order}", f"NCCL {torch.nccl}, on every rank alike", subject=subject, fix=fix)


def _is_older_series(seen: Version, built: Version) -> bool:
    """Whether the minor release is older; a patch release changes no function that torch calls."""
    return not at_least(seen[:2], built[:2])


def _fix(stack: Stack, torch: Torch, wheels: dict[str, str], variable: str | None) -> Fix:
    if variable == "CONDA_PREFIX":
        return Fix("Remove nccl from the conda environment", "conda remove nccl", Risk.DISRUPTIVE)
    if variable is not None:
        return Fix(f"Take the folder of that libnccl.so.2 out of {variable}", f"unset {variable}")
    if len(wheels) == 1 and torch.nccl:
        name = next(iter(wheels))
        return Fix(
            "Install the NCCL that torch was built with",
            f"{pip(stack)} install --force-reinstall --no-deps {name}=={torch.nccl}",
            Risk.DISRUPTIVE,
        )
    return reinstall("Reinstall torch with the NCCL that it pins", stack, torch.version)
