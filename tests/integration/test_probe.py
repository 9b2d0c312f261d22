"""Probes with real ranks over gloo: a healthy one, and one per fault, which must be named and nobody else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdp_doctor.probe.launch import ProbeError, Request, clean, self_launch
from fsdp_doctor.probe.session import turned
from fsdp_doctor.probe.verdicts import conclude
from fsdp_doctor.subjects.fabric import COMPUTE, DIED, HUNG, LATE, MISSING, TRANSFER, Fabric
from fsdp_doctor.subjects.probe import ProbeResult
from tests.support.probing import SABOTAGE, paced_library, plan, probe, processes_of_probes

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    folder = tmp_path / "jobs"
    folder.mkdir()
    monkeypatch.setenv("PROBING", str(os.getpid()))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert processes_of_probes() == []
    assert list(folder.iterdir()) == []


def named(found: Fabric, kind: str) -> set[int]:
    return {r for c in found.culprits if c.kind == kind for r in c.ranks}


def causes(result: ProbeResult) -> list[tuple[str, tuple[int, ...]]]:
    return [(f.kind, f.ranks) for f in conclude(result).failures]


@pytest.fixture(scope="module")
def healthy() -> ProbeResult:
    os.environ["PROBING"] = str(os.getpid())
    return probe(4, ops=("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all"))


def test_healthy_ranks_are_measured(healthy: ProbeResult) -> None:
    found = conclude(healthy)
    assert found.failures == () and found.finished == 4 and healthy.missing == ()
    assert {(f.op, f.group) for f in found.figures} == {(op, "world") for op in healthy.plan.ops}
    assert {f.bytes for f in found.figures} == set(healthy.plan.sizes)
    assert all(f.correct and f.count >= 2 and f.median > 0 for f in found.figures)
    assert found.mismatches == () and found.verified == len(healthy.plan.ops) * len(healthy.plan.sizes)
    assert healthy.torch is not None and healthy.skipped == ()


def test_nobody_is_accused_where_all_are_healthy() -> None:
    found = conclude(probe(4, ops=("all_gather",)))
    assert not [c for c in found.culprits if c.fails], found.culprits


def test_every_rank_measures_the_same_iterations(healthy: ProbeResult) -> None:
    for r in healthy.ranks:
        assert [(t.op, t.bytes, len(t.seconds), len(t.barrier_seconds)) for t in r.collectives] == [
            (t.op, t.bytes, len(t.seconds), len(t.barrier_seconds)) for t in healthy.ranks[0].collectives
        ]
        assert len(r.work[0].wall_seconds) == len(r.work[0].cpu_seconds) == healthy.plan.work_repeats
        assert r.init_seconds is not None and r.connect_seconds is not None and r.import_seconds is not None


def test_every_directed_pair_is_timed_by_its_source(healthy: ProbeResult) -> None:
    pairs = [(p.source, p.target) for r in healthy.ranks for p in r.pairs if p.run == 0]
    assert sorted(pairs) == [(a, b) for a in range(4) for b in range(4) if a != b]
    assert all(p.source == r.rank for r in healthy.ranks for p in r.pairs)


@pytest.mark.parametrize(
    ("sabotage", "cause"),
    [
        ("kill:1:30", (DIED, (1,))),
        ("stop:0:30", (HUNG, (0,))),
        ("sleep:1:30", (HUNG, (1,))),
        ("raise:0:30", (DIED, (0,))),
        ("never:1", (DIED, (1,))),
    ],
)
def test_a_broken_rank_is_named_and_not_its_victim(sabotage: str, cause: tuple[str, tuple[int, ...]]) -> None:
    result = probe(2, sabotage)
    assert causes(result) == [cause], result.ranks
    (failure,) = conclude(result).failures
    assert failure.victims == (1 - cause[1][0],)
    words = {"kill": "SIGKILL", "stop": "SIGSTOP", "raise": "the sabotage raised this", "never": "7"}
    assert words.get(sabotage.split(":")[0], "") in failure.words
    if sabotage.startswith("sleep"):
        assert "sabotage.py" in " ".join(failure.evidence)


def test_a_rank_that_comes_late_is_missed() -> None:
    assert causes(probe(4, "late-start:2:1000")) == [(MISSING, (2,))]


def test_what_one_rank_lacks_is_left_out_by_all() -> None:
    result = probe(4, "lacks:3")
    assert causes(result) == []
    assert {f.op for f in conclude(result).figures} == {"all_gather", "all_reduce"}
    assert result.skipped == ("rank 3: RuntimeError: this build has no reduce_scatter",)


def test_a_rank_that_pauses_between_collectives_is_late() -> None:
    found = conclude(probe(4, "late:2:0.02"))
    assert named(found, LATE) == {2} and not named(found, TRANSFER) - {2}
    assert any(c.kind == LATE and c.confirmed for c in found.culprits)


def test_wrong_bytes_are_found_with_the_rank_that_sends_them() -> None:
    found = conclude(probe(4, "corrupt:1", pair_bytes=()))
    assert {m.op for m in found.mismatches} == {"all_gather"}
    assert all(m.slices == (1,) and m.receivers == (0, 1, 2, 3) for m in found.mismatches)
    assert "element 1 is" in (found.mismatches[0].first_bad or "")


def test_parts_in_the_wrong_place_are_found_with_devices_in_another_order() -> None:
    variables = {**os.environ, "SABOTAGE": "permute:-1"}
    asked = Request(plan(4, ops=("all_gather",)), 4, environment=variables, script=SABOTAGE)
    result = self_launch(turned(asked))
    found = conclude(result)
    assert result.rotated and found.failures == () and [r.stage for r in result.ranks] == ["done"] * 4
    assert all(m.slices == (0, 1, 2, 3) and m.receivers == (0, 1, 2, 3) for m in found.mismatches)
    assert found.mismatches and "in the wrong place with reordered GPUs" in found.mismatches[0].pattern


def test_a_rank_without_its_share_of_a_core_computes_slowly() -> None:
    found = conclude(probe(4, "starve:1:0.9", work_repeats=8, pair_bytes=()))
    assert named(found, COMPUTE) == {1}, found.culprits
    assert named(found, LATE) <= {1}


def test_a_rank_that_sends_slowly_is_named(tmp_path: Path) -> None:
    library = paced_library(tmp_path)
    if library is None:
        pytest.skip("there is no C compiler")
    wrapper = tmp_path / "paced.py"
    wrapper.write_text(
        "import os, sys\n"
        "if os.environ['RANK'] == '2' and 'LD_PRELOAD' not in os.environ:\n"
        f"    os.environ.update(LD_PRELOAD={str(library)!r}, PACE_MBPS='60')\n"
        "    os.execv(sys.executable, [sys.executable, '-B', *sys.argv])\n"
        "from tests.support.sabotage import main\n"
        "main.main(sys.argv[1])\n"
    )
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    found = conclude(self_launch(Request(plan(4), 4, environment=variables, script=wrapper)))
    assert found.failures == ()
    assert named(found, TRANSFER) == {2}, found.culprits


def test_a_python_without_torch_is_said_in_one_line(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=60
    )
    with pytest.raises(ProbeError, match="has no torch: name the Python of the training with --python"):
        self_launch(Request(plan(2), 2, python=str(tmp_path / "venv" / "bin" / "python")))


def test_the_deadline_holds_whatever_the_ranks_do() -> None:
    began = time.monotonic()
    variables = {**os.environ, "SABOTAGE": "sleep:0:1"}
    request = Request(plan(2), 2, environment=variables, script=SABOTAGE, until=began + 6)
    result = self_launch(request)
    assert result.deadline_passed and time.monotonic() - began < 30


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ranks_end_with_the_command(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "fsdp_doctor", "probe", "--nproc", "2", "--backend", "gloo"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while len(processes_of_probes()) < 3 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(processes_of_probes()) == 3
    child.send_signal(number)
    child.wait(20)
    until = time.monotonic() + 20
    while processes_of_probes() and time.monotonic() < until:
        time.sleep(0.05)
    if number == signal.SIGKILL:  # nobody is left to remove it
        for folder in Path(tempfile.gettempdir()).iterdir():
            shutil.rmtree(folder)


def test_the_command_prints_figures_and_findings() -> None:
    command = [sys.executable, "-m", "fsdp_doctor", "probe", "--backend", "gloo", "--nproc", "2"]
    command += ["--sizes", "64K,1M", "--unit-sizes", "100K", "--ops", "all-gather", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    told = json.loads(done.stdout)
    assert done.returncode == 0, told["results"]
    sizes = told["data"]["ops"]["all_gather"]
    assert list(sizes) == ["65536", "102400", "1048576"]
    figure = sizes["1048576"]
    assert (
        figure["correct"]
        and figure["time_us"]["min"] <= figure["time_us"]["median"] <= figure["time_us"]["p99"]
    )
    assert figure["busbw_gbps"] == pytest.approx(figure["algbw_gbps"] / 2, rel=1e-3)
    assert {r["rank"] for r in told["data"]["ranks"]} == {0, 1}
    assert "PRB001" in {r["code"] for r in told["results"]}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--sizes", "lots"], 2, "64K"),
        (["--ops", "gossip"], 2, "gossip"),
        (["--nproc", "0"], 2, "nproc"),
        (["--python", "/nowhere/python"], 2, "/nowhere/python"),
    ],
)
def test_a_wrong_command_line_is_one_clear_error(arguments: list[str], code: int, words: str) -> None:
    command = [sys.executable, "-m", "fsdp_doctor", "probe", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code and words in done.stderr
    assert "Traceback" not in done.stderr


def test_launchers_variables_do_not_reach_the_ranks() -> None:
    kept = clean(
        {"RANK": "3", "TORCHELASTIC_RUN_ID": "x", "MASTER_PORT": "1", "NCCL_DEBUG": "INFO", "HOME": "/"}
    )
    assert kept == {"NCCL_DEBUG": "INFO", "HOME": "/"}
