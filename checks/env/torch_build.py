"""Builds of torch that cannot use the GPUs of this machine."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.env._stack import capabilities, fitting_index, machine, reinstall, torch_version
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Risk, Row, Subject, fail, info, ok, skip
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.torch_releases import cuda_of_tag, first_release_for
from fsdp_doctor.tables.versions import local_tag, parse


def _is_rocm(torch: Torch | None, version: str) -> bool:
    return (torch is not None and torch.hip is not None) or (local_tag(version) or "").startswith("rocm")


def _is_without_cuda(torch: Torch | None, version: str) -> bool:
    if torch is not None:
        return torch.cuda is None
    tag = local_tag(version)
    return tag in ("cpu", "xpu") or (tag is not None and tag.startswith("cpu."))


def _cuda_wheel(facts: Facts, version: str, text: str) -> Fix:
    stack, driver, gpus = facts.find(Stack), facts.find(Driver), capabilities(facts.find(Gpus))
    numbers = parse(driver.version) if driver is not None else None
    tag = fitting_index(stack, version, numbers, gpus)
    if tag is None:
        other = first_release_for(numbers, gpus, machine(stack))
        return Fix(f"{text}: torch {other}" if other else text, None, Risk.DISRUPTIVE)
    return reinstall(f"{text}: the {tag} wheel fits this driver and these GPUs", stack, version, tag)


@check("ENV012", Row.START, needs=(Gpus, Stack), uses=(Torch, Driver), tags=("torch", "gpu"))
def cpu_only_torch(facts: Facts, options: Options) -> Iterator[Finding]:
    """Torch is a CPU-only build on a machine with GPUs.

    What: the installed torch is built without CUDA while NVML lists GPUs.
    Why: torch.cuda.is_available() is False, the nccl backend does not exist, and a script that falls back
        to the CPU trains a thousand times slower without a word.
    Fix: install the wheel from a CUDA index; give `--index-url` to every later install too.
    Sources: PyTorch documentation (start locally); env-doctor (CPU wheel check).
    """
    gpus, torch = facts[Gpus], facts.find(Torch)
    version = torch_version(facts[Stack], torch)
    if version is None:
        yield skip("torch is not installed (ENV010)")
    elif _is_rocm(torch, version):
        yield skip("torch is a ROCm build (ENV013)")
    elif not _is_without_cuda(torch, version):
        yield ok(f"torch {version} is built for CUDA {torch.cuda if torch is not None else ''}".rstrip())
    elif gpus.visible == ():
        yield info(f"torch {version} is a CPU-only build; CUDA_VISIBLE_DEVICES hides every GPU")
    else:
        yield fail(
            f"torch {version} is a CPU-only build, without CUDA; NVML lists {len(gpus.devices)} GPUs",
            "a CUDA build of torch",
            subject=Subject(path=torch.path if torch is not None else None),
            fix=_cuda_wheel(facts, version, "Install torch from a CUDA index"),
        )


@check("ENV013", Row.START, needs=(Gpus, Stack), uses=(Torch, Driver), tags=("torch", "gpu"))
def rocm_torch(facts: Facts, options: Options) -> Iterator[Finding]:
    """Torch is a ROCm build on a machine with NVIDIA GPUs.

    What: torch was built for HIP (AMD) while NVML lists NVIDIA GPUs.
    Why: a ROCm build sees no NVIDIA GPU; its torch.cuda functions speak to AMD's runtime.
    Fix: install the wheel from a CUDA index.
    Sources: PyTorch documentation (HIP semantics).
    """
    gpus, torch = facts[Gpus], facts.find(Torch)
    version = torch_version(facts[Stack], torch)
    if version is None:
        yield skip("torch is not installed (ENV010)")
    elif _is_rocm(torch, version):
        hip = f" (HIP {torch.hip})" if torch is not None and torch.hip else ""
        yield fail(
            f"torch {version} is a ROCm build{hip}; NVML lists {len(gpus.devices)} NVIDIA GPUs",
            "a CUDA build of torch",
            subject=Subject(path=torch.path if torch is not None else None),
            fix=_cuda_wheel(facts, version, "Install torch from a CUDA index"),
        )
    else:
        yield ok(f"torch {version} is no ROCm build")


@check("ENV014", Row.START, needs=(Torch,), uses=(Stack, Gpus, Driver), tags=("torch", "nccl"))
def distributed_missing(facts: Facts, options: Options) -> Iterator[Finding]:
    """Torch is built without torch.distributed, or without NCCL on a GPU machine.

    What: asks torch.distributed.is_available(), and is_nccl_available() where torch has CUDA and the
        machine GPUs.
    Why: FSDP is made of collectives. Without torch.distributed its import fails; without NCCL
        init_process_group("nccl") raises, and gloo moves every shard through host memory.
    Fix: install the official wheel in place of the custom build.
    Sources: PyTorch documentation (torch.distributed, backends).
    """
    torch, gpus = facts[Torch], facts.find(Gpus)
    stack = facts.find(Stack)
    if torch.distributed_available is False:
        yield fail(
            f"torch {torch.version} is built without torch.distributed (is_available() is False)",
            "a build with USE_DISTRIBUTED=1, as the official Linux wheels are",
            fix=reinstall("Install the official wheel of torch", stack, torch.version),
        )
        return
    with_cuda = torch.cuda is not None or cuda_of_tag(local_tag(torch.version)) is not None
    if torch.nccl_available is False and gpus is not None and with_cuda:
        yield fail(
            f"torch {torch.version} has CUDA {torch.cuda} and no NCCL backend; {len(gpus.devices)} GPUs",
            "a build with NCCL: init_process_group('nccl') raises without it",
            fix=_cuda_wheel(facts, torch.version, "Install the official CUDA wheel of torch"),
        )
    elif torch.distributed_available is None:
        yield skip("torch was not asked for its distributed backends")
    else:
        yield ok("torch.distributed is there" + (", with NCCL" if torch.nccl_available else ""))
