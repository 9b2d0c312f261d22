"""Words for faults of devices and networks, and for what ends a job from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import Words
from fsdp_doctor.subjects.diagnosis import Remedy
from fsdp_doctor.subjects.incident import Hit
from fsdp_doctor.tables.log_signatures import SIGNATURES
from fsdp_doctor.tables.xid import XIDS, Kind


def xid(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """What the number of an Xid means."""
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
        "Memory could not be registered with the adapter: mostly the limit of locked memory (ulimit -l) is "
        "too low.",
        Remedy(
            "Allow unlimited locked memory: ulimit -l unlimited, memlock in limits.conf or the daemon's "
            "unit, --ulimit memlock=-1 for a container",
            "ulimit -l",
        ),
    ),
    "modify_qp": (
        "The two ends could not be joined: another subnet, or a GID index that does not lead to the peer "
        "(RoCE).",
        Remedy(
            "Set NCCL_IB_GID_INDEX (3 is the usual one for RoCE v2) and NCCL_IB_HCA to adapters of one "
            "network",
            "show_gids",
        ),
    ),
}


def verbs(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """The call of the verbs library that failed."""
    del view
    told = _VERBS.get(
        next((h.fields["call"] for h in hits if h.fields.get("call")), first.fields.get("call", ""))
    )
    return words if told is None else replace(words, why=told[0], fixes=(told[1],))


# from outside


NODE_DOWN = (
    "The node does not answer Slurm any more; the ranks on the others wait for it or are told to stop.",
    Remedy(
        "Find the node and why it failed, leave it out and start again from the last checkpoint (sbatch "
        "--requeue, --exclude=NODE)",
        "sinfo -R; scontrol show node NODE; sacct -j JOB -o JobID,State,NodeList",
    ),
)
TIME_UP = (
    "All ranks were told to stop at the end of the time that the job had asked for. If it made no progress "
    "before, it hung: look at the last lines of all ranks.",
    Remedy(
        "Ask for more time (--time), or save on a warning signal (sbatch --signal=B:USR1@120) and requeue"
    ),
)


def scheduler(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """Why the scheduler ended the job, where it says so."""
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
            why="Slurm does not say why: scancel by a person, or a step that ended because one of its tasks "
            "did. What the ranks print afterwards are consequences.",
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
        "SIGTERM: the scheduler (preemption, a time limit, an eviction of the pod) or a person told the "
        "launcher to stop.",
        "Look at the scheduler's record of the job, and save a checkpoint on SIGTERM so that it can go on",
    ),
}


def interrupted(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """Which signal the launcher got, and who sends it."""
    del view, hits
    unnumbered = "2" if "KeyboardInterrupt" in first.text else "15" if "Terminated" in first.text else ""
    told = _SIGNALS.get(first.fields.get("sig", unnumbered))
    return words if told is None else replace(words, why=told[0], fixes=(Remedy(told[1]),))


def oom_killed(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """Whom the OOM killer ended, and how much memory it held."""
    del view
    if any("OOMKilled" in h.text for h in (first, *hits)):
        see = "kubectl describe pod POD; kubectl get pod POD -o jsonpath='{.spec.containers[*].resources}'"
        return replace(words, fixes=tuple(replace(f, command=see) for f in words.fixes))
    rss = next((int(h.fields["rss"]) for h in (first, *hits) if h.fields.get("rss", "").isdigit()), 0)
    return replace(words, title=f"{words.title}, which held {rss / 2**20:.1f} GiB") if rss else words
