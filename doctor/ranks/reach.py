"""Whether ranks can connect to each other on ports that the kernel chooses, as NCCL and gloo do."""

from __future__ import annotations

import contextlib
import ipaddress
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fsdp_doctor.engine.interfaces import predict
from fsdp_doctor.ranks import wire
from fsdp_doctor.ranks.dial import Line, Place, dial
from fsdp_doctor.ranks.listener import PROOF_SIZE
from fsdp_doctor.subjects.network import Interface
from fsdp_doctor.subjects.rank_set import Unreached
from fsdp_doctor.tables.nccl_variables import SOCKET_FAMILIES
from fsdp_doctor.tables.rank_facts import SILENT

EPHEMERAL, MASTER = "ephemeral", "master"
CONNECT_SECONDS = 2.5
ANSWER_SECONDS = 1.5
ALL_PAIRS = 64
"""Ranks up to which every pair of hosts is tried."""
PER_HOST_PAIR = 2
SAMPLE = 4
"""Random hosts that each rank of a larger job tries, besides its neighbour in the ring."""


@dataclass(frozen=True, slots=True)
class Target:
    """A rank and the addresses it may be reached at, the one that NCCL would use first."""

    rank: int
    addresses: tuple[str, ...]
    port: int
    kind: str = EPHEMERAL


def attempt(source: int, targets: Iterable[Target], key: bytes, seconds: float) -> tuple[Unreached, ...]:
    """Connect to every target's first address, or else the others; what did not come about."""
    those = [t for t in dict.fromkeys(targets) if t.addresses]
    each = min(CONNECT_SECONDS, seconds / 2)
    reasons = _reasons([(t, t.addresses[0]) for t in those], key, each)
    failed = [t for t in those if reasons[t, t.addresses[0]]]
    others = _reasons([(t, a) for t in failed for a in t.addresses[1:]], key, each)
    found = []
    for t in failed:
        first = t.addresses[0]
        instead = next((a for a in t.addresses[1:] if not others[t, a]), None)
        found.append(Unreached(source, t.rank, t.port, t.kind, reasons[t, first], first, instead))
    return tuple(found)


def _reasons(tries: list[tuple[Target, str]], key: bytes, seconds: float) -> dict[tuple[Target, str], str]:
    """Target and address -> why it was not reached; empty where it was."""
    answers = dial((Place(address, target.port) for target, address in tries), seconds)
    until = time.monotonic() + ANSWER_SECONDS
    for target, address in tries:
        line = answers[Place(address, target.port)]
        if isinstance(line, Line):
            with contextlib.suppress(OSError):
                line.socket.send(wire.proof(key, "reach", line.nonce).encode())
    reasons = {}
    for target, address in tries:
        answer = answers[Place(address, target.port)]
        if target.kind == MASTER:  # a store that is not ours need only accept
            reasons[target, address] = "" if isinstance(answer, Line) or answer.connected else answer.reason
        else:
            reasons[target, address] = (
                _answer(answer, key, target.rank, until) if isinstance(answer, Line) else answer.reason
            )
    for answer in answers.values():
        if isinstance(answer, Line):
            answer.socket.close()
    return reasons


def _answer(line: Line, key: bytes, rank: int, until: float) -> str:
    heard = b""
    try:
        while len(heard) < PROOF_SIZE:
            line.socket.settimeout(max(0.01, until - time.monotonic()))
            data = line.socket.recv(PROOF_SIZE - len(heard))
            if not data:
                return "an fsdp-doctor of another job answers there"
            heard += data
    except TimeoutError:
        return SILENT
    except OSError as error:
        return error.strerror or str(error)
    right = wire.proves(heard.decode("ascii", "replace"), key, "reached", line.nonce, rank)
    return "" if right else "another rank answers there"


def pairs(hosts: Mapping[int, str], seed: int = 0) -> dict[int, tuple[int, ...]]:
    """Rank -> the ranks it tries. `hosts` names the machine of each rank.

    The next rank in the ring; up to `ALL_PAIRS` ranks every pair of hosts in both directions, a few times
    each; in a larger job a random sample of other hosts.
    """
    order = sorted(hosts)
    chosen: dict[int, dict[int, None]] = {r: {} for r in order}
    for rank, following in zip(order, order[1:] + order[:1], strict=True):
        if rank != following:
            chosen[rank][following] = None
    groups: dict[str, list[int]] = {}
    for rank in order:
        groups.setdefault(hosts[rank], []).append(rank)
    names = sorted(groups)
    if len(order) <= ALL_PAIRS:
        for one in names:
            for other in names:
                if one != other:
                    _between(groups[one], groups[other], chosen)
    elif len(names) > 1:
        pick = random.Random(seed)
        for rank in order:
            for name in pick.sample(names, min(SAMPLE + 1, len(names))):
                if name != hosts[rank] and len(chosen[rank]) <= SAMPLE:
                    chosen[rank][pick.choice(groups[name])] = None
    return {r: tuple(t) for r, t in chosen.items()}


def _between(ones: Sequence[int], others: Sequence[int], chosen: dict[int, dict[int, None]]) -> None:
    already = sum(t in chosen[r] for r in ones for t in others)
    for i in range(min(PER_HOST_PAIR - already, max(len(ones), len(others)))):
        chosen[ones[i % len(ones)]][others[i % len(others)]] = None


def own_addresses(interfaces: tuple[Interface, ...], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The addresses of the interface that NCCL is predicted to take, the one it would announce first."""
    family = environment.get("NCCL_SOCKET_FAMILY")
    first = predict(
        interfaces,
        environment.get("NCCL_SOCKET_IFNAME"),
        family if family in SOCKET_FAMILIES else None,
        environment.get("NCCL_COMM_ID"),
    ).first
    if first is None:
        return ()
    v4 = [a.partition("/")[0] for a in first.ipv4]
    v6 = [a.partition("/")[0] for a in first.ipv6 if not a.lower().startswith("fe80")]
    return tuple((v6 or v4 if family == "AF_INET6" else v4 or v6)[:1])


def reachable_elsewhere(address: str) -> bool:
    """Whether an address means the same machine on another one."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return not (found.is_loopback or found.is_unspecified or found.is_link_local)
