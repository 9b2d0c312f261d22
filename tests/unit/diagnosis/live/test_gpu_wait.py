"""A rank that waits for its GPU stands in its own code; a rank that sleeps does too."""

from __future__ import annotations

from dataclasses import replace

from fixtures.cases.live import PACK, rank
from fsdp_doctor.diagnosis.live.gpu_loads import gpu_loads
from fsdp_doctor.diagnosis.live.sample import waiting_for_gpu
from fsdp_doctor.subjects.gpu import Gpu, GpuProcess
from fsdp_doctor.subjects.stacks import CODE, GPU, GpuLoad, RankProcess

BUSY = (GpuLoad(0, (0, 1), "H200", 100, 125.0, 700.0),)


def at(text: str, cpu: float = 0.0, moving: bool = False) -> RankProcess:
    process = rank(0, PACK, cpu_seconds=cpu, moving=moving)
    assert process.place is not None
    return replace(process, place=replace(process.place, text=text))


def kind(process: RankProcess, gpus: tuple[GpuLoad, ...] = BUSY) -> str:
    found = waiting_for_gpu(process, 0, gpus, 1.0).place
    assert found is not None
    return found.kind


def test_the_source_line_tells() -> None:
    assert kind(at('print(f"loss {loss.item():.4f}")')) == GPU
    assert kind(at("metrics = logits.argmax(-1).cpu()")) == GPU


def test_a_processor_that_spins_at_one_line_while_the_gpu_is_busy() -> None:
    assert kind(at("", cpu=1.0)) == GPU
    assert kind(at("", cpu=1.0, moving=True)) == CODE
    assert kind(at("", cpu=1.0), ()) == CODE


def test_sleep_is_no_wait_for_a_gpu() -> None:
    assert kind(at("time.sleep(100)")) == CODE


def test_gpus_of_the_ranks_by_process() -> None:
    gpus = (
        Gpu(0, utilization=100, power_usage=125000, power_limit=700000, processes=(GpuProcess(51, 1 << 30),)),
        Gpu(1, utilization=3, processes=(GpuProcess(99, 1 << 30),)),
    )
    (found,) = gpu_loads(gpus, {51: 3})
    assert (found.index, found.ranks, found.utilisation, found.power) == (0, (3,), 100, 125.0)


def test_gpus_in_use_where_the_driver_hides_processes() -> None:
    gpus = (Gpu(0, memory_used=9 << 30, processes=()), Gpu(1, memory_used=1 << 20, processes=()))
    assert [(g.index, g.ranks) for g in gpu_loads(gpus, {51: 3})] == [(0, ())]
