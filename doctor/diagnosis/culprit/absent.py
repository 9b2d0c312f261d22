"""Silence and exits: who should be there and said nothing, and how processes ended."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from fsdp_doctor.diagnosis import phases
from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.lines import PEER_LOST
from fsdp_doctor.diagnosis.culprit.proofs import exit_proof, last_proof, proof, unique_proofs
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import rank_words
from fsdp_doctor.subjects.incident import LIKELY, ROOT, VICTIM, Exit, Hit
from fsdp_doctor.tables import log_conclusions as codes

SIGNALS = {-4: "SIGILL", -7: "SIGBUS", -8: "SIGFPE", -11: "SIGSEGV"}
KILL = (-9, 9, 137)
ABORT = (-6, 134)
NATIVE = (-4, -7, -8, -11, 139, 135)
STORE_LOST = "LOG144"
FEW = 0.25
"""Share of the ranks up to which those that said nothing are suspects, and not just logs that are missing."""


def candidates(view: View) -> list[Candidate]:
    """What exits and silence say."""
    ways = (_by_exit(view), _silent(view), _elsewhere(view), _unpublished(view), _key(view), _peer(view))
    found = [c for c in ways if c is not None]
    return found


# exits


def _by_exit(view: View) -> Candidate | None:
    exits = [e for e in view.failed_exits if not _own_words(view, e) and not _escalated(view, e)]
    if not exits:
        return None
    best = min(exits, key=lambda e: (_order_of(e, view), not e.first, e.origin.line))
    group = [e for e in exits if e.code == best.code] if best.code in (*KILL, *NATIVE) else [best]
    ranks = frozenset(e.rank for e in group if e.rank is not None)
    proofs = unique_proofs(
        (*(exit_proof(e) for e in group), *(p for r in sorted(ranks) for p in last_proof(view, r)))
    )
    who = rank_words(ranks).capitalize() if ranks else "A process"
    victims = tuple(sorted(view.suffering - ranks))
    host = next((e.host for e in group if e.host), None)
    order = 0
    if best.code in KILL:
        conclusion = derived(
            codes.KILLED,
            f"{who} {'were' if len(ranks) > 1 else 'was'} killed (SIGKILL): most likely out of host memory",
            "medium",
            culprits=tuple(sorted(ranks)),
            victims=victims,
            host=host,
            evidence=proofs,
            alternatives=("the scheduler or a person killed it",),
            record_next=("the kernel log of that host: dmesg -T",),
        )
        return Candidate(77, conclusion, order, ranks, own=True)
    if best.code in NATIVE:
        name = SIGNALS.get(best.code or 0, f"signal {(best.code or 128) - 128}")
        more = ": /dev/shm is full or a mapped file was truncated" if name == "SIGBUS" else ""
        conclusion = derived(
            codes.CRASHED,
            f"{who} crashed natively ({name}){more}" + _crash_site(view, ranks),
            "high",
            culprits=tuple(sorted(ranks)),
            victims=victims,
            host=host,
            evidence=proofs,
        )
        return Candidate(78, conclusion, order, ranks, own=True)
    if best.code in ABORT:
        conclusion = derived(
            codes.CRASHED,
            f"{who} aborted itself (SIGABRT)",
            "low",
            culprits=(),
            victims=victims,
            host=host,
            evidence=proofs,
        )
        return Candidate(30, conclusion, order, ranks)
    if best.code == 1:
        conclusion = derived(
            codes.ERROR_HIDDEN,
            f"{who} failed with an error that is not in these logs (exit code 1)",
            "medium",
            culprits=tuple(sorted(ranks)),
            victims=victims,
            host=host,
            evidence=proofs,
        )
        return Candidate(64 if view.consequences else 52, conclusion, order, ranks, own=True)
    words = f"{who} ended with exit code {best.code} and no traceback (sys.exit or os._exit)"
    conclusion = derived(
        codes.EXITED,
        words,
        "high" if ranks else "medium",
        culprits=tuple(sorted(ranks)),
        victims=victims,
        host=host,
        evidence=proofs,
    )
    return Candidate(73, conclusion, order, ranks, own=True)


def _crash_site(view: View, ranks: frozenset[int]) -> str:
    """Where a crash was, by the stack that faulthandler printed: its innermost frame is what called into C."""
    frames = next((f for r in sorted(ranks) if (f := view.frames_of(r))), ())
    if not frames:
        return ""
    own, inner = phases.own_frame(frames), frames[-1]
    called = f", called from {phases.frame_words(own)}" if own is not None and own is not inner else ""
    return f" in {phases.frame_words(inner)}{called}"


def _escalated(view: View, entry: Exit) -> bool:
    """Whether the launcher killed a rank that did not heed its order to stop, after others had timed out."""
    if entry.code not in KILL or entry.first or not view.waited:
        return False
    return any(e.first and e.code not in KILL for e in view.exits)


def _order_of(entry: Exit, view: View) -> int:
    if entry.code in (*KILL, *NATIVE):
        return 0
    if entry.code in ABORT:
        return 3
    return 1 if entry.code != 1 else 2


def _own_words(view: View, entry: Exit) -> bool:
    """Whether a rank's own lines already say why it ended: its error, or that it gave up waiting."""
    if entry.rank is None:
        return entry.code == 1 and any(h.kind in (ROOT, LIKELY, VICTIM) for h in view.hits)
    own = [
        h
        for h in view.hits
        if h.origin.rank == entry.rank
        and h.kind in (ROOT, LIKELY, VICTIM)
        and h.code not in ("LOG202", "LOG205")
    ]
    if entry.code in KILL or entry.code in NATIVE:
        return False
    if (
        not own
        and entry.code == 1
        and any(h.origin.rank is None and h.kind in (ROOT, LIKELY) for h in view.hits)
    ):
        return True  # an error without a rank's name is most likely this one's
    return bool(own)


