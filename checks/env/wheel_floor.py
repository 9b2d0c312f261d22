"""Python and C library below what the wheel needs, and Python past its end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from fsdp_doctor.checks.env._dates import seen_on
from fsdp_doctor.checks.env._floor import below_floor
from fsdp_doctor.checks.env._stack import torch_version
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Risk, Row, Subject, fail, info, ok, skip
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.scheduler import Identity
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables import python_releases
from fsdp_doctor.tables.torch_releases import NEWEST, release_of
from fsdp_doctor.tables.versions import parse, show


@check("ENV030", Row.START, needs=(Stack,), uses=(Torch,), tags=("torch", "python"))
def below_wheel_floor(facts: Facts, options: Options) -> Iterator[Finding]:
    """Python or glibc is older than the torch wheel needs.

    What: compares Python and the C library with the floor of the installed release: manylinux_2_28 (glibc
        2.28) since 2.7, glibc 2.17 before; Python 3.10 since 2.9.
    Why: the import fails with "version GLIBC_2.28 not found" or a missing symbol, on some nodes only when
        they run different images.
    Fix: use a newer base image, or an older torch release.
    Sources: PyTorch wheel tags and metadata (2.0 to 2.14); PEP 600.
    """
    stack, torch = facts[Stack], facts.find(Torch)
    version = torch_version(stack, torch)
    if version is None:
        yield skip("torch is not installed (ENV010)")
        return
    low = below_floor(stack, torch)
    if low is not None:
        yield fail(
            f"{low[0]}: below the floor of the wheel",
            low[1],
            subject=Subject(path=stack.executable),
            fix=Fix(
                "Use a newer base image or operating system, or an older torch release", None, Risk.DISRUPTIVE
            ),
        )
    elif release_of(version) is None:
        yield skip(f"torch {version} is not in this tool's table")
    else:
        libc = " ".join(stack.libc) if stack.libc is not None else "unknown C library"
        yield ok(f"Python {stack.python} and {libc} carry torch {version}")


@check("ENV031", None, needs=(Stack,), uses=(Identity,), tags=("python",))
def python_ended(facts: Facts, options: Options) -> Iterator[Finding]:
    """Python release is past its end of life.

    What: compares the interpreter's release with Python's calendar, at the day the facts were collected.
    Why: new torch releases drop an ended Python soon (2.9 dropped 3.9), and with it every later fix of
        FSDP and NCCL.
    Fix: build the next environment on a supported Python.
    Sources: Python developer's guide (status of Python versions).
    """
    stack, identity = facts[Stack], facts.find(Identity)
    version = parse(stack.python)
    end = python_releases.END_OF_LIFE.get(version[:2]) if version is not None else None
    day = seen_on(identity.created if identity is not None else None) or date.fromisoformat(
        python_releases.CHECKED_ON
    )
    if end is not None and day > end:
        yield info(
            f"Python {stack.python} has had no fixes since {end.isoformat()}",
            expected="a supported Python release",
            subject=Subject(path=stack.executable),
        )
    else:
        yield ok(f"Python {stack.python}")


@check("ENV032", None, needs=(Stack,), uses=(Torch,), tags=("torch",))
def torch_not_in_table(facts: Facts, options: Options) -> Iterator[Finding]:
    """Torch release is newer or older than this tool's tables.

    What: looks up the installed release in the tables of wheels, architectures and NCCL versions.
    Why: outside the table nothing is known of the wheel's floors and indexes; what torch answers itself is
        judged all the same.
    Fix: update fsdp-doctor where a newer one exists.
    Sources: PyTorch releases on PyPI.
    """
    version = torch_version(facts[Stack], facts.find(Torch))
    numbers = parse(version)
    if version is None or numbers is None:
        yield skip("torch is not installed (ENV010)")
    elif numbers[:2] > NEWEST:
        yield info(f"torch {version} is newer than this tool's table (up to {show(NEWEST)})")
    elif release_of(version) is None:
        yield info(
            f"torch {version} is not in this tool's table", expected="FSDP as judged here is of 2.0 and newer"
        )
    else:
        yield ok(f"torch {version}")
