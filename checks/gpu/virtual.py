"""GPUs behind a hypervisor's or a confidential computing layer."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.devices import counted, gpu_subject, gpu_words
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.tables.nvml_codes import HOST_VGPU, HOST_VSGA, VGPU


@check("GPU029", Row.SLOW, needs=(Driver,), uses=(Gpus,), tags=("gpu", "confidential"))
def confidential(facts: Facts, options: Options) -> Iterator[Finding]:
    """Confidential computing mode is on.

    What: reads NVML's confidential computing state.
    Why: all traffic between CPU and GPU is encrypted through a bounce buffer, and P2P between GPUs works
        only in the mode made for several GPUs: all-gathers and data loading are slower, pinned memory does
        not help as usual.
    Fix: expect less bandwidth, or have the mode switched off where it is not required.
    Sources: NVIDIA confidential computing deployment guide; NVML API reference.
    """
    driver, gpus = facts[Driver], facts.find(Gpus)
    if driver.conf_compute is None:
        yield skip("NVML does not tell the confidential computing state")
        return
    if not driver.conf_compute:
        yield ok("confidential computing is off")
        return
    count = len(gpus.present) if gpus is not None else 0
    developer = " with developer tools allowed" if driver.conf_compute_devtools else ""
    yield warn(
        f"confidential computing is on{developer}" + (f" for {counted(count)}" if count else ""),
        "off, or bandwidth planned for it",
        fix=Fix(
            "Measure with `fsdp-doctor probe`, and have the mode switched off if it is not required",
            "nvidia-smi conf-compute -f",
            Risk.SAFE,
            Owner.ADMIN,
        ),
    )


@check("GPU030", Row.SLOW, needs=(Gpus,), tags=("gpu", "virtual"))
def vgpu(facts: Facts, options: Options) -> Iterator[Finding]:
    """A GPU is a virtual one.

    What: reads the virtualisation mode: a GPU that is passed through whole is like a real one, a vGPU is a
        share.
    Why: a vGPU's memory and time are a part of the GPU, P2P and NVLink depend on its profile, and several
        counters are hidden, so that faults below it do not show.
    Fix: use a whole GPU, or a profile with the full memory and peer access.
    Sources: NVIDIA vGPU user guide; NVML API reference (virtualization mode).
    """
    gpus = facts[Gpus].present
    known = [g for g in gpus if g.virtualization_mode is not None]
    if not known:
        yield skip("NVML does not tell the virtualisation mode")
        return
    shares = [g for g in known if g.virtualization_mode == VGPU]
    hosts = [g for g in known if g.virtualization_mode in (HOST_VGPU, HOST_VSGA)]
    if shares:
        yield info(
            f"{gpu_words(shares)} {'is a vGPU' if len(shares) == 1 else 'are vGPUs'}",
            expected="a whole GPU for NVLink, P2P and all counters",
            subject=gpu_subject(shares),
        )
    if hosts:
        yield warn(
            f"{gpu_words(hosts)} of this host {'serves' if len(hosts) == 1 else 'serve'} vGPUs",
            "no vGPU on a GPU that trains",
            subject=gpu_subject(hosts),
            fix=Fix("Train inside the guests, or take the vGPUs away", owner=Owner.ADMIN),
        )
    if not shares and not hosts:
        yield ok(f"{len(known)} whole GPUs")
