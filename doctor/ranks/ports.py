"""Which ports rank 0 may be found on, and how it gets one."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterable

PORTS = 8
"""MASTER_PORT and the ports after it: the launcher's own store may hold the first ones."""
BACKLOG = 4096


def candidates(port: int) -> tuple[int, ...]:
    """The ports to try, in order, the same on every rank."""
    return tuple(p for p in range(port, port + PORTS) if p < 1 << 16)


def listen(ports: Iterable[int]) -> socket.socket:
    """A non-blocking listener on the first free port, for IPv6 and IPv4. Raises `OSError`."""
    last: OSError = OSError("no port to listen on")
    for port in ports:
        try:
            return _listen(port)
        except OSError as error:
            last = error
    raise last


def _listen(port: int) -> socket.socket:
    try:
        server = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:  # a kernel without IPv6
        return _bound(socket.socket(socket.AF_INET, socket.SOCK_STREAM), "", port)
    try:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return _bound(server, "::", port)
    except OSError as error:
        server.close()
        if port and _taken(error):
            raise
        return _bound(socket.socket(socket.AF_INET, socket.SOCK_STREAM), "", port)


def _taken(error: OSError) -> bool:
    return error.errno in (errno.EADDRINUSE, errno.EACCES)


def _bound(server: socket.socket, address: str, port: int) -> socket.socket:
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        server.listen(BACKLOG)
        server.setblocking(False)
    except OSError:
        server.close()
        raise
    return server


def raise_open_files(wanted: int) -> None:
    """Allow this process so many open files, as far as its hard limit goes."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
