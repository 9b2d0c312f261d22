"""Two torches in one environment."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from fsdp_doctor.checks.env._stack import base, pip
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Risk, Row, Subject, fail, ok, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.versions import local_tag, parse

FOLDER = re.compile(r"/python([0-9]+\.[0-9]+)/(?:site|dist)-packages/")
USER_SITE = "/.local/lib/python"


@check("ENV026", Row.START, needs=(Stack, Torch), uses=(Environment,), tags=("torch", "python"))
def torch_twice(facts: Facts, options: Options) -> Iterator[Finding]:
    """Torch that is imported is not the torch that is installed.

    What: compares the version of the imported torch with the installed distribution's, and the place it
        was imported from with the interpreter: a conda and a pip torch, PYTHONPATH, or ~/.local.
    Why: pip reports and pins one torch while ranks run another. Packages are checked against the wrong
        one, and nodes differ by what lies in a home folder.
    Fix: uninstall both and install one; set PYTHONNOUSERSITE=1 where ~/.local gets in the way.
    Sources: Python documentation (site, PYTHONPATH); pip documentation (user installs).
    """
    stack, torch, env = facts[Stack], facts[Torch], facts.find(Environment)
    installed, path = stack.dists.get("torch"), torch.path
    subject = Subject(path=path)
    where = f" from {path}" if path else ""
    once = Fix(
        "Uninstall torch until pip finds none (and conda's pytorch), then install it once",
        f"{pip(stack)} uninstall -y torch; {pip(stack)} uninstall -y torch",
        Risk.DISRUPTIVE,
    )
    if installed is not None and _differ(installed, torch.version):
        yield warn(
            f"imported torch is {torch.version}{where}; the installed distribution is {installed}",
            "one torch in the environment",
            subject=subject,
            fix=once,
        )
        return
    named = FOLDER.search(f"{path or ''}/")
    python = parse(stack.python)
    if named is not None and python is not None and parse(named.group(1)) != python[:2]:
        yield fail(
            f"torch comes{where}, of Python {named.group(1)}; the interpreter is {stack.python}",
            f"torch of Python {python[0]}.{python[1] if len(python) > 1 else 0}",
            subject=Subject(path=path, variable="PYTHONPATH"),
            fix=Fix("Unset PYTHONPATH, or install torch for this interpreter", "unset PYTHONPATH"),
        )
    elif path is not None and USER_SITE in path and not _is_system(stack.executable):
        yield warn(
            f"torch comes{where}, not from the environment of {stack.executable}",
            "torch of the environment: a home folder differs from node to node and from user to user",
            subject=Subject(path=path, variable="PYTHONNOUSERSITE"),
            fix=Fix("Keep ~/.local out", "export PYTHONNOUSERSITE=1"),
        )
    else:
        shadow = env.get("PYTHONPATH") if env is not None else None
        yield ok(f"torch {torch.version}{where}" + (" (PYTHONPATH is set)" if shadow else ""))


def _differ(installed: str, imported: str) -> bool:
    if base(installed) != base(imported):
        return parse(installed) != parse(imported)
    one, other = local_tag(installed), local_tag(imported)
    return one is not None and other is not None and one != other


def _is_system(executable: str) -> bool:
    """Whether it is the system's interpreter, for which ~/.local is the ordinary place."""
    return posixpath.dirname(executable) in ("/usr/bin", "/usr/local/bin", "/bin", "")
