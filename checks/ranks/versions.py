"""Versions that every rank must share: torch, CUDA, NCCL, driver, Python, libraries, code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fsdp_doctor.checks.ranks._groups import known, named, spans, split, subject
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.rank_set import RankDigest, RankSet
from fsdp_doctor.tables.rank_facts import LIBRARIES, LIBRARIES_SHOWN

SAME_IMAGE = Fix("Start every node from the same image or lock file, then compare again")


def _same(
    ranks: tuple[RankDigest, ...],
    what: str,
    value: Callable[[RankDigest], str | None],
    say: Callable[..., Finding],
    fix: Fix = SAME_IMAGE,
) -> Iterator[Finding]:
    """One finding where ranks differ, a pass that names the common value, a skip where it is not known."""
    if known(ranks, value) < 2:
        yield skip(f"fewer than two ranks say their {what}")
        return
    groups = split(ranks, value)
    if groups is None:
        yield ok(f"{what} {next(v for r in ranks if (v := value(r)) is not None)} on every rank that says it")
        return
    yield say(
        f"{what} differs: {groups.words()}", f"one {what} on all ranks", subject=groups.subject, fix=fix
    )


@check("RNK002", Row.START, needs=(RankSet,), tags=("ranks", "stack"))
def torch_differs(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks run different torch versions.

    What: compares torch.__version__ with its build tag over all ranks.
    Why: ranks of different torch issue different collectives in a different order, which hangs, or
    fails with "receiving N bytes instead of M".
    Fix: start every node from the same image.
    Sources: NCCL issue 1328; PyTorch distributed notes.
    """
    yield from _same(facts[RankSet].ranks, "torch", lambda r: r.torch, fail)


