"""Checks made for the tests of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import CheckSpec, check
from fsdp_doctor.findings import Finding, Row
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host

DOCUMENTATION = """Something is wrong.

What: looks at the host.
Why: it matters
to training.
Fix: repair it.
Sources: none.
"""


def spec(
    code: str,
    judge: Callable[[Facts], Iterable[Finding]] | None = None,
    needs: tuple[type[object], ...] = (Host,),
) -> CheckSpec:
    def function(facts: Facts, options: Options) -> Iterable[Finding]:
        return judge(facts) if judge else ()

    function.__doc__ = DOCUMENTATION
    return check(code, Row.START, needs=needs)(function)
