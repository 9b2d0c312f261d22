"""Finds the places of a block of bytes at which a signature may match, and loses none.

Every signature names literals of which one occurs in each of its matches. All of them are looked for at
once with Hyperscan where the package is there, and one after the other with `bytes.find` where it is not;
both give the same places. What is found is only a candidate: the signature's own expression decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Protocol

from fsdp_doctor.diagnosis.markers import MARKERS
from fsdp_doctor.tables.log_signatures import SIGNATURES, Signature

Place = tuple[int, int]
"""Offset just behind a literal, and number of its gate."""


class Matcher(Protocol):
    """What finds candidates."""

    @property
    def name(self) -> str:
        """Of the engine."""

    @property
    def gates(self) -> Mapping[int, tuple[Signature, ...]]:
        """Number of a gate -> the signatures behind it."""

    def places(self, block: bytes) -> list[Place]:
        """All candidates of a block, in the order of their offsets."""


def _gates(signatures: Iterable[Signature], engine: bool) -> dict[str, list[Signature]]:
    """Expressions and the signatures behind each; `engine` says whether gates may be expressions."""
    gates: dict[str, list[Signature]] = {}
    for signature in signatures:
        if engine and signature.gate:
            gates.setdefault(signature.gate, []).append(signature)
        else:
            for literal in signature.literals:
                gates.setdefault(re.escape(literal) if engine else literal, []).append(signature)
    return gates


class PlainMatcher:
    """One search per literal: needs nothing, a hundred times slower on a log without any match."""

    name = "plain"

    def __init__(self, signatures: Iterable[Signature]) -> None:
        gates = _gates(signatures, engine=False)
        self._literals = tuple(g.encode() for g in gates)
        self.gates = {i: tuple(s) for i, s in enumerate(gates.values())}

    def places(self, block: bytes) -> list[Place]:
        """All candidates of a block, in the order of their offsets."""
        found: list[Place] = []
        for number, literal in enumerate(self._literals):
            at = block.find(literal)
            while at >= 0:
                end = at + len(literal)
                found.append((end, number))
                at = block.find(literal, end)
        found.sort()
        return found


class EngineMatcher:
    """All literals in one pass with Hyperscan."""

    name = "hyperscan"

    def __init__(self, signatures: Iterable[Signature]) -> None:
        engine = import_module("hyperscan")
        gates = _gates(signatures, engine=True)
        self.gates = {i: tuple(s) for i, s in enumerate(gates.values())}
        expressions = [g.encode() for g in gates]
        self._database = engine.Database()
        self._database.compile(
            expressions=expressions,
            ids=list(range(len(expressions))),
            elements=len(expressions),
            flags=[engine.HS_FLAG_MULTILINE] * len(expressions),
        )
        self._scratch = engine.Scratch(self._database)

    def places(self, block: bytes) -> list[Place]:
        """All candidates of a block, in the order of their offsets."""
        found: list[Place] = []
        add = found.append

        def met(number: int, start: int, end: int, flags: int, context: object) -> None:
            add((end, number))

        self._database.scan(block, match_event_handler=met, scratch=self._scratch)
        return found


@cache
def matcher(plain: bool = False) -> Matcher:
    """The best that this installation has, once per process."""
    signatures = (*SIGNATURES.values(), *MARKERS)
    if not plain:
        try:
            return EngineMatcher(signatures)
        except Exception:  # a wheel for another processor raises whatever it likes
            pass
    return PlainMatcher(signatures)