# silence


def _silent(view: View) -> Candidate | None:
    waiting = view.waited | view.lost_peer
    if not waiting or view.world is None:
        return None
    spoke = frozenset(
        h.origin.rank
        for h in view.hits
        if h.origin.rank is not None
        and (h.kind in (ROOT, LIKELY, VICTIM))
        and h.code not in ("LOG202", "LOG205")
        and not (h.code == STORE_LOST and view.waited)
    )
    failed = frozenset(e.rank for e in view.failed_exits if e.rank is not None and not _escalated(view, e))
    if view.waited:  # they gave up; who lost the store then was still at work
        waiting = view.waited | frozenset(
            h.origin.rank
            for h in view.hits
            if h.code in PEER_LOST and h.code != STORE_LOST and h.origin.rank is not None
        )
    missing = view.expected - spoke - waiting - failed
    if not missing or len(waiting) < max(1, len(view.expected - missing) / 2):
        return None
    seen = frozenset(r for r in missing if r in view.ranks)
    suspects = seen or missing
    if len(suspects) > 1 and (fewer := _least_advanced(view, suspects)):
        suspects = fewer
    node = _whole_node(view, missing)
    if node is not None:
        return _node(view, node, missing, waiting)
    if len(suspects) > max(1, FEW * len(view.expected)) or (
        not seen and len(view.expected) - len(missing) < 2
    ):
        return None
    if not seen and not (view.incident.job.stated or len(missing) == 1):
        return None
    return _suspects(view, suspects, waiting, bool(seen))


def _suspects(view: View, suspects: frozenset[int], waiting: frozenset[int], seen: bool) -> Candidate:
    one = min(suspects)
    timed_out = view.waited
    ended = [e for e in view.exits if e.rank in suspects]
    told_to_stop = any(e.code in (-15, 15, 143) or _escalated(view, e) for e in ended)
    left = (
        bool(view.lost_peer) and (not timed_out or len(view.lost_peer) > len(timed_out)) and not told_to_stop
    )
    left = left or bool(suspects & frozenset(view.incident.done))
    words = view.last_words(one)
    phase = view.phase_of(one)
    who = rank_words(suspects).capitalize()
    if left:
        code, title = codes.LEFT_EARLY, f"{who} ended without an error while the others still waited for it"
    else:
        code, title = (
            codes.NEVER_ENTERED,
            f"{who} never entered the collective in which {rank_words(waiting)} timed out",
        )
    if phase is not None:
        title += f" (it was busy with: {phase})"
    stopped = " torchrun had to stop it, so it was alive and stuck." if told_to_stop else ""
    if any(_escalated(view, e) for e in ended):
        stopped = (
            " It did not even heed SIGTERM and was killed: a stopped process, or one stuck in the kernel."
        )
    said = (
        f" Its last words: “{words}”."
        if words
        else " It printed nothing that is in these logs."
        if not seen
        else ""
    )
    kind_why = codes.CONCLUSIONS[code].why
    first = next((h for h in view.hits if h.origin.rank in waiting and h.kind == VICTIM), None)
    exits = tuple(exit_proof(e) for e in ended)
    conclusion = derived(
        code,
        title,
        "medium" if not (told_to_stop and words) else "high",
        why=f"{rank_words(waiting).capitalize()} say that they waited, {rank_words(suspects)} does not.{stopped}{said} {kind_why}",
        culprits=tuple(sorted(suspects)),
        victims=tuple(sorted(waiting)),
        host=view.incident.job.hosts.get(one),
        evidence=unique_proofs(
            (
                *(p for r in sorted(suspects) for p in last_proof(view, r)),
                *((proof(first),) if first else ()),
                *exits,
            )
        ),
        record_next=("the stack of that rank while it hangs: py-spy dump --pid PID",),
    )
    if phase == phases.SAVE:
        conclusion = replace(conclusion, row="save")
    score = 70 if seen else 56
    return Candidate(score + (4 if told_to_stop or words else 0), conclusion, 0, suspects)


