"""Packages with compiled code that were built for another torch or another CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_doctor.checks.env._stack import pip, torch_cuda, torch_version
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Risk, Row, info, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.torch_companions import CUDA_TAGGED, tagged_cuda, tagged_torch, wants_torch
from fsdp_doctor.tables.torch_releases import DEPRECATED_PYNVML, INDEX, cuda_of_tag
from fsdp_doctor.tables.versions import Version, is_prerelease, parse, show

ENGINE = re.compile(r"transformer-engine-cu([0-9]{2})\Z")
TOOLKIT_PATH = re.compile(r"/cuda-([0-9]{1,2}\.[0-9]{1,2})(?:/|\Z)")


@check("ENV027", Row.START, needs=(Stack,), uses=(Torch,), tags=("torch", "python"))
def built_for_another_torch(facts: Facts, options: Options) -> Iterator[Finding]:
    """Packages are built for another torch or another CUDA than the installed ones.

    What: reads what versions and local tags say: torchvision 0.N goes with torch 2.(N-15), torchaudio up
        to 2.10 with its own number, +cu130 and cu12torch2.6 name a build, transformer-engine-cu12 a CUDA.
    Why: compiled extensions load torch's C++ symbols. Of another release they fail at import ("undefined
        symbol", "operator torchvision::nms does not exist"), on every rank.
    Fix: install them again for this torch, from the same index.
    Sources: torchvision and torchaudio compatibility tables; release names of flash-attention and
        Transformer Engine.
    """
    stack, torch = facts[Stack], facts.find(Torch)
    version = torch_version(stack, torch)
    release = (parse(version) or ())[:2]
    if version is None or len(release) < 2:
        yield skip("torch is not installed (ENV010)")
        return
    cuda = torch_cuda(stack, torch)
    wrong = list(_wrong(stack, version, release, cuda))
    if not wrong:
        yield ok(f"no package is marked for another torch than {version}")
        return
    names = sorted({name for name, _ in wrong})
    tag = f"cu{cuda[0]}{cuda[1]}" if cuda is not None else "cpu"
    yield warn(
        f"torch {version}, and " + "; ".join(text for _, text in wrong[:8]),
        f"builds for torch {show(release)}" + (f" and CUDA {show(cuda)}" if cuda is not None else ""),
        fix=Fix(
            f"Install {', '.join(names)} again for this torch",
            f"{pip(stack)} install --force-reinstall --no-deps {' '.join(names)} --index-url {INDEX}{tag}"
            if set(names) <= set(CUDA_TAGGED)
            else None,
            Risk.DISRUPTIVE,
        ),
    )


def _wrong(stack: Stack, version: str, release: Version, cuda: Version | None) -> Iterator[tuple[str, str]]:
    custom = is_prerelease(version)
    for name in sorted(stack.dists):
        installed = stack.dists[name]
        if name == "torch":
            continue
        wants = tagged_torch(installed)
        if not custom and not is_prerelease(installed):
            wants = wants or wants_torch(name, installed)
        if wants is not None and wants[:2] != release:
            yield name, f"{name} {installed} is built for torch {show(wants)}"
            continue
        tag = tagged_cuda(installed) if name in CUDA_TAGGED else None
        if tag is not None and cuda_of_tag(tag) != cuda:
            yield name, f"{name} {installed} is built for {tag}"
            continue
        engine = ENGINE.match(name)
        if engine and cuda is not None and int(engine.group(1)) != cuda[0]:
            yield name, f"{name} {installed} is built for CUDA {engine.group(1)}"


@check("ENV028", None, needs=(Stack,), tags=("python",))
def deprecated_pynvml(facts: Facts, options: Options) -> Iterator[Finding]:
    """Deprecated distribution pynvml is installed.

    What: looks for the distribution named pynvml; the module of that name comes from nvidia-ml-py.
    Why: torch prints a FutureWarning on every rank, and older versions of it hide the newer module and
        lack functions that monitoring tools call.
    Fix: uninstall pynvml and install nvidia-ml-py.
    Sources: torch/cuda/__init__.py; sglang#11395; pynvml on PyPI.
    """
    stack = facts[Stack]
    version = stack.dists.get(DEPRECATED_PYNVML)
    if version is None:
        yield ok(f"nvidia-ml-py {stack.dists.get('nvidia-ml-py', 'is not needed here')}")
        return
    yield info(
        f"pynvml {version} is installed: deprecated, torch warns of it",
        expected="nvidia-ml-py alone",
        fix=Fix(
            "Replace it",
            f"{pip(stack)} uninstall -y pynvml && {pip(stack)} install --force-reinstall nvidia-ml-py",
            Risk.DISRUPTIVE,
        ),
    )


@check("ENV029", None, needs=(Environment, Stack), uses=(Torch,), tags=("cuda",))
def compiler_differs(facts: Facts, options: Options) -> Iterator[Finding]:
    """CUDA toolkit on the path is of another major version than torch.

    What: reads the toolkit's version from CUDA_HOME, CUDA_PATH and PATH, and compares its major version
        with torch's CUDA.
    Why: FSDP itself needs no nvcc. Extensions that are compiled on the machine (DeepSpeed, flash-attn,
        Apex) refuse a toolkit of another major version.
    Fix: point CUDA_HOME at a toolkit of torch's major version when something is to be compiled.
    Sources: torch.utils.cpp_extension; DeepSpeed op builder.
    """
    env, stack = facts[Environment], facts[Stack]
    cuda = torch_cuda(stack, facts.find(Torch))
    if cuda is None:
        yield skip("torch is not installed, or built without CUDA")
        return
    for name in ("CUDA_HOME", "CUDA_PATH", "PATH"):
        found = TOOLKIT_PATH.search(env.get(name) or "")
        if not found:
            continue
        version = parse(found.group(1))
        if version is not None and version[0] != cuda[0]:
            yield info(
                f"{name} leads to CUDA {found.group(1)}; torch is built for CUDA {show(cuda)}",
                expected=f"a toolkit of CUDA {cuda[0]}.x, if extensions are compiled here",
            )
        else:
            yield ok(f"{name} leads to CUDA {found.group(1)}, torch is built for {show(cuda)}")
        return
    yield ok("no CUDA toolkit of a named version is on the path, and none is needed")
