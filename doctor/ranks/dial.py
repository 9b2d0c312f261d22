"""Connect to many places at once and wait for a server of this program to introduce itself.

Nothing is sent to whoever does not: another server there sees a connection that opens and closes.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Union

from fsdp_doctor.ranks.wire import BANNER_SIZE, WireError, read_banner
from fsdp_doctor.tables.rank_facts import NO_NAME, NO_ROUTE, REFUSED, SILENT, TIMED_OUT

REASONS = {
    errno.ECONNREFUSED: REFUSED,
    errno.ETIMEDOUT: TIMED_OUT,
    errno.EHOSTUNREACH: NO_ROUTE,
    errno.ENETUNREACH: NO_ROUTE,
    errno.EACCES: "refused by this machine's own firewall",
    errno.EPERM: "refused by this machine's own firewall",
}
CLOSED = "it closed the connection"


@dataclass(frozen=True, slots=True)
class Place:
    """An address (never a name) and a port."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Line:
    """A connection to a server of this program, non-blocking, and the nonce of its banner."""

    socket: socket.socket
    nonce: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no line; `connected` where TCP itself worked."""

    reason: str
    connected: bool = False


Answer = Union[Line, Failure]


def addresses(host: str, port: int) -> tuple[str, ...] | str:
    """What a host resolves to, in the resolver's order, or why nothing. Takes the resolver's time."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return NO_NAME
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def dial(
    places: Iterable[Place],
    seconds: float,
    enough: Callable[[Place, Line], bool] = lambda place, line: False,
) -> dict[Place, Answer]:
    """Try all places in parallel for so many seconds; stop early once `enough` says so of a line.

    A place that connects and stays silent is `SILENT`; one that is not decided at an early stop is left
    out. Lines are the caller's to close.
    """
    stopped = False
    until = time.monotonic() + seconds
    answers: dict[Place, Answer] = {}
    with selectors.DefaultSelector() as waiting:
        for place in dict.fromkeys(places):
            started = _start(place)
            if isinstance(started, Failure):
                answers[place] = started
            else:
                waiting.register(started, selectors.EVENT_WRITE, (place, bytearray()))
        try:
            while waiting.get_map() and (left := until - time.monotonic()) > 0:
                for key, _ in waiting.select(left):
                    place, heard = key.data
                    assert isinstance(key.fileobj, socket.socket)
                    answer = _advance(waiting, key.fileobj, key.events, place, heard)
                    if answer is None:
                        continue
                    waiting.unregister(key.fileobj)
                    answers[place] = answer
                    if not isinstance(answer, Line):
                        key.fileobj.close()
                    elif enough(place, answer):
                        stopped = True
                        return answers
        finally:
            for key in tuple(waiting.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                if key.events == selectors.EVENT_READ:
                    answers[key.data[0]] = Failure(SILENT, connected=True)
                elif not stopped:
                    answers[key.data[0]] = Failure(TIMED_OUT)
                key.fileobj.close()
    return answers


def _start(place: Place) -> socket.socket | Failure:
    family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
    try:
        peer = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        return _reason(error.errno)
    peer.setblocking(False)
    try:
        code = peer.connect_ex(_target(place, family))
    except (OSError, UnicodeError, OverflowError) as error:
        peer.close()
        return _reason(getattr(error, "errno", None))
    if code not in (0, errno.EINPROGRESS):
        peer.close()
        return _reason(code)
    return peer


def _target(place: Place, family: int) -> tuple[str, int] | tuple[str, int, int, int]:
    if family == socket.AF_INET:
        return place.address, place.port
    address, _, zone = place.address.partition("%")
    scope = 0
    if zone:
        scope = int(zone) if zone.isdigit() else socket.if_nametoindex(zone)
    return address, place.port, 0, scope


def _advance(
    waiting: selectors.BaseSelector, peer: socket.socket, events: int, place: Place, heard: bytearray
) -> Answer | None:
    """Take what happened on a connection; None while it is not decided."""
    if events == selectors.EVENT_WRITE:
        code = peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            return _reason(code)
        if _connected_to_itself(peer):
            return Failure(REFUSED)
        waiting.modify(peer, selectors.EVENT_READ, (place, heard))
        return None
    try:
        data = peer.recv(BANNER_SIZE - len(heard))
    except BlockingIOError:
        return None
    except OSError as error:
        return Failure(_reason(error.errno).reason, connected=True)
    heard += data
    if data and len(heard) < BANNER_SIZE:
        return None
    try:
        return Line(peer, read_banner(bytes(heard)))
    except WireError as error:
        return Failure(str(error) if heard else CLOSED, connected=True)


def _connected_to_itself(peer: socket.socket) -> bool:
    """A connection to a port of this host where nobody listens can meet its own number."""
    try:
        return bool(peer.getsockname() == peer.getpeername())
    except OSError:
        return False


def _reason(code: int | None) -> Failure:
    if code is None:
        return Failure("no address")
    return Failure(REASONS.get(code) or errno.errorcode.get(code) or f"error {code}")
