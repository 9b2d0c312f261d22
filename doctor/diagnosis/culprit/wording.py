"""What the fields of a line say beyond the general words of its signature: title, reason, fixes and row."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.subjects.incident import LIKELY, ROOT, Frame, Hit, Remedy
from fsdp_doctor.tables.import_errors import PATTERNS, Cause
from fsdp_doctor.tables.log_signatures import SIGNATURES
from fsdp_doctor.tables.xid import XIDS, Kind

PREFIXES = (
    "_fsdp_wrapped_module.",
    "_checkpoint_wrapped_module.",
    "_orig_mod.",
    "base_model.model.",
    "module.",
    "model.",
)
QUOTA = re.compile(r"quota exceeded|EDQUOT|Errno 122\b", re.I)
LFS_POINTER = "'v'."
"""The first letter of "version https://git-lfs…", as the unpickler names it."""
LONGEST_TITLE = 240


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a conclusion while they are made."""

    title: str
    why: str
    fixes: tuple[Remedy, ...]
    row: str | None


def particulars(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """The words with what `first`, the most telling of `hits`, says itself."""
    particular = _PARTICULARS.get(first.code)
    if particular is not None:
        words = particular(view, hits, first, words)
    if len(words.title) > LONGEST_TITLE:
        words = replace(words, title=f"{words.title[:LONGEST_TITLE].rstrip(' .')}…")
    return words


# devices and networks


def _xid(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    del view, hits
    number, signature = int(first.fields["xid"]), SIGNATURES[first.code]
    meaning, place = XIDS.get(number), first.fields.get("bus")
    if meaning is None:
        general = (Remedy(signature.fix, signature.command),)
        return replace(words, title=f"Xid {number} of the GPU at {place}", why=signature.why, fixes=general)
    why = (
        "The driver reports a fault of the hardware; whatever the ranks print after it is a consequence."
        if meaning.kind is Kind.HARDWARE
        else "The driver reports a fault that a program caused."
    )
    return replace(
        words,
        title=f"Xid {number}: {meaning.what} (GPU at {place})",
        why=why,
        fixes=(Remedy(meaning.fix, signature.command),),
    )


_VERBS: Mapping[str, tuple[str, Remedy]] = {
    "reg_mr": (
        "Memory could not be registered with the adapter: mostly the limit of locked memory (ulimit -l) is too low.",
        Remedy(
            "Allow unlimited locked memory: ulimit -l unlimited, memlock in limits.conf or the daemon's unit, --ulimit memlock=-1 for a container",
            "ulimit -l",
        ),
    ),
    "modify_qp": (
        "The two ends could not be joined: another subnet, or a GID index that does not lead to the peer (RoCE).",
        Remedy(
            "Set NCCL_IB_GID_INDEX (3 is the usual one for RoCE v2) and NCCL_IB_HCA to adapters of one network",
            "show_gids",
        ),
    ),
}


def _verbs(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    del view
    told = _VERBS.get(
        next((h.fields["call"] for h in hits if h.fields.get("call")), first.fields.get("call", ""))
    )
    return words if told is None else replace(words, why=told[0], fixes=(told[1],))


# from outside


NODE_DOWN = (
    "The node does not answer Slurm any more; the ranks on the others wait for it or are told to stop.",
    Remedy(
        "Find the node and why it failed, leave it out and start again from the last checkpoint (sbatch --requeue, --exclude=NODE)",
        "sinfo -R; scontrol show node NODE; sacct -j JOB -o JobID,State,NodeList",
    ),
)
TIME_UP = (
    "All ranks were told to stop at the end of the time that the job had asked for. If it made no progress before, it hung: look at the last lines of all ranks.",
    Remedy(
        "Ask for more time (--time), or save on a warning signal (sbatch --signal=B:USR1@120) and requeue"
    ),
)


def _scheduler(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    del view
    said = " ".join(v for h in (first, *hits) for v in h.fields.values())
    if "NODE" in said:
        return replace(
            words,
            title="A node of the job went down, and the scheduler ended it (NODE FAILURE)",
            why=NODE_DOWN[0],
            fixes=(NODE_DOWN[1],),
        )
    if "TIME" in said:
        return replace(words, why=TIME_UP[0], fixes=(TIME_UP[1],))
    if not any(name.startswith("why") for name in first.fields):
        return replace(
            words,
            why="Slurm does not say why: scancel by a person, or a step that ended because one of its tasks did. What the ranks print afterwards are consequences.",
            fixes=(
                Remedy(
                    "Ask the accounting who cancelled it and how its tasks ended",
                    "sacct -j JOB -o JobID,State,ExitCode,Comment",
                ),
            ),
        )
    return words


_SIGNALS: Mapping[str, tuple[str, str]] = {
    "1": (
        "SIGHUP: the terminal or the ssh session that started it was closed.",
        "Start it so that it outlives the session: tmux or screen, nohup, or the scheduler",
    ),
    "2": ("SIGINT: Ctrl-C.", "Nothing is wrong with the program; somebody interrupted it"),
    "15": (
        "SIGTERM: the scheduler (preemption, a time limit, an eviction of the pod) or a person told the launcher to stop.",
        "Look at the scheduler's record of the job, and save a checkpoint on SIGTERM so that it can go on",
    ),
}


def _interrupted(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    del view, hits
    told = _SIGNALS.get(first.fields.get("sig", "2" if "KeyboardInterrupt" in first.text else ""))
    return words if told is None else replace(words, why=told[0], fixes=(Remedy(told[1]),))


def _oom_killed(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    del view
    if any("OOMKilled" in h.text for h in (first, *hits)):
        see = "kubectl describe pod POD; kubectl get pod POD -o jsonpath='{.spec.containers[*].resources}'"
        return replace(words, fixes=tuple(replace(f, command=see) for f in words.fixes))
    rss = next((int(h.fields["rss"]) for h in (first, *hits) if h.fields.get("rss", "").isdigit()), 0)
    return replace(words, title=f"{words.title}, which held {rss / 2**20:.1f} GiB") if rss else words


# the program


def _worker(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
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


def _worker_died(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    del view, hits
    if not first.fields.get("sig", "").startswith("Killed"):
        return words
    return replace(
        words,
        row="oom",
        why="SIGKILL comes almost always from the kernel's OOM killer or the container's memory limit: workers times prefetched batches did not fit into host memory. Rarely a person or the scheduler.",
    )


_OWNER = re.compile(r"(?:site|dist)-packages/([A-Za-z0-9]+(?:_[A-Za-z]+)*)")


def _import(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """What the loader's message means, for torch itself and for a package with compiled parts."""
    del view, hits
    for pattern in PATTERNS:
        found = pattern.text.search(first.text)
        if found is None:
            continue
        why = capital(pattern.meaning.format(found[1])) + "."
        if pattern.cause is Cause.MODULE:
            fix = f"Install {found[1].partition('.')[0]} into the environment that the launcher uses, on every node"
            return replace(words, why=why, fixes=(Remedy(fix, words.fixes[0].command),))
        if pattern.cause in (Cause.HANG, Cause.CRASH):
            return words
        package = _extension(first)
        if package is None or pattern.cause in (Cause.NCCL_SYMBOL, Cause.DRIVER_LIBRARY):
            return replace(words, why=why, fixes=(Remedy(pattern.fix, words.fixes[0].command),))
        why = f"{package} was built for another torch, CUDA or system than the one that is installed: {why[:1].lower()}{why[1:]}"
        fix = f"Install the build of {package} for this torch and CUDA, or build it here"
        if pattern.cause is Cause.GLIBC:
            fix = f"Build {package} on this system, take a wheel for an older C library, or use a newer base image"
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


# checkpoints


def _names(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    del view, first
    text = " ".join(h.fields.get("miss", "") + " " + h.fields.get("un", "") for h in hits)
    if "flat_param" in text:
        remedy = Remedy(
            "Load it into a model wrapped by FSDP in the same way on the same number of ranks (LOCAL_STATE_DICT), then save a FULL or SHARDED state dict; or consolidate the shards",
            "fsdp-doctor ckpt check DIR --world-size N",
        )
        title = "The checkpoint holds FSDP1's flat shards (_flat_param), which a plain model cannot load"
        return replace(words, title=title, fixes=(remedy, *words.fixes))
    prefix = next((p for p in PREFIXES if f'"{p}' in text or f".{p}" in text), None)
    if prefix is None:
        return words
    strip = f"Strip or add the prefix {prefix!r}, or load with torch.distributed.checkpoint.state_dict.set_model_state_dict"
    title = f"{words.title}: the prefix {prefix!r} is on one side only"
    return replace(words, title=title, fixes=(Remedy(strip), *words.fixes))


def _flat(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    del view, hits
    saved, current = first.fields.get("ck", ""), first.fields.get("md", "")
    if (saved.count(",") == 0) == (current.count(",") == 0):
        return words
    why = "one side is flat (1-D), the other whole: shards of FSDP1 (LOCAL_STATE_DICT, or a flat parameter) and a full or sharded state dict do not fit. "
    return replace(words, why=why + words.why)


def _damaged(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    del view, hits
    if first.fields.get("key") != LFS_POINTER:
        return words
    return replace(
        words,
        title="A checkpoint file is no checkpoint: it begins like the pointer that Git LFS leaves in its place",
        why="The repository was cloned without Git LFS, so that the file holds a few lines of text. A file that was cut while it was written or copied may look so too.",
        fixes=(
            Remedy("Fetch the real file: git lfs install, then git lfs pull", "head -c 120 FILE"),
            *words.fixes,
        ),
    )


def _full(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    del view
    if not any(QUOTA.search(h.text) for h in (first, *hits)):
        return words
    return replace(
        words,
        title="The quota of the file system is used up",
        why="The user's or the project's share of the file system is full, whatever df says is free; the file that was being written is incomplete.",
        fixes=(
            Remedy(
                "Free space or files of that user or project, keep fewer checkpoints, delete the incomplete one, or ask for a larger quota",
                "quota -s; lfs quota -h DIR",
            ),
        ),
    )


def _weights_only(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    del hits, first
    for hit in view.hits:
        if hit.code != "LOG602":
            continue
        if name := hit.fields.get("cls") or hit.fields.get("cls2"):
            allow = f"torch.serialization.add_safe_globals([{name}]), or load a file that you trust with weights_only=False"
            return replace(words, title=f"{words.title}: it holds {name}", fixes=(Remedy(allow),))
        if "op" in hit.fields:
            look = Remedy("Look at the file: a Git LFS pointer or text; run git lfs pull", "head -c 100 FILE")
            return replace(
                words, title=f"{words.title}: it is no torch file at all", fixes=(look, *words.fixes)
            )
    return words


OPTIMIZER = re.compile(r"torch/optim/|optimizer\.step|optim\.step")
RESUMED = re.compile(r"resum|ckpt|checkpoint|load_state", re.I)


def _exception(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """Exceptions without a signature whose place in the program tells what they are."""
    del view, hits
    sizes = re.search(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)", first.text)
    if sizes is None or not _through(first.frames, OPTIMIZER) or not _through(first.frames, RESUMED):
        return words
    return replace(
        words,
        title=f"The optimizer's state has another size ({sizes[1]}) than the shard it belongs to ({sizes[2]})",
        row="load",
        why="The optimizer's state was loaded as each rank had saved it, and the number of ranks or the wrapping differs since: the shards have other sizes.",
        fixes=(
            Remedy(
                "Load with FSDP.optim_state_dict_to_load or set_optimizer_state_dict, which reshard; or resume once with the same world size and sharding strategy and save a full or sharded state dict",
                "fsdp-doctor ckpt check DIR --world-size N",
            ),
        ),
    )


def _through(frames: Sequence[Frame], pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(f"{f.file} {f.function} {f.code}") for f in frames)


def capital(text: str) -> str:
    """A sentence's first letter as a capital, unless its first word is a name from the program."""
    first = text.split(" ", 1)[0]
    return text if re.search(r"[._/=(\d]", first) else text[:1].upper() + text[1:]


def _driver(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    del view, hits
    found = first.fields.get("found", "")
    if len(found) < 4:
        return words
    number = int(found)
    return replace(words, title=words.title.replace(found, f"{number // 1000}.{number % 1000 // 10}"))


Particular = Callable[[View, Sequence[Hit], Hit, Words], Words]
_PARTICULARS: Mapping[str, Particular] = {
    "LOG136": _verbs,
    "LOG207": _worker_died,
    "LOG211": _worker,
    "LOG214": _scheduler,
    "LOG219": _interrupted,
    "LOG231": _xid,
    "LOG240": _driver,
    "LOG298": _exception,
    "LOG311": _oom_killed,
    "LOG312": _oom_killed,
    "LOG502": _full,
    "LOG601": _weights_only,
    "LOG603": _damaged,
    "LOG605": _names,
    "LOG607": _flat,
    "LOG716": _import,
}
