"""A real H200 machine, recorded: the facts are what `nvidia-smi -q` printed there, and nothing fails."""

from __future__ import annotations

from pathlib import Path

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.facts.collect import collect
from fsdp_doctor.facts.recorded import open_recording
from fsdp_doctor.findings import Status
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.stack import Stack, Torch

H200 = Path(__file__).parents[2] / "fixtures" / "recordings" / "h200-vm.zip"


def facts() -> Facts:
    kinds = {k for c in registry().checks for k in (*c.needs, *c.uses)} | {Driver, Gpus, Stack, Torch}
    return collect(open_recording(H200), tuple(kinds))


def test_facts_are_what_nvidia_smi_printed() -> None:
    found = facts()
    (gpu,) = found[Gpus].devices
    assert (gpu.name, gpu.memory_total, gpu.memory_reserved) == ("NVIDIA H200", 143771 << 20, 644939776)
    assert (gpu.memory_used, gpu.memory_free) == (0, 150109880320)
    assert (gpu.ecc_current, gpu.ecc_pending, set(gpu.ecc.values())) == (True, True, {0})
    assert gpu.remapped is not None and not gpu.remapped.pending and not gpu.remapped.failure
    assert gpu.remap_histogram == {"max": 3072, "high": 0, "partial": 0, "low": 0, "none": 0}
    assert (gpu.pcie_gen, gpu.pcie_gen_max, gpu.pcie_width, gpu.pcie_width_max) == (5, 5, 16, 16)
    assert (gpu.temperature, gpu.temperature_margin) == (35, 52)
    assert (gpu.power_limit, gpu.power_default, gpu.power_max) == (700_000, 700_000, 700_000)
    assert (gpu.performance_state, gpu.clocks_event_reasons) == (0, 1)
    assert (gpu.persistence, gpu.compute_mode, gpu.mig_current, gpu.virtualization_mode) == (
        True,
        0,
        False,
        1,
    )
    assert (gpu.vbios, gpu.gsp_version, gpu.recovery_action) == ("96.00.A5.00.1A", "580.159.04", 0)
    driver = found[Driver]
    assert (driver.version, driver.cuda_version, driver.open_module) == ("580.159.04", 13000, True)


def test_what_the_virtual_machine_hides_is_unknown() -> None:
    (gpu,) = facts()[Gpus].devices
    assert gpu.nvlinks is None
    assert gpu.errors["nvmlDeviceGetNvLinkState"] == "NotSupported"
    assert gpu.fabric is not None and gpu.fabric.state == 0


def test_torch_as_it_answered() -> None:
    torch = facts()[Torch]
    assert (torch.version, torch.cuda, torch.nccl, torch.nccl_runtime) == (
        "2.11.0+cu130",
        "13.0",
        "2.28.9",
        "2.28.9",
    )
    assert torch.cuda_available is True and torch.device_count == 1


def test_nothing_fails_and_hidden_links_do_not_pass() -> None:
    results = run_checks(registry().checks, facts(), Options())
    assert [r for r in results if r.status in (Status.FAIL, Status.WARN, Status.ERROR)] == []
    nvlink = {r.code: r.status for r in results if r.code in ("LNK001", "LNK002", "LNK004")}
    assert set(nvlink.values()) == {Status.SKIP}
    assert sum(r.status is Status.PASS for r in results) > 100
