"""Modes of the GPU: persistence, MIG, compute."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.gpu._fixes import ids, setting, unanswered
from fsdp_doctor.engine import job
from fsdp_doctor.engine.devices import counted, gpu_subject, gpu_words, used
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, fail, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.tables.gpu_products import product
from fsdp_doctor.tables.nvml_codes import EXCLUSIVE_PROCESS, EXCLUSIVE_THREAD, PROHIBITED

PERSISTENCE = "nvmlDeviceGetPersistenceMode"
MIG = "nvmlDeviceGetMigMode"
COMPUTE = "nvmlDeviceGetComputeMode"


@check("GPU025", Row.START, needs=(Gpus,), tags=("gpu", "setting"))
def persistence(facts: Facts, options: Options) -> Iterator[Finding]:
    """Persistence mode is off on a data-centre GPU.

    What: reads the persistence mode. Off is normal on gaming and workstation GPUs, which a display keeps
        initialised.
    Why: without it the driver lets the GPU go when the last process ends and initialises it anew for the
        next: starts take seconds longer per GPU, and settings such as clocks are lost in between.
    Fix: run nvidia-persistenced.
    Sources: NVIDIA driver persistence documentation; DCGM persistence mode check.
    """
    gpus = facts[Gpus].present
    known = [g for g in gpus if g.persistence is not None]
    if not known:
        yield unanswered(gpus, PERSISTENCE, "the persistence mode")
        return
    off = [g for g in known if not g.persistence]
    serving = [g for g in off if (p := product(g.name)) is None or p.datacenter]
    if serving:
        yield warn(
            f"persistence mode is off on {gpu_words(serving)}",
            "persistence mode on",
            subject=gpu_subject(serving),
            fix=setting("Start the persistence daemon", "sudo systemctl enable --now nvidia-persistenced"),
        )
    elif off:
        yield ok(f"persistence mode is off on {gpu_words(off)}, as usual for {off[0].name}")
    else:
        yield ok(f"persistence mode is on for {counted(known)}")


@check("GPU026", Row.START, needs=(Gpus,), uses=job.USES, tags=("gpu", "mig", "setting"))
def mig(facts: Facts, options: Options) -> Iterator[Finding]:
    """MIG mode is on, or changes at the next reset.

    What: reads the current and the pending MIG mode of the visible GPUs. A single rank may use one MIG
        instance.
    Why: a MIG instance has neither NVLink nor P2P, a process sees one instance only, and NCCL does not
        run a communicator over several: an FSDP job of several ranks does not start.
    Fix: switch MIG off and reset the GPU, or take GPUs without MIG.
    Sources: NVIDIA MIG user guide (limitations); NCCL user guide.
    """
    gpus = used(facts[Gpus])
    known = [g for g in gpus if g.mig_current is not None]
    if not known:
        errors = {g.errors.get(MIG) for g in gpus}
        if errors == {"NotSupported"}:
            yield ok(f"{counted(gpus)} without MIG")
        else:
            yield unanswered(gpus, MIG, "the MIG mode")
        return
    on = [g for g in known if g.mig_current]
    pending = [g for g in known if g.mig_pending is not None and g.mig_pending != g.mig_current]
    if on:
        say = warn if job.local_ranks(facts, options) <= 1 else fail
        yield say(
            f"MIG is enabled on {gpu_words(on)}",
            "MIG disabled on GPUs of an FSDP job",
            subject=gpu_subject(on),
            fix=Fix(
                "Switch MIG off and reset the GPU",
                f"sudo nvidia-smi -i {ids(on)} -mig 0 && sudo nvidia-smi --gpu-reset -i {ids(on)}",
                Risk.DISRUPTIVE,
                Owner.ADMIN,
            ),
        )
    waiting = [g for g in pending if g not in on]
    if waiting:
        yield warn(
            f"MIG turns on at the next reset of {gpu_words(waiting)} (pending)",
            "the pending mode equals the current mode",
            subject=gpu_subject(waiting),
            fix=setting("Take the pending change back", f"sudo nvidia-smi -i {ids(waiting)} -mig 0"),
        )
    if not on and not waiting:
        yield ok(f"MIG is off on {counted(known)}")


@check("GPU027", Row.START, needs=(Gpus,), tags=("gpu", "setting"))
def compute_mode(facts: Facts, options: Options) -> Iterator[Finding]:
    """The compute mode keeps processes off a GPU.

    What: reads the compute mode of the visible GPUs: prohibited forbids every process, exclusive allows
        one.
    Why: with "prohibited" CUDA refuses the GPU ("all CUDA-capable devices are busy or unavailable"). With
        "exclusive" a rank fails as soon as anything else holds the GPU: a leftover, a second rank, a
        profiler, or this tool's own probe.
    Fix: set the default compute mode.
    Sources: nvidia-smi documentation (-c); CUDA programming guide (compute modes).
    """
    gpus = used(facts[Gpus])
    known = [g for g in gpus if g.compute_mode is not None]
    if not known:
        yield unanswered(gpus, COMPUTE, "the compute mode")
        return
    prohibited = [g for g in known if g.compute_mode == PROHIBITED]
    exclusive = [g for g in known if g.compute_mode in (EXCLUSIVE_PROCESS, EXCLUSIVE_THREAD)]
    if prohibited:
        yield fail(
            f"compute mode PROHIBITED on {gpu_words(prohibited)}",
            "compute mode DEFAULT",
            subject=gpu_subject(prohibited),
            fix=setting("Set the default compute mode", f"sudo nvidia-smi -i {ids(prohibited)} -c 0"),
        )
    if exclusive:
        yield warn(
            f"compute mode EXCLUSIVE_PROCESS on {gpu_words(exclusive)}",
            "compute mode DEFAULT",
            subject=gpu_subject(exclusive),
            fix=setting("Set the default compute mode", f"sudo nvidia-smi -i {ids(exclusive)} -c 0"),
        )
    if not prohibited and not exclusive:
        yield ok(f"compute mode default on {counted(known)}")
