"""Variables that ranks must agree in."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.ranks._groups import split
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Row, Subject, fail, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.rank_set import RankDigest, RankSet
from fsdp_doctor.tables.rank_facts import AGREE_PREFIX, PER_RANK_PREFIXES, PER_RANK_VARIABLES

UNSET = "unset"


def _names(ranks: tuple[RankDigest, ...], nccl: bool) -> list[str]:
    """The variables to compare, in order."""
    names = {n for r in ranks for n in r.environment}
    return sorted(
        n
        for n in names
        if n.startswith(AGREE_PREFIX) is nccl
        and n not in PER_RANK_VARIABLES
        and not n.startswith(PER_RANK_PREFIXES)
    )


def _differences(ranks: tuple[RankDigest, ...], nccl: bool) -> Iterator[tuple[str, str, Subject]]:
    for name in _names(ranks, nccl):
        groups = split(ranks, lambda r, n=name: r.environment.get(n, UNSET))  # type: ignore[misc]
        if groups is not None:
            yield name, groups.words(), groups.subject


def _subject(where: Subject, name: str) -> Subject:
    return Subject(host=where.host, rank=where.rank, variable=name)


@check("RNK030", Row.NCCL, needs=(RankSet,), tags=("ranks", "variables"))
def nccl_variables_differ(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks have different NCCL_ variables.

    What: compares all NCCL_ variables, from the environment and NCCL's files, over ranks. Interface and
    adapter lists, file names and the log level may differ.
    Why: ranks that choose different algorithms, protocols or transports exchange messages of different
    size, or wait for each other for ever.
    Fix: export the variables in one place, for all nodes.
    Sources: NCCL issue 1328; NCCL user guide, environment variables.
    """
    ranks = facts[RankSet].ranks
    if sum(bool(r.environment) for r in ranks) == 0:
        yield skip("no rank has variables of NCCL or torch")
        return
    found = False
    for name, words, where in _differences(ranks, nccl=True):
        found = True
        yield fail(
            f"{name} differs: {words}",
            f"the same {name} on all ranks",
            subject=_subject(where, name),
            fix=Fix(f"Set {name} alike on all nodes, or unset it"),
        )
    if not found:
        yield ok("the NCCL_ variables are the same on all ranks")


@check("RNK031", Row.WRONG, needs=(RankSet,), tags=("ranks", "variables"))
def other_variables_differ(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks have different variables of torch, gloo, CUDA or a transport.

    What: compares TORCH_, PYTORCH_, GLOO_, CUDA_, FI_, UCX_, OMP_, FSDP_ and ACCELERATE_ variables.
    Why: a node with other settings times out earlier, allocates differently, computes in another
    precision or takes another transport than its peers.
    Fix: export them in one place.
    Sources: torch.distributed and CUDA documentation of environment variables.
    """
    for name, words, where in _differences(facts[RankSet].ranks, nccl=False):
        yield warn(
            f"{name} differs: {words}",
            f"the same {name} on all ranks",
            subject=_subject(where, name),
            fix=Fix(f"Set {name} alike on all nodes"),
        )
