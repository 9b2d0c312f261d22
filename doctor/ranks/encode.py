"""What a rank says of itself, as JSON: its digest and its results, checked field by field when they come."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fsdp_doctor.codec import FormatError, from_json, to_json
from fsdp_doctor.findings import Result
from fsdp_doctor.subjects.network import Interface
from fsdp_doctor.subjects.rank_set import RankDigest

INTERFACES = 64
RESULTS = 4096


def digest_to_json(digest: RankDigest) -> object:
    """Without the counters of the interfaces, which nobody compares, and without a container host's veths."""
    first = sorted(digest.interfaces, key=lambda i: not (i.ipv4 or i.ipv6))[:INTERFACES]
    kept = tuple(_slim(i) for i in digest.interfaces if i in first)
    return to_json(replace(digest, interfaces=kept))


def _slim(interface: Interface) -> Interface:
    return replace(interface, statistics={})


def digest_from_json(value: object, rank: int) -> RankDigest:
    """The digest of a rank, under the number that it proved to have. Raises `FormatError`."""
    return replace(from_json(RankDigest, value), rank=rank)


def results_to_json(results: Iterable[Result], host: str | None, rank: int) -> list[str]:
    """One text per result, the same on every rank that finds the same: host and rank are left out."""
    return [_text(to_json(_anonymous(r, host, rank))) for r in results]


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _anonymous(result: Result, host: str | None, rank: int) -> Result:
    subject = result.subject
    return replace(
        result,
        subject=replace(
            subject,
            host=None if subject.host == host else subject.host,
            rank=None if subject.rank == rank else subject.rank,
        ),
        seconds=0.0,
    )


@dataclass(slots=True)
class _Found:
    result: Result
    ranks: list[int]


class Findings:
    """Results of all ranks. Equal ones are kept once, so that a thousand ranks cost little more than one."""

    def __init__(self) -> None:
        self._known: dict[str, Result] = {}
        self._hosts: dict[str, dict[str, _Found]] = {}

    def add(self, host: str, rank: int, texts: object) -> None:
        """Note one rank's results. Raises `FormatError`."""
        if not isinstance(texts, list) or len(texts) > RESULTS:
            raise FormatError(f"results: expected an array of {RESULTS} texts at most")
        read = [(t, self._read(t)) for t in texts]
        here = self._hosts.setdefault(host, {})
        for text, result in read:
            here.setdefault(text, _Found(result, [])).ranks.append(rank)

    def _read(self, text: object) -> Result:
        if not isinstance(text, str):
            raise FormatError("results: expected texts")
        if text not in self._known:
            try:
                self._known[text] = from_json(Result, json.loads(text))
            except (ValueError, RecursionError) as error:
                raise FormatError(f"results: {error}") from None
        return self._known[text]

    def by_host(self) -> Iterable[tuple[Result, ...]]:
        """For each host its results rank by rank, each result once, with the ranks that have it."""
        for host, found in self._hosts.items():
            first: dict[int, list[Result]] = {}
            for item in found.values():
                first.setdefault(item.ranks[0], []).append(_named(item, host))
            yield from (tuple(first[r]) for r in sorted(first))


def _named(found: _Found, host: str) -> Result:
    subject = found.result.subject
    ranks = found.ranks[0] if len(found.ranks) == 1 else tuple(sorted(set(found.ranks)))
    return replace(
        found.result,
        subject=replace(
            subject,
            host=subject.host if subject.host is not None else host or None,
            rank=subject.rank if subject.rank is not None else ranks,
        ),
    )
