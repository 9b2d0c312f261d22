"""Requirements of installed distributions, read for the recorded interpreter and not for this one."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from fsdp_doctor.checks.env._stack import machine
from fsdp_doctor.subjects.stack import Stack

TOOLKIT = "cuda-toolkit"
"""From torch 2.11 on the pins of the CUDA libraries lie in this meta-package."""
SYSTEMS = {
    "linux": ("linux", "Linux", "posix"),
    "macosx": ("darwin", "Darwin", "posix"),
    "win": ("win32", "Windows", "nt"),
}


def environment_of(stack: Stack, extra: str = "") -> dict[str, str]:
    """The values of PEP 508 markers on the judged machine."""
    platform = (stack.platform or "linux-x86_64").lower()
    head = next((k for k in SYSTEMS if platform.startswith(k)), "linux")
    sys_platform, system, os_name = SYSTEMS[head]
    numbers = ".".join(stack.python.split(".")[:2])
    architecture = {"darwin": "arm64" if platform.endswith("arm64") else "x86_64", "win32": "AMD64"}
    return {
        "implementation_name": "cpython",
        "implementation_version": stack.python,
        "os_name": os_name,
        "platform_machine": architecture.get(sys_platform, machine(stack)),
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": system,
        "platform_version": "",
        "python_full_version": stack.python,
        "python_version": numbers,
        "sys_platform": sys_platform,
        "extra": extra,
    }


def pins(stack: Stack) -> Iterator[Requirement]:
    """What torch, and the meta-package it names, require on this machine; unreadable lines are left out."""
    extras: tuple[str, ...] = ()
    for requirement in _requirements(stack, "torch", ("",)):
        if requirement.name.lower() == TOOLKIT:
            extras = tuple(sorted(requirement.extras))
        yield requirement
    if extras:
        yield from _requirements(stack, TOOLKIT, extras)


def _requirements(stack: Stack, dist: str, extras: tuple[str, ...]) -> Iterator[Requirement]:
    for line in stack.requires.get(dist, ()):
        try:
            requirement = Requirement(line)
            if requirement.marker is None or any(
                requirement.marker.evaluate(environment_of(stack, e)) for e in extras
            ):
                yield requirement
        except (
            InvalidRequirement,
            InvalidVersion,
            UndefinedComparison,
            UndefinedEnvironmentName,
            ValueError,
        ):
            continue


def satisfied(requirement: Requirement, version: str) -> bool | None:
    """Whether an installed version meets a requirement; None where the version cannot be read."""
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return None
