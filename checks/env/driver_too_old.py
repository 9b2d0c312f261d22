"""The driver against the CUDA of the installed torch."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.env._driver import CudaFit, consumer_gpus, cuda_fit
from fsdp_doctor.checks.env._stack import (
    capabilities,
    fitting_index,
    machine,
    reinstall,
    torch_cuda,
    torch_version,
)
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, Subject, fail, info, ok, skip
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables import cuda_drivers
from fsdp_doctor.tables.cuda_drivers import FLOORS, Fit, newest_cuda, toolkit_driver
from fsdp_doctor.tables.torch_releases import first_release_for
from fsdp_doctor.tables.versions import show


def _unjudged(facts: Facts) -> Finding:
    driver = facts[Driver]
    if torch_cuda(facts[Stack], facts.find(Torch)) is None:
        return skip("torch is not installed, or built without CUDA", enable="install a CUDA build of torch")
    if driver.nvml_error is not None:
        return skip(f"the driver's version is not known (NVML: {driver.nvml_error})")
    return skip("the driver's version is not known", enable="make /proc/driver/nvidia/version readable")


@check("ENV001", Row.START, needs=(Driver, Stack), uses=(Torch, Gpus), tags=("driver", "cuda", "torch"))
def driver_too_old(facts: Facts, options: Options) -> Iterator[Finding]:
    """Driver is too old for the CUDA that torch is built for.

    What: compares the driver with the oldest one that each CUDA major version runs on: 525.60.13 for
        CUDA 12, 580.65.06 for CUDA 13. A newer libcuda from a cuda-compat package counts instead on
        data-centre GPUs.
    Why: CUDA fails at its start (error 35), torch.cuda.is_available() is False, and no rank gets a GPU.
        `pip install torch` brings CUDA 13 since 2.11, so that a fleet on R535 to R570 breaks with the
        first fresh environment.
    Fix: install the wheel of the same torch release from an older index, such as cu126, or a driver of
        the R580 branch.
    Sources: CUDA compatibility guide (minor version compatibility); CUDA 13 release notes, table 2;
        PyTorch wheel metadata.
    """
    verdict = cuda_fit(facts)
    if verdict is None:
        yield _unjudged(facts)
        return
    cuda, floor = show(verdict.cuda), FLOORS.get(verdict.cuda[0])
    torch, stack = facts.find(Torch), facts[Stack]
    version = torch_version(stack, torch)
    if verdict.fit is not Fit.TOO_OLD:
        what = "compat library" if verdict.by_compat else "driver"
        yield ok(f"{what} {verdict.text} runs CUDA {cuda} of torch {version}")
        return
    said = (torch.cuda_error or "") if torch is not None else ""
    yield fail(
        f"{_named(facts[Driver], verdict)} is too old for torch {version}, which is built for CUDA {cuda}"
        + _own_cuda(verdict, facts[Driver].cuda_version),
        f"driver {floor} or newer for CUDA {verdict.cuda[0]}.x"
        + ("" if consumer_gpus(facts.find(Gpus)) else ", or a cuda-compat package on data-centre GPUs"),
        subject=Subject(device="nvidia driver"),
        fix=_fix(facts, verdict, version),
        evidence=(Evidence("torch", said),) if said else (),
    )


def _named(driver: Driver, verdict: CudaFit) -> str:
    if verdict.by_compat:
        return f"compat libcuda {verdict.text} over driver {driver.version}"
    return f"driver {verdict.text}"


def _own_cuda(verdict: CudaFit, answered: int | None) -> str:
    if answered and not verdict.by_compat:
        return f" (it is of CUDA {answered // 1000}.{answered % 1000 // 10})"
    own = newest_cuda(verdict.driver)
    return f" (it is of CUDA {show(own)})" if own is not None else ""


def _fix(facts: Facts, verdict: CudaFit, version: str | None) -> Fix:
    stack, gpus = facts[Stack], capabilities(facts.find(Gpus))
    upgrade = f"upgrade the driver to R{cuda_drivers.RECOMMENDED_BRANCH} ({FLOORS[13]} or newer)"
    tag = fitting_index(stack, version, verdict.driver, gpus)
    if tag is not None:
        text = f"Install torch from the {tag} index, which this driver runs, or {upgrade}"
        return reinstall(text, stack, version, tag)
    other = first_release_for(verdict.driver, gpus, machine(stack))
    text = f"{upgrade[0].upper()}{upgrade[1:]}"
    if other is not None:
        text += f", or install torch {other}, the newest with a wheel for this driver and these GPUs"
    return Fix(text, None, Risk.NEEDS_ROOT, Owner.ADMIN)


@check("ENV002", Row.START, needs=(Driver, Stack), uses=(Torch, Gpus), tags=("driver", "cuda", "torch"))
def minor_version_mode(facts: Facts, options: Options) -> Iterator[Finding]:
    """Driver is older than the CUDA toolkit of torch and runs it in minor-version compatibility.

    What: the driver is of the right CUDA major version and older than the driver that was released with
        torch's toolkit.
    Why: compiled kernels and NCCL run, so this is no fault. PTX that a newer toolkit made does not
        (error 222), nor do driver calls that came later (error 36): of use to know when an extension or a
        GPU newer than the wheel fails.
    Fix: nothing is needed; a driver as new as the toolkit's own removes the limits.
    Sources: CUDA compatibility guide (minor version compatibility); CUDA release notes, table 3.
    """
    verdict = cuda_fit(facts)
    if verdict is None:
        yield _unjudged(facts)
        return
    cuda = show(verdict.cuda)
    if verdict.fit is Fit.UNKNOWN:
        newest = show(max(cuda_drivers.TOOLKIT_DRIVERS))
        yield info(
            f"CUDA {cuda} of torch is not in this tool's table (up to {newest}, {cuda_drivers.CHECKED_ON}): "
            "driver and toolkit were not compared"
        )
    elif verdict.fit is Fit.MINOR:
        own = toolkit_driver(verdict.cuda)
        yield info(
            f"driver {verdict.text} runs CUDA {cuda} in minor-version compatibility: compiled kernels run, "
            "newer PTX does not (error 222)",
            expected=f"driver {own}, released with CUDA {cuda}, has no such limit",
        )
    elif verdict.fit is Fit.TOO_OLD:
        yield skip(f"driver {verdict.text} is below the floor of CUDA {cuda} (ENV001)")
    else:
        own = toolkit_driver(verdict.cuda)
        yield ok(f"driver {verdict.text} is not older than CUDA {cuda}'s own {own or ''}".rstrip())