@check("RNK003", Row.NCCL, needs=(RankSet,), tags=("ranks", "stack"))
def nccl_differs(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks load different NCCL versions.

    What: compares the version of the libnccl.so.2 that each rank loaded, not the one torch was compiled
    against.
    Why: NCCL refuses to build a communicator from different versions, or hangs while it connects.
    Fix: install the same nvidia-nccl wheel on all nodes; remove LD_LIBRARY_PATH entries that shadow it.
    Sources: NCCL issues 354 and 1328; wheel metadata (NCCL differs by CUDA tag of one torch).
    """
    yield from _same(facts[RankSet].ranks, "NCCL", lambda r: r.nccl_runtime, fail)


@check("RNK004", Row.START, needs=(RankSet,), tags=("ranks", "stack"))
def cuda_differs(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks run torch built for different CUDA versions.

    What: compares torch.version.cuda over ranks.
    Why: the wheels of different CUDA tags bring different NCCL, cuBLAS and cuDNN: communication may not
    start, and results differ between ranks.
    Fix: install the same torch wheel everywhere.
    Sources: PyTorch RELEASE.md.
    """
    yield from _same(facts[RankSet].ranks, "CUDA of torch", lambda r: r.torch_cuda, warn)


@check("RNK005", Row.NCCL, needs=(RankSet,), tags=("ranks", "driver"))
def driver_differs(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks run on different NVIDIA drivers.

    What: compares the version of the kernel driver over ranks.
    Why: nodes on different drivers choose different NCCL features (cuMem, NVLS, multi-node NVLink), and
    differ in speed; the odd one is often a node that missed an upgrade.
    Fix: bring the odd nodes to the same driver.
    Sources: NCCL user guide, environment (cuMem support by driver).
    """
    fix = Fix("Bring the odd nodes to the same driver", None, Risk.DISRUPTIVE, Owner.ADMIN)
    yield from _same(facts[RankSet].ranks, "driver", lambda r: r.driver, warn, fix)


@check("RNK006", Row.START, needs=(RankSet,), tags=("ranks", "stack"))
def python_differs(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks run different Python versions.

    What: compares the interpreter's version over ranks.
    Why: objects that ranks pickle to each other (all_gather_object, DCP planning) may not load in another
    minor version; another patch release is harmless.
    Fix: use one image.
    Sources: Python documentation, pickle (compatibility).
    """
    ranks = facts[RankSet].ranks
    minor = split(ranks, lambda r: ".".join(r.python.split(".")[:2]) if r.python else None)
    patch = split(ranks, lambda r: r.python)
    if known(ranks, lambda r: r.python) < 2:
        yield skip("fewer than two ranks say their Python")
    elif minor is not None:
        yield warn(f"Python differs: {minor.words()}", "one Python", subject=minor.subject, fix=SAME_IMAGE)
    elif patch is not None:
        yield info(f"Python patch releases differ: {patch.words()}", subject=patch.subject)


@check("RNK007", Row.START, needs=(RankSet,), tags=("ranks", "stack"))
def torch_broken_somewhere(facts: Facts, options: Options) -> Iterator[Finding]:
    """PyTorch works on some ranks and not on others.

    What: lists ranks whose `import torch` failed while others have it.
    Why: the broken rank dies at start, and the others wait for it until the rendezvous times out.
    Fix: repair the environment of the named ranks.
    Sources: torch elastic, rendezvous.
    """
    ranks = facts[RankSet].ranks
    broken = [r for r in ranks if r.torch is None and r.torch_error]
    if broken and len(broken) < len(ranks):
        yield fail(
            f"{named(broken)}: {broken[0].torch_error}; the others have torch",
            "torch on every rank",
            subject=subject(broken),
            fix=SAME_IMAGE,
        )


@check("RNK008", Row.WRONG, needs=(RankSet,), tags=("ranks", "stack"))
def libraries_differ(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks have different versions of libraries that shape the model.

    What: compares the versions of the libraries that build models, kernels and data over ranks.
    Why: another transformers or flash-attn on one node gives it another model, other kernels or another
    order of data: shapes disagree in a collective, or results are silently wrong.
    Fix: use one image or one lock file.
    Sources: PyTorch issue 72768 (cross-node comparison asked for).
    """
    ranks = facts[RankSet].ranks
    if sum(bool(r.dists) for r in ranks) < 2:
        yield skip("fewer than two ranks list their distributions")
        return
    differing = []
    odd: set[int] = set()
    for name in LIBRARIES:
        groups = split(ranks, lambda r, n=name: r.dists.get(n, "absent") if r.dists else None)  # type: ignore[misc]
        if groups is not None:
            differing.append(f"{name} ({groups.words()})")
            odd |= {r.rank for r in groups.odd}
    if differing:
        more = f" and {len(differing) - LIBRARIES_SHOWN} more" if len(differing) > LIBRARIES_SHOWN else ""
        yield warn(
            f"different versions of {', '.join(differing[:LIBRARIES_SHOWN])}{more}",
            "the same versions on all ranks",
            subject=subject(r for r in ranks if r.rank in odd),
            fix=SAME_IMAGE,
        )


@check("RNK009", Row.WRONG, needs=(RankSet,), tags=("ranks", "code"))
def code_differs(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks run different commits of the training code.

    What: compares the commit of the git checkout in each rank's working folder.
    Why: ranks with different code issue different collectives (a hang) or train different models
    (silently wrong).
    Fix: bring all checkouts to one commit, or share one over the network.
    Sources: git, gitrepository-layout.
    """
    ranks = facts[RankSet].ranks
    if known(ranks, lambda r: r.code_version) < 2:
        yield skip("fewer than two ranks run in a git checkout")
        return
    groups = split(ranks, lambda r: r.code_version[:12] if r.code_version else None)
    if groups is not None:
        yield warn(
            f"commits differ: {groups.words()}",
            "one commit on all ranks",
            subject=groups.subject,
            fix=Fix("Check out the same commit on every node"),
        )
    else:
        yield ok(f"ranks {spans(r.rank for r in ranks if r.code_version)} run one commit")
