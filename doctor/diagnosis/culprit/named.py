"""Whom the others name: the rank whose key or id they wait for, the peer to which broken connections lead."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.lines import (
    IB_FAILED,
    ID_MISSING,
    KEY_MISSING,
    LOCAL_PEER_CLOSED,
    SOCKET_CLOSED,
)
from fsdp_doctor.diagnosis.culprit.proofs import last_proof, proof
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.subjects.diagnosis import Conclusion
from fsdp_doctor.subjects.incident import Hit
from fsdp_doctor.tables import log_conclusions as codes

KEYS = re.compile(
    r"keys: (?:/\S*?)?//cpu//\d+/(?P<cpu>\d+)|keys: \S*?//cuda//(?P<cuda>\d+)\b(?::(?P<peer>\d+))?"
)
"""Keys of gloo's addresses, which end in a rank, and of NCCL's ids: rank 0's, or those of two ranks."""
KEY, ID = 79, 78
PEER_RANK, PEER_HOST = 71, 54
"""Scores of a peer whose rank is known, and of one of which only the name is."""


def candidates(view: View) -> list[Candidate]:
    """What ids, keys and broken connections point to."""
    ways = (_id(view), _key(view), _peer(view))
    return [c for c in ways if c is not None]


# the store


def _id(view: View) -> Candidate | None:
    """The rank whose NCCL id the others did not get."""
    hits = [h for h in view.hits if h.code == ID_MISSING]
    sources = {int(h.fields["src"]) for h in hits}
    waiting = frozenset(h.origin.rank for h in hits if h.origin.rank is not None)
    if len(sources) != 1 or sources & waiting:
        return None
    (source,) = sources
    conclusion = derived(
        codes.NOT_PUBLISHED,
        f"Rank {source} did not come to the start of the process group; the others waited for its NCCL id",
        "medium",
        culprits=sources,
        victims=waiting,
        evidence=(*map(proof, hits), *last_proof(view, source)),
    )
    return Candidate(ID, conclusion, hits[0].order, frozenset(sources))


def _key(view: View) -> Candidate | None:
    """The rank whose key the others wait for in the store."""
    hits = [h for h in view.hits if h.code == KEY_MISSING]
    keys = [m for h in hits if (m := KEYS.search(h.text))]
    ranks = {int(m["cpu"] or 0) for m in keys}
    if len(ranks) != 1:
        return None
    if all(m["peer"] for m in keys):
        return _pair(view, hits, {(int(m["cuda"]), int(m["peer"])) for m in keys})
    (rank,) = ranks
    never_started = view.exits and rank not in view.ranks and all(e.rank != rank for e in view.exits)
    more = (
        ": it was never started; is the world size right?"
        if never_started
        else "; it came too late or hangs before it"
    )
    conclusion = derived(
        codes.NOT_PUBLISHED,
        f"Rank {rank} did not come to init_process_group, where the others waited for it{more}",
        "medium",
        row="start",
        culprits=ranks,
        victims=view.suffering - ranks,
        evidence=(*map(proof, hits), *last_proof(view, rank)),
    )
    return Candidate(KEY, conclusion, hits[0].order, frozenset(ranks))


def _pair(view: View, hits: Sequence[Hit], pairs: set[tuple[int, int]]) -> Candidate | None:
    """Two ranks' communicator, made at their first unbatched send or receive: the lower publishes its id."""
    if len(pairs) != 1:
        return None
    ((rank, other),) = pairs
    if any(h.origin.rank == rank for h in hits):
        return None
    conclusion = derived(
        codes.NEVER_ENTERED,
        f"Rank {rank} never posted its half of the first send or receive with rank {other}, which waits for "
        "it",
        "medium",
        why="NCCL makes a communicator of the two ranks when both come to their first send or receive; the "
        "id of "
        f"that one ({rank}:{other}) was never published, so rank {rank} was elsewhere.",
        culprits=(rank,),
        victims=view.suffering - {rank},
        evidence=(*map(proof, hits), *last_proof(view, rank)),
    )
    return Candidate(KEY, conclusion, hits[0].order, frozenset((rank, other)))


# connections


def _peer(view: View) -> Candidate | None:
    """The local rank, or the host, that most broken connections lead to."""
    hits = [h for h in view.hits if h.code == LOCAL_PEER_CLOSED]
    if len({h.fields["lr"] for h in hits}) == 1:
        return _local_peer(view, hits, int(hits[0].fields["lr"]))
    return _remote_peer(view)


def _local_peer(view: View, hits: Sequence[Hit], local: int) -> Candidate:
    rank, host = _global_rank(view, hits, local), hits[0].origin.host
    if rank is None:
        return Candidate(PEER_HOST, _peer_lost(view, hits, f"local rank {local}", host), hits[0].order)
    conclusion = _peer_lost(view, hits, f"local rank {local} (rank {rank})", host, (rank,))
    return Candidate(PEER_RANK, conclusion, hits[0].order)


def _remote_peer(view: View) -> Candidate | None:
    """The host that most lines name, where at least two hosts name it."""
    peers: dict[str, list[Hit]] = {}
    for hit in view.hits:
        peer = hit.fields.get("peer") or hit.fields.get("peer2")
        if hit.code in (SOCKET_CLOSED, IB_FAILED) and peer:
            peers.setdefault(peer.partition("<")[0], []).append(hit)
    host, named = max(peers.items(), key=lambda p: len(p[1]), default=("", []))
    most = 2 * len(named) > sum(map(len, peers.values()))
    if not most or len({h.origin.host for h in named}) < 2:
        return None
    return Candidate(PEER_HOST, _peer_lost(view, named, host, host), named[0].order)


def _global_rank(view: View, hits: Sequence[Hit], local: int) -> int | None:
    """The rank behind a local one of the host that names it, for one host or known ranks of several."""
    here = {h.origin.host for h in hits}
    hosts = view.incident.job.hosts
    if len(here) != 1 or len({*hosts.values(), *here}) > 1:
        own = sorted(r for r, host in hosts.items() if host in here)
        whole = len(here) == 1 and len(own) > local and own[-1] - own[0] == len(own) - 1
        return own[local] if whole and own[0] % len(own) == 0 else None
    one_host = view.incident.job.nodes in (None, 1) and view.world is not None and local < view.world
    return local if one_host and local not in view.suffering else None


def _peer_lost(
    view: View, hits: Sequence[Hit], who: str, host: str | None, ranks: tuple[int, ...] = ()
) -> Conclusion:
    return derived(
        codes.PEER_NAMED,
        f"Most ranks name {who} as the peer that went away",
        "medium",
        host=host,
        culprits=ranks,
        victims=view.suffering,
        evidence=map(proof, hits),
    )
