"""A fact is known with its source, or unknown with its reason; `Facts` holds one per subject type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Known(Generic[T_co]):
    """A value and where it was read."""

    value: T_co
    source: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why a fact is not there, and what would make it so."""

    reason: str
    enable: str = ""
    absent: bool = False
    """True where the thing itself does not exist (no GPU), false where it could not be read."""
    late: bool = False
    """True where the deadline came before the answer: more time may bring it."""


class MissingFact(LookupError):
    """A check asked for a fact that it did not declare in `needs`, and the fact is unknown."""


class Facts:
    """Facts by subject type: `facts[Host]` is a `Host`. Only types named in `needs` are sure to be there."""

    def __init__(self, items: Mapping[type[object], Known[object] | Unknown]) -> None:
        self._items = dict(items)

    def __getitem__(self, kind: type[T]) -> T:
        """The value. Raises `MissingFact` with the reason if it is unknown."""
        fact = self.fact(kind)
        if isinstance(fact, Unknown):
            raise MissingFact(f"{kind.__name__}: {fact.reason}")
        return fact.value

    def find(self, kind: type[T]) -> T | None:
        """The value, or None if it is unknown."""
        fact = self.fact(kind)
        return None if isinstance(fact, Unknown) else fact.value

    def fact(self, kind: type[T]) -> Known[T] | Unknown:
        """The fact as collected; a type that was not collected is unknown."""
        fact = self._items.get(kind, Unknown("not collected"))
        return fact if isinstance(fact, Unknown) else cast("Known[T]", fact)

    def unknown(self, kinds: Iterable[type[object]]) -> Unknown | None:
        """The first of `kinds` that is unknown."""
        return next((f for k in kinds if isinstance(f := self.fact(k), Unknown)), None)
