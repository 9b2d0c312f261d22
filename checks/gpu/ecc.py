"""ECC: what memory and caches had to correct, or could not."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.gpu._fixes import ids, replace_gpu, reset, setting, unanswered
from fsdp_doctor.engine.devices import counted, gpu_subject, gpu_words
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Row, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.tables.gpu_products import product
from fsdp_doctor.tables.gpu_thresholds import CORRECTED_FAIL, CORRECTED_WARN, SRAM_CORRECTED_WARN

TOTAL = "nvmlDeviceGetTotalEccErrors"
SRAM = "nvmlDeviceGetSramEccErrorStatus"
MODE = "nvmlDeviceGetEccMode"
NO_ECC = "these GPUs have no ECC"


def _volatile(gpu: Gpu) -> int | None:
    """Uncorrected errors since the driver loaded, by whichever counter shows more."""
    counts = [gpu.ecc.get(("uncorrected", "volatile")), gpu.sram.volatile_uncorrectable if gpu.sram else None]
    known = [c for c in counts if c is not None]
    return max(known) if known else None


@check("GPU010", Row.WRONG, needs=(Gpus,), tags=("gpu", "hardware", "ecc"))
def uncorrected(facts: Facts, options: Options) -> Iterator[Finding]:
    """Uncorrectable ECC errors occurred since the driver loaded.

    What: reads the volatile count of uncorrected ECC errors, of DRAM and SRAM. An error whose row waits
        to be remapped is counted there and only mentioned here.
    Why: the program that met the error was killed ("uncorrectable ECC error encountered"), and the other
        ranks then wait for it in a collective until the NCCL timeout. Data read before may be wrong.
    Fix: reset the GPU; if errors come back, have it replaced.
    Sources: NVML API reference; NVIDIA GPU memory error management; Meta GCM and imbue health checks.
    """
    gpus = facts[Gpus].present
    known = [g for g in gpus if _volatile(g) is not None]
    if not known:
        yield unanswered(gpus, TOTAL, "the ECC error count")
        return
    struck = [g for g in known if _volatile(g)]
    waiting = [g for g in struck if g.remapped is not None and g.remapped.pending]
    if waiting:
        counts = ", ".join(str(_volatile(g)) for g in waiting)
        yield info(
            f"{gpu_words(waiting)}: {counts} uncorrected ECC errors, whose rows wait to be remapped",
            subject=gpu_subject(waiting),
        )
    bad = [g for g in struck if g not in waiting]
    if bad:
        counts = ", ".join(f"{_volatile(g)} on GPU {g.index}" for g in bad)
        yield fail(
            f"uncorrectable ECC errors since the driver loaded: {counts}",
            "0 uncorrected ECC errors",
            subject=gpu_subject(bad),
            fix=reset(bad, "Reset the GPU and run `dcgmi diag -r 3`; have it replaced if errors come back"),
            evidence=(Evidence(TOTAL, f"uncorrected, volatile: {counts}"),),
        )
    past = [g for g in known if g not in struck and g.ecc.get(("uncorrected", "aggregate"))]
    if past:
        counts = ", ".join(str(g.ecc["uncorrected", "aggregate"]) for g in past)
        yield info(
            f"{gpu_words(past)}: {counts} uncorrected ECC errors in its life, none since the driver loaded",
            subject=gpu_subject(past),
        )
    if not struck and not past:
        yield ok(f"0 uncorrected ECC errors on {counted(known)}")


@check("GPU011", Row.NCCL, needs=(Gpus,), tags=("gpu", "hardware", "ecc"))
def sram(facts: Facts, options: Options) -> Iterator[Finding]:
    """On-chip memory (SRAM) has had uncorrectable errors.

    What: reads the SRAM error status over the GPU's life: the count of uncorrectable errors and the
        threshold flag with which the driver itself asks for replacement.
    Why: DRAM rows can be remapped, SRAM cannot. A GPU over the threshold will kill jobs again.
    Fix: replace a GPU whose threshold is exceeded; keep an eye on one with a few errors.
    Sources: NVML API reference (SRAM ECC error status); DCGM SRAM threshold check; NVIDIA GPU debug
        guidelines.
    """
    gpus = facts[Gpus].present
    known = [g for g in gpus if g.sram is not None]
    if not known:
        yield unanswered(gpus, SRAM, "the SRAM error status")
        return
    over = [g for g in known if g.sram is not None and g.sram.threshold_exceeded]
    some = [g for g in known if g.sram is not None and g.sram.aggregate_uncorrectable and g not in over]
    if over:
        counts = ", ".join(str(g.sram.aggregate_uncorrectable) for g in over if g.sram is not None)
        yield fail(
            f"SRAM uncorrectable ECC threshold exceeded on {gpu_words(over)} ({counts} errors in its life)",
            "the threshold flag not set",
            subject=gpu_subject(over),
            fix=replace_gpu("Take the GPU out of service and have it replaced"),
        )
    if some:
        counts = ", ".join(str(g.sram.aggregate_uncorrectable) for g in some if g.sram is not None)
        yield warn(
            f"{gpu_words(some)}: {counts} uncorrectable SRAM errors in its life, below the threshold",
            "0 uncorrectable SRAM errors",
            subject=gpu_subject(some),
            fix=replace_gpu("Watch it: more than a few in a year is a reason to have it replaced"),
        )
    if not over and not some:
        yield ok(f"0 uncorrectable SRAM errors on {counted(known)}")


@check("GPU012", Row.SLOW, needs=(Gpus,), tags=("gpu", "hardware", "ecc"))
def corrected(facts: Facts, options: Options) -> Iterator[Finding]:
    """Corrected ECC errors are very frequent.

    What: reads the volatile count of corrected ECC errors (all memory, and SRAM where NVML tells it
        apart). A few, even thousands, are normal.
    Why: corrected errors cost no data, but millions of them slow memory and announce uncorrectable ones.
    Fix: watch the count; have a GPU checked that is far above its peers.
    Sources: Azure HPC health checks (20,000,000 in DRAM, 10,000 in SRAM); Meta GCM.
    """
    gpus = facts[Gpus].present
    counts = {g.index: c for g in gpus if (c := g.ecc.get(("corrected", "volatile"))) is not None}
    known = [g for g in gpus if g.index in counts or g.sram_corrected is not None]
    if not known:
        yield unanswered(gpus, TOTAL, "the ECC error count")
        return
    severe = [g for g in known if counts.get(g.index, 0) > CORRECTED_FAIL]
    many = [g for g in known if counts.get(g.index, 0) > CORRECTED_WARN and g not in severe]
    for group, say in ((severe, fail), (many, warn)):
        if group:
            yield say(
                f"{gpu_words(group)}: {', '.join(str(counts[g.index]) for g in group)} corrected ECC errors",
                f"fewer than {CORRECTED_WARN}",
                subject=gpu_subject(group),
                fix=replace_gpu("Run `dcgmi diag -r 3` and compare with the other GPUs; have it checked"),
            )
    cache = [g for g in known if (g.sram_corrected or 0) > SRAM_CORRECTED_WARN]
    if cache:
        yield warn(
            f"{gpu_words(cache)}: {', '.join(str(g.sram_corrected) for g in cache)} corrected SRAM errors",
            f"fewer than {SRAM_CORRECTED_WARN}",
            subject=gpu_subject(cache),
            fix=replace_gpu("Run `dcgmi diag -r 3` and have the GPU checked"),
        )
    if not severe and not many and not cache:
        yield ok(f"at most {max(counts.values(), default=0)} corrected ECC errors on {counted(known)}")


@check("GPU013", Row.WRONG, needs=(Gpus,), tags=("gpu", "ecc", "setting"))
def ecc_mode(facts: Facts, options: Options) -> Iterator[Finding]:
    """ECC is off, or changes at the next reboot, on a data-centre GPU.

    What: reads the current and the pending ECC mode. Workstation and gaming GPUs come without ECC or with
        it off, which is no fault.
    Why: without ECC a flipped bit goes unnoticed into weights and checkpoints. A pending change makes
        this node differ from its peers after the next reset.
    Fix: switch ECC on and reset the GPU.
    Sources: nvidia-smi documentation (-e); imbue cluster-health ECC check.
    """
    gpus = facts[Gpus].present
    known = [g for g in gpus if g.ecc_current is not None]
    if not known:
        geforce = gpus and all(p is not None and not p.datacenter for p in (product(g.name) for g in gpus))
        yield skip(NO_ECC) if geforce else unanswered(gpus, MODE, "the ECC mode")
        return
    off = [g for g in known if not g.ecc_current]
    for group, serves in _by_class(off):
        if serves:
            soon = [g for g in group if g.ecc_pending]
            yield warn(
                f"ECC is off on {gpu_words(group)} ({group[0].name})"
                + (f"; it turns on at the next reset of {gpu_words(soon)}" if soon else ""),
                "ECC enabled on data-centre GPUs",
                subject=gpu_subject(group),
                fix=reset(group, "Reset the GPU before the run: ECC is switched on already")
                if len(soon) == len(group)
                else setting(
                    "Switch ECC on, then reset the GPU or reboot", f"sudo nvidia-smi -i {ids(group)} -e 1"
                ),
            )
        else:
            yield ok(f"ECC is off on {gpu_words(group)} ({group[0].name}), as such boards are delivered")
    told = {g.index for group, serves in _by_class(off) if serves for g in group}
    pending = [
        g
        for g in known
        if g.ecc_pending is not None and g.ecc_pending != g.ecc_current and g.index not in told
    ]
    if pending:
        new = "on" if pending[0].ecc_pending else "off"
        yield warn(
            f"ECC of {gpu_words(pending)} turns {new} at the next reset (current and pending differ)",
            "the current mode equals the pending mode",
            subject=gpu_subject(pending),
            fix=reset(pending, "Reset the GPU before the run, so that the setting takes effect on all nodes"),
        )
    if not off and not pending:
        yield ok(f"ECC is on for {counted(known)}")


def _by_class(gpus: list[Gpu]) -> Iterator[tuple[list[Gpu], bool]]:
    """GPUs split into data-centre ones (also those the table does not know) and others."""
    for serves in (True, False):
        group = [g for g in gpus if ((p := product(g.name)) is None or p.datacenter) is serves]
        if group:
            yield group, serves
