"""Whether the environment that would train has a torch that can be imported."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_doctor.checks.env._floor import below_floor
from fsdp_doctor.checks.env._stack import fitting_index, nccl_wheels, pip, reinstall
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Risk, Row, Subject, fail, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.import_errors import PATIENCE, PATTERNS, Cause, Pattern
from fsdp_doctor.tables.torch_releases import INDEX, NEWEST
from fsdp_doctor.tables.versions import parse, show

OWN = "fsdp-doctor"
WAITED = re.compile(r"\bno answer in (\d+(?:\.\d+)?) s\b")


def _is_absent(stack: Stack, torch: Torch | None) -> bool:
    if torch is not None or "torch" in stack.dists:
        return False
    error = stack.torch_error or ""
    return not error or "No module named 'torch'" in error or "No module named torch" in error


@check("ENV010", Row.START, needs=(Stack,), uses=(Torch, Driver), tags=("torch", "python"))
def torch_not_installed(facts: Facts, options: Options) -> Iterator[Finding]:
    """Torch is not installed in the environment that would train.

    What: looks for the distribution torch in the inspected interpreter, and for an import that worked.
    Why: without it no rank starts. Where the doctor lives in an environment of its own, this only means
        that it was not told which interpreter trains.
    Fix: install torch there, or name the training interpreter with --python.
    Sources: PyTorch documentation (start locally).
    """
    stack, torch = facts[Stack], facts.find(Torch)
    if not _is_absent(stack, torch):
        version = torch.version if torch is not None else stack.dists.get("torch", "")
        yield ok(f"torch {version} in {stack.executable}")
        return
    found = f"torch is not installed in {stack.executable} (Python {stack.python})"
    driver = facts.find(Driver)
    tag = fitting_index(stack, show(NEWEST), parse(driver.version) if driver is not None else None, ())
    command = f"{pip(stack)} install torch" + (f" --index-url {INDEX}{tag}" if driver and tag else "")
    subject = Subject(path=stack.executable)
    if OWN in stack.dists:
        yield warn(
            f"{found}, which is the doctor's own environment",
            "the interpreter that trains, given with --python",
            subject=subject,
            fix=Fix("Name the interpreter that trains", "fsdp-doctor check --python /path/to/python"),
        )
        return
    yield fail(
        found,
        "torch in the environment that trains",
        subject=subject,
        fix=Fix("Install torch, or name another interpreter with --python", command, Risk.DISRUPTIVE),
    )


@check("ENV011", Row.START, needs=(Stack,), uses=(Torch, Driver), tags=("torch", "python"))
def torch_import_fails(facts: Facts, options: Options) -> Iterator[Finding]:
    """Torch is installed and cannot be imported.

    What: the import in a child process ended with an exception, a crash or not at all; the message is
        read for its cause.
    Why: every rank of the run fails at the same line, before any of its own code.
    Fix: it follows from the cause: mostly a library of another release that is loaded first, or a wheel
        that torch pins and that is missing.
    Sources: pytorch#119072, pytorch#186591, returnn#1802; manual page ld.so(8).
    """
    stack, torch = facts[Stack], facts.find(Torch)
    if torch is not None:
        yield ok(f"import torch gives {torch.version}")
        return
    if _is_absent(stack, torch):
        yield skip("torch is not installed (ENV010)")
        return
    error = stack.torch_error
    if error is None:
        yield skip("importing torch was not tried", enable=f"run {stack.executable} -c 'import torch'")
        return
    pattern, detail = _classify(error)
    waited = WAITED.search(error)
    if waited and float(waited.group(1)) < PATIENCE:
        yield skip(f"import torch had not ended after {waited.group(1)} s", enable="give more --deadline")
        return
    version = stack.dists.get("torch")
    wheels = nccl_wheels(stack.dists)
    if pattern is not None:
        if pattern.cause is Cause.NCCL_SYMBOL and len(wheels) > 1:
            yield skip(
                f"import torch fails for {detail}: {' and '.join(wheels)} overwrite each other (ENV021)"
            )
            return
        if pattern.cause is Cause.DRIVER_LIBRARY and stack.dlopen.get("libcuda.so.1", "") is None:
            yield skip(f"import torch fails: {detail} cannot be loaded (ENV005, GPU004)")
            return
        if pattern.cause is Cause.GLIBC and below_floor(stack, torch):
            yield skip(f"import torch fails: {detail} is missing (ENV030)")
            return
    meaning = pattern.meaning.format(detail) if pattern is not None else "the import raised an exception"
    yield fail(
        f"import torch fails in {stack.executable}: {meaning}",
        f"import torch works (torch {version} is installed)" if version else "import torch works",
        subject=Subject(path=stack.executable),
        fix=_fix(stack, pattern, version),
        evidence=(Evidence("import torch", error[-1000:]),),
    )


def _classify(error: str) -> tuple[Pattern | None, str]:
    for pattern in PATTERNS:
        found = pattern.text.search(error)
        if found:
            return pattern, found.group(1)
    return None, ""


def _fix(stack: Stack, pattern: Pattern | None, version: str | None) -> Fix:
    if pattern is None:
        return reinstall("Read the message, and reinstall torch if it names its files", stack, version)
    if pattern.reinstall:
        return reinstall(pattern.fix, stack, version)
    return Fix(pattern.fix, None, Risk.DISRUPTIVE)
