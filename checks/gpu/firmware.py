"""Firmware of the boards: VBIOS, GSP and inforom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fsdp_doctor.checks.gpu._fixes import replace_gpu
from fsdp_doctor.engine.devices import by_value, counted, gpu_subject, gpu_words
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.tables.gpu_products import product

CORRUPTED = "CorruptedInforom"


def _minority(groups: Mapping[str, list[Gpu]]) -> list[Gpu]:
    """GPUs outside the largest group."""
    most = max(groups.values(), key=len)
    return [g for group in groups.values() if group is not most for g in group]


def _listing(groups: Mapping[str, list[Gpu]]) -> str:
    return "; ".join(f"{value} on {gpu_words(group)}" for value, group in groups.items())


@check("GPU031", Row.SLOW, needs=(Gpus,), tags=("gpu", "firmware", "consistency"))
def firmware_skew(facts: Facts, options: Options) -> Iterator[Finding]:
    """Equal GPUs have different firmware.

    What: among GPUs of one model and board part, compares the VBIOS versions, the GSP firmware versions
        and whether GSP is in use.
    Why: boards with different firmware may differ in clocks, power and fixed faults; one of them then
        behaves differently from its peers, mostly after a replacement.
    Fix: bring the boards to one firmware version.
    Sources: Azure HPC, Meta GCM and imbue health checks (VBIOS); NVML API reference.
    """
    gpus = facts[Gpus].present
    judged, differs = 0, False
    for (name, _part), group in by_value(
        (g, (g.name, g.board_part)) for g in gpus if g.name is not None
    ).items():
        made = product(name)
        for what, values in (
            ("VBIOS", by_value((g, g.vbios) for g in group if g.vbios is not None)),
            ("GSP firmware", by_value((g, g.gsp_version) for g in group if g.gsp_version is not None)),
            ("GSP mode", by_value((g, f"{g.gsp_mode[0]}") for g in group if g.gsp_mode)),
        ):
            judged += len(values)
            if len(values) < 2:
                continue
            differs = True
            odd = _minority(values)
            if what == "VBIOS" and made is not None and not made.datacenter:
                yield info(f"VBIOS versions of {name}: {_listing(values)}", subject=gpu_subject(odd))
                continue
            yield warn(
                f"{what} differs between {len(group)} x {name}: {_listing(values)}",
                f"one {what} on equal GPUs",
                subject=gpu_subject(odd),
                fix=Fix(
                    "Bring the boards to one firmware version with the vendor's tool"
                    if what == "VBIOS"
                    else "Reload the driver on all GPUs, so that each loads the same firmware",
                    "nvidia-smi -q | grep -iE 'vbios|gsp'",
                    Risk.SAFE,
                    Owner.ADMIN,
                ),
            )
    if not judged:
        yield skip("NVML gives no firmware versions")
    elif not differs:
        yield ok(f"one firmware version on each model of {counted(gpus)}")


@check("GPU032", Row.START, needs=(Gpus,), tags=("gpu", "firmware", "hardware"))
def inforom(facts: Facts, options: Options) -> Iterator[Finding]:
    """The inforom of a GPU is corrupt.

    What: reads NVML's validation of the inforom, the board's own storage, and answers of the kind
        CorruptedInforom.
    Why: the inforom holds the ECC mode and the list of remapped rows: with a corrupt one the GPU forgets
        which memory is bad, or refuses to start.
    Fix: have the inforom rewritten by the vendor, or the board replaced.
    Sources: NVML API reference (inforom validation); DCGM inforom check.
    """
    gpus = facts[Gpus].present
    corrupt = [g for g in gpus if g.inforom_valid is False or CORRUPTED in g.errors.values()]
    known = [g for g in gpus if g.inforom_valid is not None or g.inforom is not None]
    if corrupt:
        yield fail(
            f"inforom of {gpu_words(corrupt)} is corrupt",
            "a valid inforom",
            subject=gpu_subject(corrupt),
            fix=replace_gpu("Have the inforom rewritten by the vendor, or the board replaced"),
        )
    elif not known:
        yield skip("NVML does not tell the state of the inforom")
    else:
        yield ok(f"inforom of {counted(known)} is readable")
