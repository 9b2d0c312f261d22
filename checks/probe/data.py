"""Whether collectives deliver the right bytes."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.probe._common import FACTS, RERUN, evidence, rank_words, size_words, subject
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Finding, Fix, Risk, Row, fail, ok, skip
from fsdp_doctor.subjects.fabric import Fabric, Mismatch
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.probe import ProbeResult


@check("PRB001", Row.WRONG, needs=FACTS, tags=("probe", "data"), cost=Cost.MINUTES)
def mismatch(facts: Facts, options: Options) -> Iterator[Finding]:
    """A collective delivered wrong bytes.

    What: Fills every rank's part with a pattern unique to rank and offset, runs the collective, and
        compares every slice of the result in the timed buffers.
    Why: FSDP rebuilds parameters by all-gather and sums gradients by reduce-scatter. Wrong bytes raise no
        error: the loss is merely worse, or turns NaN much later.
    Fix: Do not train on this. Try another NCCL release and NCCL_NVLS_ENABLE=0; where one rank is named,
        run DCGM diagnostics on its GPU.
    Sources: nccl#1906 (NVLS all-gather with reordered devices), nccl#596 (LL128 with an NVLink down).
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    if not fabric.verified and not fabric.mismatches:
        yield skip("no collective's data were compared", enable=RERUN)
        return
    patterns: dict[str, list[Mismatch]] = {}
    for m in fabric.mismatches:
        patterns.setdefault(m.pattern, []).append(m)
    for pattern, same in patterns.items():
        where = ", ".join(f"{m.op} {size_words(m.bytes)}" for m in same[:4])
        receivers = tuple(sorted({r for m in same for r in m.receivers}))
        slices = tuple(sorted({s for m in same for s in m.slices}))
        named = slices if len(slices) == 1 else receivers
        parts = f", in the part{'s' if len(slices) > 1 else ''} of {rank_words(slices)}" if slices else ""
        yield fail(
            f"wrong data on {rank_words(receivers)} after {where}{parts}: {pattern}",
            "every rank holds every part unchanged",
            subject=subject(probe, named),
            fix=_fix(probe, named),
            evidence=evidence(m.first_bad for m in same if m.first_bad),
        )
    if not fabric.mismatches:
        yield ok(f"the data of {fabric.verified} collectives were right on every rank")


def _fix(probe: ProbeResult, named: tuple[int, ...]) -> Fix:
    if probe.backend == "nccl" and len(named) == 1:
        return Fix(
            "Take the rank's GPU out of the job and test it; repeat the probe without NVLink SHARP",
            "dcgmi diag -r 3; NCCL_NVLS_ENABLE=0 fsdp-doctor probe",
            Risk.DISRUPTIVE,
        )
    if probe.backend == "nccl":
        return Fix(
            "Update NCCL, or keep NCCL_NVLS_ENABLE=0, and repeat the probe",
            "NCCL_NVLS_ENABLE=0 fsdp-doctor probe",
        )
    return Fix("Test the memory of the named hosts, and repeat the probe", "fsdp-doctor probe")