def _least_advanced(view: View, ranks: frozenset[int]) -> frozenset[int]:
    """Of several silent ranks, those whose last step is behind everyone's."""
    last = {r: max(p.step for p in points) for r, points in view.steps.items()}
    behind = {r: last[r] for r in ranks if r in last}
    others = [s for r, s in last.items() if r not in ranks]
    if not behind or not others:
        return frozenset()
    lowest = min(behind.values())
    chosen = frozenset(r for r, s in behind.items() if s == lowest)
    return chosen if lowest < min(others) and len(chosen) < len(ranks) else frozenset()


def _whole_node(view: View, missing: frozenset[int]) -> str | None:
    """The host whose ranks, and only those, are missing."""
    hosts = view.incident.job.hosts
    names = {hosts.get(r) for r in missing}
    if len(names) != 1 or len(missing) < 2 or len(set(hosts.values())) < 2:
        return None
    name = names.pop()
    return name if name is not None and {r for r, h in hosts.items() if h == name} <= missing else None


def _node(view: View, host: str, missing: frozenset[int], waiting: frozenset[int]) -> Candidate:
    conclusion = derived(
        codes.NODE_LOST,
        f"All ranks of {host} ({rank_words(missing)}) went silent while the others waited",
        "high",
        culprits=tuple(sorted(missing)),
        host=host,
        victims=tuple(sorted(waiting)),
        evidence=unique_proofs(p for r in sorted(missing) for p in last_proof(view, r)),
    )
    return Candidate(79, conclusion, 0, missing)


def _elsewhere(view: View) -> Candidate | None:
    """Ranks whose tracebacks show that they waited at another place of the program than the majority."""
    sites = {r: site for r in view.waited | view.lost_peer if (site := _site(view, r)) is not None}
    if len(sites) < 3:
        return None
    (common, count), *_ = Counter(sites.values()).most_common(1)
    odd = frozenset(r for r, site in sites.items() if site != common)
    if not odd or count * 2 <= len(sites):
        return None
    waited = frozenset(sites) - odd
    one = min(odd)
    own = phases.own_frame(view.frames_of(one))
    words = view.last_words(one)
    left = re.search(r"\b(?:end|done|finish\w*|complet\w*|exhaust\w*|over)\b", words, re.I) is not None
    code = codes.UNEVEN if left else codes.NEVER_ENTERED
    title = f"{rank_words(odd).capitalize()} did not enter the collective in which {rank_words(waited)} timed out: it was in {phases.frame_words(own)}"
    conclusion = derived(
        code,
        title,
        "high",
        why=(f"Its last words: “{words}”. " if words else "")
        + f"The majority waited in {phases.frame_words(phases.own_frame(view.frames_of(min(waited))))}. {codes.CONCLUSIONS[code].why}",
        culprits=tuple(sorted(odd)),
        victims=tuple(sorted(waited)),
        evidence=unique_proofs(
            p
            for r in sorted(odd)
            for h in view.hits
            if h.origin.rank == r and h.kind == VICTIM and h.frames
            for p in (proof(h),)
        ),
    )
    if any(
        "state_dict" in f"{f.function} {f.code}" or "distributed/checkpoint" in f.file
        for f in view.frames_of(one)
    ):
        conclusion = replace(conclusion, row="save")
    return Candidate(76, conclusion, 0, odd)


def _site(view: View, rank: int) -> tuple[str, int | None] | None:
    own = phases.own_frame(view.frames_of(rank))
    return (own.file, own.line) if own is not None else None


_KEYS = re.compile(
    r"keys: (?:/\S*?)?//cpu//\d+/(?P<cpu>\d+)|keys: \S*?//cuda//(?P<cuda>\d+)\b(?::(?P<peer>\d+))?"
)


