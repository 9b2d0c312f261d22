"""The age of the driver's branch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from fsdp_doctor.checks.env._dates import seen_on
from fsdp_doctor.checks.env._driver import consumer_gpus
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.scheduler import Identity
from fsdp_doctor.tables import cuda_drivers
from fsdp_doctor.tables.cuda_drivers import BRANCHES, NEWEST_BRANCH, RECOMMENDED_BRANCH, end_of_support
from fsdp_doctor.tables.versions import parse


@check("ENV006", Row.START, needs=(Driver,), uses=(Identity, Gpus), tags=("driver",))
def driver_branch_ended(facts: Facts, options: Options) -> Iterator[Finding]:
    """Driver branch is past its end of support.

    What: looks up the data-centre branch of the driver and compares its last day of support with the day
        the facts were collected.
    Why: an ended branch gets no fixes for hangs, Xid errors and security holes, and new torch wheels stop
        running on it.
    Fix: plan the move to a long-term-support branch.
    Sources: NVIDIA data-centre driver documentation (supported drivers and CUDA toolkit versions).
    """
    driver = facts[Driver]
    version = parse(driver.version)
    if version is None:
        yield skip("the driver's version is not known")
        return
    branch = version[0]
    if branch > NEWEST_BRANCH:
        yield info(
            f"driver {driver.version}: branch R{branch} is newer than this tool's table "
            f"(up to R{NEWEST_BRANCH}, {cuda_drivers.CHECKED_ON})"
        )
        return
    identity = facts.find(Identity)
    day = seen_on(identity.created if identity is not None else None) or date.fromisoformat(
        cuda_drivers.CHECKED_ON
    )
    end = end_of_support(branch)
    kind = BRANCHES[branch].kind if branch in BRANCHES else "unlisted"
    if end is None or day <= end:
        until = f", supported until {end:%B %Y}" if end is not None else ""
        yield ok(f"driver {driver.version}: {kind} branch R{branch}{until}")
        return
    found = f"driver {driver.version}: support of the {kind} branch R{branch} ended in {end:%B %Y}"
    expected = f"a supported branch, such as R{RECOMMENDED_BRANCH} (long-term support)"
    gpus = facts.find(Gpus)
    if gpus is not None and len(consumer_gpus(gpus)) == len(gpus.present) > 0:
        yield info(found + " (for data-centre GPUs)", expected=expected)
        return
    yield warn(
        found,
        expected,
        subject=Subject(device="nvidia driver"),
        fix=Fix(
            f"Move to the R{RECOMMENDED_BRANCH} branch at the next maintenance",
            None,
            Risk.NEEDS_ROOT,
            Owner.ADMIN,
        ),
    )
