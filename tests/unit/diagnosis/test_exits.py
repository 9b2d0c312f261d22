"""What exit codes say where no line says why a process ended."""

from __future__ import annotations

import pytest

from fsdp_doctor.diagnosis.culprit.decide import conclude
from fsdp_doctor.diagnosis.culprit.signals import SIGKILL, SIGSEGV, SIGTERM, signal_of
from fsdp_doctor.subjects.diagnosis import Conclusion
from fsdp_doctor.subjects.incident import Exit, Incident, JobShape, Origin


def cause_of(*codes: int) -> Conclusion | None:
    """The cause where rank 0 ended with the first code, rank 1 with the second, and nothing was printed."""
    exits = tuple(Exit(Origin("job.log", rank + 1), rank, code=code) for rank, code in enumerate(codes))
    ranks = tuple(range(len(codes)))
    return conclude(Incident(exits=exits, job=JobShape(len(codes), ranks_seen=ranks))).cause


@pytest.mark.parametrize(
    ("code", "signal"),
    [
        (-11, SIGSEGV),
        (139, SIGSEGV),
        (137, SIGKILL),
        (9, SIGKILL),
        (15, SIGTERM),
        (11, None),
        (1, None),
        (0, None),
        (128, None),
        (255, None),
        (None, None),
    ],
)
def test_a_signal_is_known_in_each_form(code: int | None, signal: int | None) -> None:
    assert signal_of(code) == signal


@pytest.mark.parametrize(
    ("code", "name"), [(-4, "SIGILL"), (132, "SIGILL"), (135, "SIGBUS"), (136, "SIGFPE"), (139, "SIGSEGV")]
)
def test_a_crash_is_named_by_its_signal_however_the_launcher_writes_it(code: int, name: str) -> None:
    cause = cause_of(code, -15)
    assert cause is not None and cause.code == "LOG010"
    assert name in cause.title and cause.culprits == (0,)
    assert ("/dev/shm" in cause.title) == (name == "SIGBUS")


def test_ranks_that_the_same_signal_ended_are_named_together() -> None:
    cause = cause_of(-9, -15, -9)
    assert cause is not None and cause.title.startswith("Ranks 0 and 2 were killed")


@pytest.mark.parametrize("code", [0, -15, 143, 15])
def test_a_good_end_and_an_order_to_stop_are_no_failures(code: int) -> None:
    assert cause_of(code, 0) is None


def test_an_abort_alone_accuses_nobody() -> None:
    cause = cause_of(-6, -15)
    assert cause is not None and cause.confidence == "low" and cause.culprits == ()


def test_an_exit_code_of_the_programs_own_is_no_signal() -> None:
    cause = cause_of(3, -15)
    assert cause is not None and cause.code == "LOG009" and "exit code 3" in cause.title
