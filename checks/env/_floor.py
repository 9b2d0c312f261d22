"""What a torch wheel needs of Python and of the C library, against what is there."""

from __future__ import annotations

from fsdp_doctor.checks.env._stack import from_pip_wheel, torch_version
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.torch_releases import release_of
from fsdp_doctor.tables.versions import at_least, parse, show


def below_floor(stack: Stack, torch: Torch | None) -> tuple[str, str] | None:
    """(found, expected) where Python or glibc is below the floor of the wheel; None where nothing is."""
    version = torch_version(stack, torch)
    release = release_of(version)
    if release is None or not from_pip_wheel(stack, torch):
        return None
    python = parse(stack.python)
    if python is not None and not at_least(python, release.python):
        return f"Python {stack.python} with torch {version}", f"Python {show(release.python)} or newer"
    name, text = stack.libc if stack.libc is not None else ("", "")
    if name.lower() == "musl" and (stack.platform or "linux").startswith("linux"):
        return f"musl {text} as C library with the glibc wheel of torch {version}", "a system with glibc"
    libc = parse(text)
    if name.lower() == "glibc" and libc is not None and not at_least(libc, release.glibc):
        return f"glibc {text} with torch {version}", f"glibc {show(release.glibc)} or newer"
    return None
