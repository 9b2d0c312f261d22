"""The cause among failed ranks, apart from its victims."""

from __future__ import annotations

import pytest

from fsdp_doctor.probe.failures import error_words, failures, finished, signal_name
from fsdp_doctor.subjects.fabric import DIED, DUPLICATE_GPU, HUNG, MISSING, Failure
from fsdp_doctor.subjects.probe import ProbePlan, ProbeResult, RankError, RankMeasurement

RESET = RankError("RuntimeError", "[pair.cc:547] Read error [127.0.0.1]:41: Connection reset by peer")
TIMEOUT = RankError("RuntimeError", "Timed out waiting 10000ms for recv operation to complete")
CLOSED = RankError(
    "DistBackendError",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting",
)
VALUE = RankError("ValueError", "Traceback (most recent call last):\n  File x\nValueError: no such dtype")
LAST = RankError(
    "DistBackendError",
    "NCCL error in: NCCLUtils.cpp:93, unhandled system error\nncclSystemError: System call failed.\n"
    "Last error:\nError while creating shared memory segment /dev/shm/nccl-x (size 9637888)\n",
)


def duplicate(a: int, b: int) -> RankError:
    return RankError(
        "DistBackendError",
        f"ncclInvalidUsage: invalid usage.\nLast error:\nDuplicate GPU detected : rank {a} and rank {b} both on CUDA device 60",
    )


def job(
    *ranks: RankMeasurement, world: int | None = None, missing: tuple[int, ...] = (), backend: str = "gloo"
) -> tuple[Failure, ...]:
    size = world if world is not None else len(ranks)
    return failures(ProbeResult(size, backend, ProbePlan(backend), ranks, missing))


def rank(number: int, stage: str = "sweep", **more: object) -> RankMeasurement:
    return RankMeasurement(number, "h", number, stage=stage, **more)  # type: ignore[arg-type]


def done(number: int) -> RankMeasurement:
    return rank(number, "done", exit_code=0)


def test_all_well() -> None:
    assert job(done(0), done(1)) == ()
    assert finished(rank(0, "done", exit_code=-9))  # its launcher did not wait longer
    assert not finished(rank(0, "done", exit_code=-11))
    assert finished(done(0)) and not finished(rank(0, "done", exit_code=1)) and not finished(rank(0))


CASES = [
    ("killed", job(rank(0, error=RESET, exit_code=1), rank(1, exit_code=-9)), DIED, (1,), (0,), "SIGKILL"),
    ("killed, by the shell's number", job(rank(0, error=RESET), rank(1, exit_code=137)), DIED, (1,), (0,), "SIGKILL"),
    ("raised", job(rank(0, error=CLOSED, exit_code=1), rank(1, error=VALUE, exit_code=1)), DIED, (1,), (0,), "ValueError: no such dtype"),
    ("left early", job(rank(0, error=RESET, exit_code=1), rank(1, exit_code=0)), DIED, (1,), (0,), "exit code 0"),
    ("ended by the launcher", job(rank(0, exit_code=-15), rank(1, exit_code=-11)), DIED, (1,), (0,), "SIGSEGV"),
    ("only symptoms", job(rank(0, "sweep", error=TIMEOUT), rank(1, "pairs", error=TIMEOUT)), DIED, (0,), (1,), "Timed out"),
    ("one behind", job(rank(0, "pairs", hung=True), rank(1, "sweep", hung=True)), HUNG, (1,), (0,), "others had got further"),
    ("all stand", job(rank(0, "connect", hung=True), rank(1, "connect", hung=True)), HUNG, (0, 1), (), "every rank"),
    ("hung behind one that died", job(rank(0, hung=True), rank(1, exit_code=-9)), DIED, (1,), (0,), "SIGKILL"),
    ("hung, and others timed out", job(rank(0, "sweep", error=TIMEOUT), rank(1, "work", hung=True)), HUNG, (1,), (0,), "still in work"),
    ("never there", job(rank(0, "rendezvous", error=TIMEOUT), world=2, missing=(1,)), MISSING, (1,), (0,), "rendezvous"),
    ("one GPU for two", job(rank(0, "connect", error=duplicate(0, 1)), rank(1, "connect", error=duplicate(1, 0)), backend="nccl"), DUPLICATE_GPU, (0, 1), (), "CUDA device 60"),
    ("one GPU for two of three", job(rank(0, "connect", error=duplicate(0, 2)), rank(1, "connect", error=CLOSED), rank(2, "connect", error=duplicate(2, 0)), backend="nccl"), DUPLICATE_GPU, (0, 2), (1,), "CUDA device 60"),
    ("NCCL's last error", job(rank(0, "connect", error=LAST), rank(1, "connect", error=CLOSED)), DIED, (0,), (1,), "/dev/shm/nccl-x"),
    ("stopped without a word", job(rank(0, "sweep"), done(1)), DIED, (0,), (), "left no error"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "found", "kind", "ranks", "victims", "words"), CASES, ids=[c[0] for c in CASES]
)
def test_causes_and_victims(
    what: str,
    found: tuple[Failure, ...],
    kind: str,
    ranks: tuple[int, ...],
    victims: tuple[int, ...],
    words: str,
) -> None:
    (failure,) = found
    assert (failure.kind, failure.ranks, failure.victims) == (kind, ranks, victims)
    assert words in failure.words
    assert failure.hosts == (() if kind == MISSING else ("h",))


def test_two_ranks_with_one_uuid_where_nccl_says_nothing_of_it() -> None:
    invalid = RankError("DistBackendError", "ncclInvalidUsage")
    (failure,) = job(
        rank(0, "connect", error=invalid, gpu_uuid="GPU-a"), rank(1, "connect", error=invalid, gpu_uuid="GPU-a"), backend="nccl"
    )  # fmt: skip
    assert (failure.kind, failure.ranks) == (DUPLICATE_GPU, (0, 1))


def test_gloo_may_share_a_gpu() -> None:
    assert job(rank(0, "done", gpu_uuid="GPU-a"), rank(1, "done", gpu_uuid="GPU-a")) == ()


def test_several_causes_are_several_failures() -> None:
    found = job(rank(0, exit_code=-9), rank(1, error=VALUE), rank(2, error=RESET))
    assert {(f.ranks, f.victims) for f in found} == {((0,), (2,)), ((1,), (2,))}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (-9, "SIGKILL"),
        (137, "SIGKILL"),
        (-7, "SIGBUS"),
        (1, None),
        (0, None),
        (None, None),
        (-999, None),
        (128, None),
    ],
)
def test_signal_names(code: int | None, name: str | None) -> None:
    assert signal_name(code) == name


def test_error_words_are_short() -> None:
    long = rank(0, error=RankError("RuntimeError", "x" * 10_000))
    assert len(error_words(long)) < 400
    assert error_words(rank(0)) == "no error"
    assert error_words(rank(0, error=RankError("", ""))) == ""