def _key(view: View) -> Candidate | None:
    """The rank whose key the others wait for in the store."""
    hits = [h for h in view.hits if h.code == "LOG143"]
    keys = [m for h in hits if (m := _KEYS.search(h.text))]
    ranks = {int(m["cpu"] or 0) for m in keys}
    if len(ranks) != 1:
        return None
    if all(m["peer"] for m in keys):
        return _pair(view, hits, {(int(m["cuda"]), int(m["peer"])) for m in keys})
    rank = ranks.pop()
    started = {e.rank for e in view.exits} | set(view.ranks)
    absent = bool(view.exits) and rank not in started
    more = (
        ": it was never started; is the world size right?"
        if absent
        else "; it came too late or hangs before it"
    )
    conclusion = derived(
        codes.NOT_PUBLISHED,
        f"Rank {rank} did not come to init_process_group, where the others waited for it{more}",
        "medium",
        row="start",
        culprits=(rank,),
        victims=tuple(sorted(view.suffering - {rank})),
        evidence=unique_proofs((*(proof(h) for h in hits), *last_proof(view, rank))),
    )
    return Candidate(79, conclusion, hits[0].order, frozenset((rank,)))


def _pair(view: View, hits: list[Hit], pairs: set[tuple[int, int]]) -> Candidate | None:
    """Two ranks' own communicator, made at their first unbatched send or receive: the lower one publishes its id."""
    if len(pairs) != 1:
        return None
    rank, other = pairs.pop()
    if any(h.origin.rank == rank for h in hits):
        return None
    conclusion = derived(
        codes.NEVER_ENTERED,
        f"Rank {rank} never posted its half of the first send or receive with rank {other}, which waits for it",
        "medium",
        why="NCCL makes a communicator of the two ranks when both come to their first send or receive; the id of "
        f"that one ({rank}:{other}) was never published, so rank {rank} was elsewhere.",
        culprits=(rank,),
        victims=tuple(sorted(view.suffering - {rank})),
        evidence=unique_proofs((*(proof(h) for h in hits), *last_proof(view, rank))),
    )
    return Candidate(79, conclusion, hits[0].order, frozenset((rank, other)))


# pointers


def _unpublished(view: View) -> Candidate | None:
    """Ranks that wait for another's id or key."""
    hits = [h for h in view.hits if h.code == "LOG149"]
    sources = {int(h.fields["src"]) for h in hits}
    waiting = frozenset(h.origin.rank for h in hits if h.origin.rank is not None)
    if len(sources) != 1 or not hits:
        return None
    source = sources.pop()
    if source in waiting:
        return None
    conclusion = derived(
        codes.NOT_PUBLISHED,
        f"Rank {source} did not come to the start of the process group; the others waited for its NCCL id",
        "medium",
        culprits=(source,),
        victims=tuple(sorted(waiting)),
        evidence=unique_proofs((*(proof(h) for h in hits), *last_proof(view, source))),
    )
    return Candidate(78, conclusion, hits[0].order, frozenset((source,)))


def _peer(view: View) -> Candidate | None:
    """The local rank, or the host, that most broken connections lead to."""
    hits = [h for h in view.hits if h.code == "LOG125"]
    locals_ = {h.fields["lr"] for h in hits}
    if hits and len(locals_) == 1:
        local = locals_.pop()
        return _peer_candidate(view, hits, f"local rank {local}", None, _global_rank(view, hits, int(local)))
    peers: dict[str, list[Hit]] = {}
    for hit in view.hits:
        peer = hit.fields.get("peer") or hit.fields.get("peer2")
        if hit.code in ("LOG124", "LOG134") and peer:
            peers.setdefault(peer.partition("<")[0], []).append(hit)
    total = sum(map(len, peers.values()))
    if total >= 2:
        name, named = max(peers.items(), key=lambda p: len(p[1]))
        if len(named) * 2 > total and len({h.origin.host for h in named}) >= 2:
            return _peer_candidate(view, named, name, name)
    return None


def _global_rank(view: View, hits: list[Hit], local: int) -> int | None:
    """The rank behind a local one of the host that names it, where the job has one host or its ranks are known."""
    here = {h.origin.host for h in hits}
    hosts = view.incident.job.hosts
    if len(here) != 1 or len({*hosts.values(), *here}) > 1:
        own = sorted(r for r, host in hosts.items() if host in here)
        whole = len(here) == 1 and len(own) > local and own[-1] - own[0] == len(own) - 1
        return own[local] if whole and own[0] % len(own) == 0 else None
    one_host = view.incident.job.nodes in (None, 1) and view.world is not None and local < view.world
    return local if one_host and local not in view.suffering else None


def _peer_candidate(
    view: View, hits: list[Hit], name: str, host: str | None, rank: int | None = None
) -> Candidate:
    who = f"{name} (rank {rank})" if rank is not None else name
    conclusion = derived(
        codes.PEER_NAMED,
        f"Most ranks name {who} as the peer that went away",
        "medium",
        host=host or hits[0].origin.host,
        culprits=(rank,) if rank is not None else (),
        victims=tuple(sorted(view.suffering)),
        evidence=unique_proofs(proof(h) for h in hits),
    )
    return Candidate(54 if rank is None else 71, conclusion, hits[0].order)
