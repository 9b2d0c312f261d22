"""Words for errors of the program, its workers and the packages that it loads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import Words, capital
from fsdp_doctor.subjects.diagnosis import Remedy
from fsdp_doctor.subjects.incident import LIKELY, ROOT, Frame, Hit
from fsdp_doctor.tables.import_errors import PATTERNS, Cause


def worker(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """The exception inside a DataLoader worker is the one below its header."""
    del hits
    inner = next(
        (
            h
            for h in view.hits
            if h.origin.file == first.origin.file
            and h.origin.rank == first.origin.rank
            and first.origin.line < h.origin.line < first.origin.line + 60
            and h.code != first.code
            and h.kind in (ROOT, LIKELY)
        ),
        None,
    )
    return words if inner is None else replace(words, title=f"{words.title}: {inner.text.strip()[:200]}")


def worker_died(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """A DataLoader worker that was killed: mostly host memory."""
    del view, hits
    if not first.fields.get("sig", "").startswith("Killed"):
        return words
    return replace(
        words,
        row="oom",
        why="SIGKILL comes almost always from the kernel's OOM killer or the container's memory limit: "
        "workers times prefetched batches did not fit into host memory. Rarely a person or the "
        "scheduler.",
    )


_OWNER = re.compile(r"(?:site|dist)-packages/([A-Za-z0-9]+(?:_[A-Za-z]+)*)")


def imports(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """What the loader's message means, for torch itself and for a package with compiled parts."""
    del view, hits
    for pattern in PATTERNS:
        found = pattern.text.search(first.text)
        if found is None:
            continue
        why = capital(pattern.meaning.format(found[1])) + "."
        if pattern.cause is Cause.MODULE:
            fix = (
                f"Install {found[1].partition('.')[0]} into the environment that the launcher uses, on "
                "every node"
            )
            return replace(words, why=why, fixes=(Remedy(fix, words.fixes[0].command),))
        if pattern.cause in (Cause.HANG, Cause.CRASH):
            return words
        package = _extension(first)
        if package is None or pattern.cause in (Cause.NCCL_SYMBOL, Cause.DRIVER_LIBRARY):
            return replace(words, why=why, fixes=(Remedy(pattern.fix, words.fixes[0].command),))
        why = (
            f"{package} was built for another torch, CUDA or system than the one that is installed: "
            f"{why[:1].lower()}{why[1:]}"
        )
        fix = f"Install the build of {package} for this torch and CUDA, or build it here"
        if pattern.cause is Cause.GLIBC:
            fix = (
                f"Build {package} on this system, take a wheel for an older C library, or use a newer "
                "base image"
            )
        build = f"pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps {package}"
        return replace(words, why=why, fixes=(Remedy(fix, build),))
    return words


def _extension(hit: Hit) -> str | None:
    """The package whose compiled part does not load, where it is not torch."""
    named = _OWNER.search(hit.text)
    asked = re.search(r"(?:import|from)\s+([A-Za-z]\w*)", hit.frames[-1].code) if hit.frames else None
    name = named[1] if named else asked[1] if asked else ""
    name = re.sub(r"_?\d*_?cuda$", "", name)
    return None if not name or name in ("torch", "nvidia", "ctypes") else name.replace("_", "-")


OPTIMIZER = re.compile(r"torch/optim/|optimizer\.step|optim\.step")
RESUMED = re.compile(r"resum|ckpt|checkpoint|load_state", re.I)


def exception(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """Exceptions without a signature whose place in the program tells what they are."""
    del view, hits
    sizes = re.search(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)", first.text)
    if sizes is None or not _through(first.frames, OPTIMIZER) or not _through(first.frames, RESUMED):
        return words
    return replace(
        words,
        title=f"The optimizer's state has another size ({sizes[1]}) than the shard it belongs to "
        f"({sizes[2]})",
        row="load",
        why="The optimizer's state was loaded as each rank had saved it, and the number of ranks or the "
        "wrapping differs since: the shards have other sizes.",
        fixes=(
            Remedy(
                "Load with FSDP.optim_state_dict_to_load or set_optimizer_state_dict, which reshard; or "
                "resume once with the same world size and sharding strategy and save a full or sharded "
                "state dict",
                "fsdp-doctor ckpt check DIR --world-size N",
            ),
        ),
    )


def _through(frames: Sequence[Frame], pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(f"{f.file} {f.function} {f.code}") for f in frames)


def driver(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """The CUDA release that the driver supports, as people write it."""
    del view, hits
    found = first.fields.get("found", "")
    if len(found) < 4:
        return words
    number = int(found)
    return replace(words, title=words.title.replace(found, f"{number // 1000}.{number % 1000 // 10}"))
