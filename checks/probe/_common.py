"""What the probe's checks share: naming ranks and sizes, and what was not measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fsdp_doctor.findings import Confidence, Evidence, Finding, Fix, Owner, Risk, Row, Status, Subject, skip
from fsdp_doctor.subjects.fabric import Culprit, Fabric
from fsdp_doctor.subjects.probe import STAGES, ProbeResult, RankMeasurement

FACTS: tuple[type[object], ...] = (ProbeResult, Fabric)
RERUN = "run `fsdp-doctor probe` on ranks that finish"
SHOWN = 8
"""Ranks that are written out one by one."""
KIB = 1 << 10


def rank_words(ranks: Sequence[int]) -> str:
    """Such as "rank 3" or "ranks 0, 3, 5"; long lists are cut."""
    listed = ", ".join(str(r) for r in ranks[:SHOWN]) + (
        f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    )
    return f"rank{'s' if len(ranks) != 1 else ''} {listed}"


def who(probe: ProbeResult, ranks: Sequence[int]) -> str:
    """Ranks with the host and the GPU of a single one."""
    if len(ranks) != 1:
        return rank_words(ranks)
    found = measurement(probe, ranks[0])
    places = []
    if found is not None and found.host:
        places.append(found.host)
    if found is not None and found.gpu is not None:
        places.append(f"GPU {found.gpu}")
    return f"rank {ranks[0]}" + (f" ({', '.join(places)})" if places else "")


def measurement(probe: ProbeResult, rank: int) -> RankMeasurement | None:
    """What one rank reported."""
    return next((r for r in probe.ranks if r.rank == rank), None)


def subject(probe: ProbeResult, ranks: Sequence[int], **more: str | None) -> Subject:
    """The subject of a finding about ranks, with their hosts where these are few; of one also its GPU."""
    if len(ranks) != 1:
        places = more.get("host") or ",".join(_places(probe, ranks))
        return Subject(rank=tuple(ranks) or None, host=places or None, device=more.get("device"))
    found = measurement(probe, ranks[0])
    host = more.get("host") or (found.host or None if found is not None else None)
    gpu = found.gpu if found is not None else None
    return Subject(host=host, rank=ranks[0], gpu=gpu, device=more.get("device"))


def _places(probe: ProbeResult, ranks: Sequence[int]) -> list[str]:
    """The hosts of some ranks in their order; none where they are more than can be shown."""
    found = list(dict.fromkeys(m.host for r in ranks if (m := measurement(probe, r)) is not None and m.host))
    return found if len(found) <= SHOWN else []


def size_words(size: int) -> str:
    """Such as 64 KiB or 1 GiB."""
    for name in ("B", "KiB", "MiB"):
        if size < KIB:
            return f"{size:.4g} {name}"
        size = size // KIB if size % KIB == 0 else size / KIB  # type: ignore[assignment]
    return f"{size:.4g} GiB"


def accuse(
    culprit: Culprit, found: str, expected: str, fix: Fix, about: Subject, row: Row | None = None
) -> Finding:
    """A finding about a culprit: a failure where it was confirmed and is far off, else a warning.

    What the statistic noted beside the figures ends the sentence.
    """
    noted = "".join(f"; {t}" for t in culprit.evidence[:1])
    confidence = Confidence.HIGH if culprit.confirmed else Confidence.LOW
    once = "" if culprit.confirmed else "; measured once, run the probe again to confirm"
    return Finding(
        Status.FAIL if culprit.fails else Status.WARN,
        found + noted + once,
        expected,
        subject=about,
        fix=fix,
        row=row,
        confidence=confidence,
        evidence=evidence(culprit.evidence[1:]),
    )


def evidence(texts: Iterable[str]) -> tuple[Evidence, ...]:
    """Observations of the probe."""
    return tuple(Evidence("probe", t) for t in texts)


def unnamed(probe: ProbeResult, fabric: Fabric, kinds: Sequence[str], what: str, even: Finding) -> Finding:
    """Where nobody is named: `even`, or a skip where not all ranks were measured for any of these kinds."""
    doubtful = next((c for c in fabric.undecided if c.kind in kinds), None)
    if doubtful is not None:
        return skip(
            f"cannot tell: {fabric.busy}; {rank_words(doubtful.ranks)}: {doubtful.ratio:.1f}x slower, "
            "which such a machine does to healthy ones",
            enable="run the probe again while nothing else runs here",
        )
    if set(kinds) & set(fabric.examined):
        return even
    if probe.world_size < 2:
        return skip("one rank: nobody to compare it with")
    if fabric.finished < probe.world_size:
        return skip(f"{what}: not all measured, {unfinished(probe, fabric)}", enable=RERUN)
    if set(kinds) & set(fabric.unfinished):
        return skip(f"{what}: only a part was measured in the time", enable="give more --deadline")
    return skip(f"too few ranks to compare {what}", enable="run the probe with more ranks, and with pairs")


def unfinished(probe: ProbeResult, fabric: Fabric) -> str:
    """Why ranks did not run through, in a few words."""
    causes = ", ".join(f"{rank_words(f.ranks)}: {f.kind}" for f in fabric.failures[:2])
    ran = f"{fabric.finished} of {probe.world_size} ranks ran through the probe"
    return f"{ran} ({causes})" if causes else ran


def early(stage: str) -> bool:
    """Whether a stage lies before the first collective: the job does not start."""
    return stage not in STAGES or STAGES.index(stage) <= STAGES.index("connect")


def admin(text: str, command: str | None = None) -> Fix:
    """A fix that needs somebody with access to the machine."""
    return Fix(text, command, Risk.SAFE, Owner.ADMIN)
