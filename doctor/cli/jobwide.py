"""The ranks of a recording as one job: digests gathered as ranks are judged, and the facts they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fsdp_doctor.engine.spec import CheckSpec
from fsdp_doctor.facts.digest import KINDS, digest
from fsdp_doctor.subjects.fact import Facts, Known, Unknown
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.rank_set import RankDigest, RankSet
from fsdp_doctor.subjects.scheduler import Identity, Scheduler

ALONE = Unknown(
    "there is one rank alone, and nothing to compare it with",
    "run check or record on all ranks, under torchrun, srun or mpirun",
    absent=True,
)
OTHERS = Unknown(
    "only one rank of this job was asked",
    "run check on all ranks under the launcher, or judge the recordings of all ranks: check --from",
)
LATE = Unknown("not every rank was read before the deadline", "give more --deadline")


def is_jobwide(check: CheckSpec) -> bool:
    """Whether a check judges all ranks together."""
    return RankSet in check.needs


class Job:
    """Takes the facts of rank after rank and keeps what ranks are compared by."""

    def __init__(self, checks: Iterable[CheckSpec], launch: Launch | None, gathered: bool) -> None:
        """`gathered` says that ranks which are not added did not report, rather than were not asked."""
        self.checks = tuple(c for c in checks if is_jobwide(c))
        self._launch, self._gathered = launch, gathered
        self._digests: dict[int, RankDigest] = {}
        self._shared: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
        self._scheduler: Known[Scheduler] | Unknown = Unknown("no rank was read")
        self._world = 0

    @property
    def kinds(self) -> tuple[type[object], ...]:
        """What has to be collected of each rank."""
        return KINDS if self.checks else ()

    def add(self, facts: Facts, rank: int | None) -> None:
        """Note one rank; `rank` is its number where the recording's folder says it."""
        if not self.checks:
            return
        identity = facts.find(Identity)
        if identity is not None and identity.world_size is not None:
            self._world = max(self._world, identity.world_size)
        if not self._digests:
            self._scheduler = facts.fact(Scheduler)
        self.keep(digest(facts, rank))

    def keep(self, noted: RankDigest) -> None:
        """Note one rank by its digest."""
        noted = replace(noted, dists=self._once(noted.dists), environment=self._once(noted.environment))
        self._digests.setdefault(noted.rank, noted)

    @property
    def digests(self) -> dict[int, RankDigest]:
        """Rank -> digest, in rank order."""
        return {r: self._digests[r] for r in sorted(self._digests)}

    def facts(self, silent: Mapping[int, str], complete: bool) -> Facts:
        """What the job-wide checks judge; `silent` are ranks that could not be read, with the reason."""
        ranks = tuple(self._digests[r] for r in sorted(self._digests))
        seen = {*self._digests, *silent}
        world = max(self._world, max(seen) + 1 if len(seen) > 1 else 0)
        whole: Known[RankSet] | Unknown = ALONE if complete else LATE
        if complete and world > 1 and not self._gathered:
            whole = OTHERS
        elif complete and world > 1 and ranks:
            scheduler = None if isinstance(self._scheduler, Unknown) else self._scheduler.value
            nodes = scheduler.node_list if scheduler is not None else ()
            whole = Known(RankSet(world, ranks, nodes, dict(silent)), "the ranks of the recording")
        return self.facts_of(whole)

    def facts_of(self, whole: Known[RankSet] | Unknown) -> Facts:
        """What the job-wide checks judge, with the ranks as they were gathered elsewhere."""
        launch = Unknown("no launch command was given") if self._launch is None else Known(self._launch)
        return Facts({RankSet: whole, Scheduler: self._scheduler, Launch: launch})

    def _once(self, items: Mapping[str, str]) -> Mapping[str, str]:
        """One mapping for all ranks that have the same."""
        return self._shared.setdefault(tuple(sorted(items.items())), items)
