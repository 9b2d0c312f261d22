"""Wheels of two CUDA major versions that write the same files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fsdp_doctor.checks.env._stack import nccl_wheels, pip, torch_cuda
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Risk, Row, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.versions import parse, same

SUFFIXED = re.compile(r"nvidia-([a-z-]+)-cu([0-9]{2})\Z")
SHARED_FOLDERS = {"cudnn": "nvidia/cudnn", "nvshmem": "nvidia/nvshmem", "cusparselt": "nvidia/cusparselt"}
"""Wheels whose cu12 and cu13 builds unpack into one folder; the CUDA runtime's do not."""


def _list(wheels: Mapping[str, str]) -> str:
    return " and ".join(f"{n} {v}" for n, v in wheels.items())


def _command(stack: Stack, torch: Torch | None, wheels: Mapping[str, str]) -> str:
    cuda = torch_cuda(stack, torch)
    keep = next((n for n in wheels if cuda is not None and n.endswith(f"cu{cuda[0]}")), list(wheels)[-1])
    others = " ".join(n for n in wheels if n != keep)
    return (
        f"{pip(stack)} uninstall -y {others} && "
        f"{pip(stack)} install --force-reinstall --no-deps {keep}=={wheels[keep]}"
    )


@check("ENV021", Row.NCCL, needs=(Stack,), uses=(Torch,), tags=("nccl", "python"))
def two_nccl_wheels(facts: Facts, options: Options) -> Iterator[Finding]:
    """Two NCCL wheels overwrite each other's file.

    What: nvidia-nccl-cu11, -cu12 and -cu13 are installed side by side in one environment.
    Why: they all write nvidia/nccl/lib/libnccl.so.2, so the one that was installed last wins. Nodes built
        in another order load another NCCL: undefined symbols at import, or a hang at init.
    Fix: uninstall the one that does not belong to torch's CUDA, and install the other again.
    Sources: pytorch#186591, returnn#1802.
    """
    stack, torch = facts[Stack], facts.find(Torch)
    wheels = nccl_wheels(stack.dists)
    if len(wheels) < 2:
        yield ok(f"NCCL wheel: {_list(wheels)}" if wheels else "no NCCL wheel")
        return
    versions = {tuple(parse(v) or ()) for v in wheels.values()}
    runtime = parse(torch.nccl_runtime) if torch is not None else None
    built = parse(torch.nccl) if torch is not None else None
    alike = len(versions) == 1 and (runtime is None or built is None or same(runtime, built))
    loaded = f"; {torch.nccl_runtime} is loaded now" if torch is not None and torch.nccl_runtime else ""
    say = warn if alike else fail
    yield say(
        f"two NCCL wheels: {_list(wheels)} write the same libnccl.so.2{loaded}",
        "one NCCL wheel, that of torch's CUDA",
        fix=Fix(
            "Uninstall the NCCL of the other CUDA, and install torch's again because the file is shared",
            _command(stack, torch, wheels),
            Risk.DISRUPTIVE,
        ),
    )


@check("ENV022", Row.START, needs=(Stack,), uses=(Torch,), tags=("cuda", "python"))
def two_cuda_runtimes(facts: Facts, options: Options) -> Iterator[Finding]:
    """Wheels of two CUDA major versions are mixed in one environment.

    What: looks for nvidia wheels of more than one CUDA major version. cuDNN, NVSHMEM and cuSPARSELt unpack
        into one folder whatever the major version; the CUDA runtime and cuBLAS do not.
    Why: where two wheels share a folder the last one wins, and torch may load a cuDNN of another CUDA
        ("cannot open shared object file: libcublas.so.12", CUDNN_STATUS_NOT_INITIALIZED).
    Fix: keep one CUDA major version per environment.
    Sources: metadata and file lists of the nvidia wheels on PyPI; pytorch#186591.
    """
    stack, torch = facts[Stack], facts.find(Torch)
    groups: dict[str, dict[str, str]] = {}
    for name in sorted(stack.dists):
        found = SUFFIXED.match(name)
        if found and found.group(1) != "nccl":
            groups.setdefault(found.group(1), {})[name] = stack.dists[name]
    clashes = {k: w for k, w in groups.items() if len(w) > 1 and k in SHARED_FOLDERS}
    for kind, wheels in clashes.items():
        yield warn(
            f"{_list(wheels)} both unpack into {SHARED_FOLDERS[kind]}",
            "one of them, that of torch's CUDA",
            fix=Fix(
                "Uninstall the other and install torch's again",
                _command(stack, torch, wheels),
                Risk.DISRUPTIVE,
            ),
        )
    runtimes = {n: v for n, v in stack.dists.items() if n.startswith("nvidia-cuda-runtime")}
    if clashes:
        return
    if len(runtimes) > 1:
        yield info(f"two CUDA runtimes: {_list(runtimes)}", expected="harmless: their folders differ")
    elif not runtimes and not groups:
        yield skip("no nvidia wheels are installed")
    else:
        yield ok(f"one CUDA runtime: {_list(runtimes) or ', '.join(sorted(groups))}")
