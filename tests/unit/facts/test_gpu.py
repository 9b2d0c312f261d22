"""`gpus` and `driver` over made machines and the recorded answers of a real H200."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures import machines
from fixtures.machines import Machine, key
from fixtures.memory import source_of
from fsdp_doctor.facts.gpu import driver, gpus
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.gpu import Driver, Fabric, Gpu, GpuProcess, Gpus, NvLink, RemappedRows, SramEcc

LOST = {"error": "GpuIsLost"}


def known_gpus(machine: Machine) -> Gpus:
    fact = gpus(source_of(machine))
    assert isinstance(fact, Known), fact
    return fact.value


def known_driver(machine: Machine) -> Driver:
    fact = driver(source_of(machine))
    assert isinstance(fact, Known), fact
    return fact.value


def first(**changes: object) -> Gpu:
    """GPU 0 of an H100 node with other answers of these functions."""
    machine = machines.h100()
    machine.gpu(0).update({f"nvmlDevice{k}": v for k, v in changes.items()})
    return known_gpus(machine).devices[0]


class TestHealthyMachines:
    def test_h100(self) -> None:
        found = known_gpus(machines.h100())
        assert (found.count, len(found.devices), found.visible) == (8, 8, None)
        g = found.devices[3]
        assert (g.index, g.minor, g.name, g.bdf) == (3, 3, "NVIDIA H100 80GB HBM3", "0000:61:00.0")
        assert g.uuid == "GPU-" + machines.made_uuid("h100-node-a", "gpu", 3)
        assert (g.capability, g.architecture, g.brand, g.cores) == ((9, 0), 9, 14, 16896)
        assert (g.memory_total, g.memory_reserved, g.memory_used) == (81559 << 20, 600 << 20, 5 << 20)
        assert (g.memory_used_v1, g.memory_free) == (605 << 20, (81559 - 605) << 20)
        assert g.processes == g.graphics_processes == g.mps_processes == ()
        assert (g.ecc_current, g.ecc_pending) == (True, True)
        assert g.ecc == {(k, c): 0 for k in ("corrected", "uncorrected") for c in ("volatile", "aggregate")}
        assert (g.sram_corrected, g.sram) == (0, SramEcc(0, 0, False))
        assert g.remapped == RemappedRows(0, 0, False, False)
        assert g.remap_histogram == {"max": 3072, "high": 0, "partial": 0, "low": 0, "none": 0}
        assert (g.recovery_action, g.repair_pending, g.unrepairable_memory) == (0, False, False)
        assert g.clocks_event_reasons == 1
        assert g.violation_ns == dict.fromkeys(range(6), 0)
        assert (g.temperature, g.temperature_margin) == (31, 52)
        assert (g.temperature_slowdown, g.temperature_shutdown, g.temperature_memory_max) == (89, 92, 95)
        assert (g.power_limit, g.power_default, g.power_max, g.power_usage) == (700000, 700000, 700000, 70000)
        assert (g.clock_sm, g.clock_sm_max, g.clock_sm_app, g.clock_sm_app_default) == (345, 1980, 1980, 1980)
        assert (g.clock_mem, g.clock_mem_max) == (2619, 2619)
        assert (g.performance_state, g.persistence) == (0, True)
        assert (g.mig_current, g.mig_pending, g.compute_mode, g.virtualization_mode) == (False, False, 0, 0)
        assert (g.pcie_gen, g.pcie_gen_max, g.pcie_gen_gpu_max, g.pcie_width, g.pcie_width_max) == (
            5,
            5,
            5,
            16,
            16,
        )
        assert (g.pcie_replays, g.numa_node) == (0, 0)
        assert known_gpus(machines.h100()).devices[4].numa_node == 1
        counters = {"replay": 0, "recovery": 0, "crc_flit": 0, "crc_data": 0}
        assert g.nvlinks == tuple(NvLink(i, True, 2, counters) for i in range(18))
        assert (g.nvlink_count, g.nvlink_mbps) == (18, 26562)
        assert g.fabric == Fabric(3, 0, 0, "00000000-0000-0000-0000-000000000000", 0, 0)
        assert g.p2p == {(p, i): 0 for p in range(8) if p != 3 for i in range(5)}
        assert g.common_ancestor == {0: 40, 1: 40, 2: 40, 4: 50, 5: 50, 6: 50, 7: 50}
        assert (g.gsp_mode, g.gsp_version) == ((1, 1), "580.95.05")
        assert (g.vbios, g.inforom, g.inforom_valid) == ("99.00.61.00.03", "G520.0282.02.02", True)
        assert (g.lost, g.errors["nvmlDeviceGetRetiredPagesPendingStatus"]) == (None, "NotSupported")
        assert g.retired_pages is None and g.retired_pending is None

    def test_geforce_has_no_ecc_links_or_mig(self) -> None:
        g = known_gpus(machines.geforce()).devices[1]
        assert (g.ecc_current, g.ecc, g.sram, g.remapped, g.mig_current) == (None, {}, None, None, None)
        assert (g.nvlinks, g.nvlink_count, g.fabric) == (None, None, None)
        assert g.errors["nvmlDeviceGetNvLinkState"] == "NotSupported"
        assert g.p2p[0, 0] == 1 and g.p2p[0, 2] == 5

    def test_virtual_machine_hides_links_and_node(self) -> None:
        g = known_gpus(machines.h200_vm()).devices[0]
        assert (g.nvlinks, g.numa_node, g.bdf, g.p2p) == (None, None, "0000:00:06.0", {})
        assert g.fabric is not None and g.fabric.state == 0

    def test_a100_has_no_fabric(self) -> None:
        g = known_gpus(machines.a100()).devices[0]
        assert g.fabric is None and len(g.nvlinks or ()) == 12

    def test_real_h200_answers(self) -> None:
        """Every getter that takes only a handle, 39 of them failing, with messages and removed values."""
        raw = json.loads(machines.H200_ANSWERS.read_text())
        machine = machines.h200_vm()
        machine.nvml = {
            "system": {k: v for k, v in raw.items() if k.startswith("nvmlSystem")},
            "devices": [{k: v for k, v in raw.items() if not k.startswith("nvmlSystem")}],
        }
        g = known_gpus(machine).devices[0]
        assert (g.name, g.capability, g.memory_total) == ("NVIDIA H200", (9, 0), 150754820096)
        assert (g.memory_used, g.memory_used_v1) == (None, 644939776)
        assert (g.uuid, g.board_part) == (None, None), "removed values are no answers"
        assert (g.temperature_margin, g.power_usage, g.virtualization_mode) == (54, 77994, 1)
        assert g.errors["nvmlDeviceGetRetiredPagesPendingStatus"] == "NotSupported"
        assert g.errors["nvmlDeviceGetLastBBXFlushTime"] == "NotReady"
        assert len(g.errors) == 39
        assert known_driver(machine).cuda_version == 13000


class TestAnswers:
    def test_a_lost_handle(self) -> None:
        machine = machines.h100()
        machine.nvml["devices"][2] = LOST
        found = known_gpus(machine)
        assert found.devices[2].lost == "GpuIsLost" and found.devices[2].index == 2
        assert [g.index for g in found.present] == [0, 1, 3, 4, 5, 6, 7]

    def test_lost_after_the_handle(self) -> None:
        assert first(GetMemoryInfo_v2=LOST).lost == "GpuIsLost"
        assert first(GetPowerUsage={"error": "NoAnswer"}).lost == "NoAnswer"

    def test_a_call_that_was_late_is_not_a_lost_gpu(self) -> None:
        g = first(GetPowerUsage={"error": "NotInTime"})
        assert g.lost is None and g.errors["nvmlDeviceGetPowerUsage"] == "NotInTime"

    def test_a_lost_peer_does_not_make_this_one_lost(self) -> None:
        g = first(GetP2PStatus={"args": {key(1, 0): LOST, key(2, 0): 0}}, GetTopologyCommonAncestor=LOST)
        assert g.lost is None and g.p2p == {(2, 0): 0}
        assert g.errors["nvmlDeviceGetP2PStatus[1,0]"] == "GpuIsLost"

    def test_older_versions_serve_where_the_newest_fails(self) -> None:
        missing = {"error": "FunctionNotFound"}
        g = first(
            GetMemoryInfo_v2=missing,
            GetPciInfo_v3=missing,
            GetCurrentClocksEventReasons=missing,
            GetCurrentClocksThrottleReasons=64,
            GetTemperatureV=missing,
            GetComputeRunningProcesses_v3=missing,
            GetComputeRunningProcesses_v2=[{"pid": 7, "usedGpuMemory": 5}],
        )
        assert (g.memory_total, g.memory_used) == (81559 << 20, None)
        assert (g.bdf, g.clocks_event_reasons, g.temperature) == ("0000:1b:00.0", 64, 31)
        assert g.processes == (GpuProcess(7, 5),)

    def test_links(self) -> None:
        states = {key(i): 1 for i in range(12)} | {key(3): 0, key(4): {"error": "Unknown"}}
        states |= {key(i): {"error": "InvalidArgument"} for i in range(12, 18)}
        g = first(GetNvLinkState={"args": states}, GetNvLinkErrorCounter={"args": {key(1, 1): 9}})
        links = g.nvlinks or ()
        assert [x.index for x in links] == list(range(12))
        assert [x.active for x in links[2:6]] == [True, False, None, True]
        assert links[1].errors == {"recovery": 9}

    def test_no_link_counted_is_none_there(self) -> None:
        values = {"args": {key(91): {"nvmlReturn": 0, "value": 0}, key(230): {"nvmlReturn": 3, "value": 0}}}
        g = first(GetFieldValues=values)
        assert (g.nvlinks, g.nvlink_count, g.recovery_action) == ((), 0, None)

    def test_fabric_as_structure_with_bytes(self) -> None:
        g = first(
            GetGpuFabricInfoV={
                "state": "2",
                "status": 0,
                "clusterUuid": list(range(16)),
                "cliqueId": 7,
                "healthMask": 1,
            }
        )
        assert g.fabric == Fabric(2, 0, 7, "00010203-0405-0607-0809-0a0b0c0d0e0f", 1, None)

    def test_memory_errors(self) -> None:
        g = first(
            GetTotalEccErrors={"args": {"[0,0]": 5, "[1, 1]": 2, "[1,0]": {"error": "NotSupported"}}},
            GetSramEccErrorStatus={
                "volatileUncParity": 1,
                "volatileUncSecDed": 2,
                "aggregateUncParity": 3,
                "aggregateUncSecDed": 4,
                "volatileCor": 6,
                "bThresholdExceeded": 1,
            },
            GetRemappedRows=[1, 2, 1, 0],
            GetRetiredPages={"args": {"[0]": [1, 2], "[1]": [3]}},
            GetRetiredPagesPendingStatus=1,
            GetRepairStatus=[0, 1],
        )
        assert g.ecc == {("corrected", "volatile"): 5, ("uncorrected", "aggregate"): 2}
        assert (g.sram, g.sram_corrected) == (SramEcc(3, 7, True), 6)
        assert g.remapped == RemappedRows(1, 2, True, False)
        assert (g.retired_pages, g.retired_pending, g.repair_pending) == (3, True, True)

    def test_corrupted_inforom(self) -> None:
        assert first(ValidateInforom={"error": "CorruptedInforom"}).inforom_valid is False
        unknown = first(GetInforomConfigurationChecksum={"error": "NotSupported"})
        assert unknown.inforom_valid is None

    @pytest.mark.parametrize(
        ("bus_id", "bdf"),
        [
            ("00000000:1B:00.0", "0000:1b:00.0"),
            ("00010000:00:00.0", "10000:00:00.0"),
            ("00000008:01:00.0", "0008:01:00.0"),
            ("nonsense", None),
        ],
    )
    def test_address_as_sysfs_writes_it(self, bus_id: str, bdf: str | None) -> None:
        assert first(GetPciInfo_v3={"busId": bus_id}, GetPciInfo=LOST if bdf is None else {}).bdf == bdf


class TestProcesses:
    def test_name_and_owner_come_from_proc(self) -> None:
        machine = machines.h100()
        machine.gpu(0)["nvmlDeviceGetComputeRunningProcesses_v3"] = [
            {"pid": 41823, "usedGpuMemory": 30 << 30},
            {"pid": 99, "usedGpuMemory": None},
            {"pid": 98, "usedGpuMemory": (1 << 64) - 1},
            {"no": "pid"},
        ]
        machine.put("proc/41823/comm", "python")
        machine.put("proc/41823/status", "Name:\tpython\nPPid:\t1\nUid:\t1001\t1001\t1001\t1001")
        assert known_gpus(machine).devices[0].processes == (
            GpuProcess(41823, 30 << 30, "python", 1001),
            GpuProcess(99, None),
            GpuProcess(98, None),
        )

    def test_children_of_this_tool_are_its_own(self) -> None:
        machine = machines.h100()
        machine.drop("proc/self")
        machine.links["proc/self"] = "500"
        for pid, parent in ((500, 1), (501, 500), (502, 501), (600, 1)):
            machine.put(f"proc/{pid}/status", f"Name:\tx\nPPid:\t{parent}\nUid:\t0\t0\t0\t0")
        listed = [{"pid": p, "usedGpuMemory": 1} for p in (500, 502, 600)]
        machine.gpu(0)["nvmlDeviceGetComputeRunningProcesses_v3"] = listed
        found = known_gpus(machine).devices[0].processes or ()
        assert [p.own for p in found] == [True, True, False]


class TestNoGpus:
    @pytest.mark.parametrize(
        ("nvml", "words"),
        [
            (
                {"error": "LibraryNotFound"},
                "not found: no NVIDIA driver here although PCI lists 8 NVIDIA GPUs",
            ),
            ({"error": "DriverNotLoaded"}, "not loaded"),
            ({"error": "NVMLError_LibRmVersionMismatch: RM has detected"}, "different versions"),
            ({"error": "NoAnswer", "reason": "nvmlInit: no answer in 40 s"}, "nvmlInit: no answer in 40 s"),
            ({"error": "Code777"}, "Code777"),
            ({"system": {"nvmlDeviceGetCount": 0}, "devices": []}, "NVML counts no GPU although PCI lists 8"),
            (
                {"system": {"nvmlDeviceGetCount": {"error": "Unknown"}}, "devices": []},
                "cannot count the GPUs: Unknown",
            ),
            ({}, "NVML counts no GPU"),
        ],
    )
    def test_the_reason_is_said(self, nvml: dict[str, Any], words: str) -> None:
        machine = machines.h100()
        machine.nvml = nvml
        fact = gpus(source_of(machine))
        assert isinstance(fact, Unknown) and words in fact.reason and not fact.absent

    def test_a_laptop_has_none(self) -> None:
        for fact in (gpus(source_of(machines.laptop())), driver(source_of(machines.laptop()))):
            assert isinstance(fact, Unknown) and fact.absent


class TestDriver:
    def test_h100(self) -> None:
        d = known_driver(machines.h100())
        assert d.kernel_version == d.nvml_version == d.library_version == d.version == "580.95.05"
        assert (d.open_module, d.cuda_version, d.nvml_error) == (True, 13000, None)
        assert {"nvidia", "nvidia_uvm", "nvidia_peermem", "mlx5_ib", "ib_core"} <= set(d.modules)
        assert len(d.bound) == 8 and set(d.bound.values()) == {"nvidia"}
        assert d.proc_gpus["0000:1b:00.0"] == "NVIDIA H100 80GB HBM3"
        assert (d.conf_compute, d.conf_compute_devtools) == (False, False)

    def test_proprietary_module(self) -> None:
        assert known_driver(machines.h100(open_module=False)).open_module is False

    def test_kernel_version_from_the_module_alone(self) -> None:
        machine = machines.h100()
        machine.drop("proc/driver/nvidia/version")
        d = known_driver(machine)
        assert (d.kernel_version, d.open_module) == ("580.95.05", None)

    def test_mapped_library_goes_before_the_loaders_choice(self) -> None:
        machine = machines.h100()
        machine.stack["dlopen"]["libcuda.so.1"] = "/usr/local/cuda-13.0/compat/libcuda.so.590.44.01"
        assert known_driver(machine).library_version == "580.95.05"
        machine.stack["libraries"] = []
        assert known_driver(machine).library_version == "590.44.01"

    def test_library_name_behind_a_link(self) -> None:
        machine = machines.h100()
        machine.stack |= {"libraries": [], "dlopen": {"libcuda.so.1": "/usr/lib64/libcuda.so.1"}}
        machine.links["usr/lib64/libcuda.so.1"] = "libcuda.so.570.86.15"
        machine.put("usr/lib64/libcuda.so.570.86.15", "")
        assert known_driver(machine).library_version == "570.86.15"

    def test_nouveau_without_nvml(self) -> None:
        machine = machines.geforce(count=1)
        machine.nvml = {"error": "LibraryNotFound"}
        for folder in ("proc/driver/nvidia", "sys/module/nvidia", "sys/module/nvidia_uvm"):
            machine.drop(folder)
        machine.put("proc/modules", "nouveau 1 0 - Live 0x0")
        driver_link = next(k for k in machine.links if k.endswith("0000:01:00.0/driver"))
        machine.links[driver_link] = machine.links[driver_link].replace("nvidia", "nouveau")
        d = known_driver(machine)
        assert (d.bound, d.nvml_error, d.version) == ({"0000:01:00.0": "nouveau"}, "LibraryNotFound", None)
        assert "nouveau" in d.modules

    def test_wsl_has_nvml_alone(self) -> None:
        machine = machines.laptop()
        machine.nvml = copy.deepcopy(machines.h200_vm().nvml)
        assert known_driver(machine).version == "580.159.04"


class TestVisible:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("0,1,2", (0, 1, 2)),
            ("7, 0", (7, 0)),
            ("", ()),
            ("-1", ()),
            ("NoDevFiles", ()),
            ("0,-1,2", (0,)),
            ("0,9,2", (0,)),
            ("1,,2", (1,)),
            ("2,2", ()),
            ("3abc", (3,)),
            ("GPU-nonsense", ()),
            ("GPU-", ()),
            ("MIG-1234", ()),
            ("99999999999999999999", ()),
        ],
    )
    def test_indices(self, value: str, expected: tuple[int, ...]) -> None:
        machine = machines.h100()
        machine.env["CUDA_VISIBLE_DEVICES"] = value
        assert known_gpus(machine).visible == expected

    def test_uuid_prefixes(self) -> None:
        machine = machines.h100()
        uuids = [g["nvmlDeviceGetUUID"] for g in machine.gpus()]
        machine.env["CUDA_VISIBLE_DEVICES"] = f"{uuids[5]},{uuids[2][:12]}"
        assert known_gpus(machine).visible == (5, 2)

    def test_container_variable_plays_no_part(self) -> None:
        machine = machines.h100()
        machine.env["NVIDIA_VISIBLE_DEVICES"] = "0"
        assert known_gpus(machine).visible is None

    def test_mig(self) -> None:
        machine = machines.h100()
        machine.gpu(4)["nvmlDeviceGetMigMode"] = [1, 1]
        machine.env["CUDA_VISIBLE_DEVICES"] = "MIG-aaaa,MIG-bbbb"
        assert known_gpus(machine).visible == (4,), "the only GPU in MIG mode"
        machine.gpu(5)["nvmlDeviceGetMigMode"] = [1, 1]
        assert known_gpus(machine).visible == ()
        instances = {"args": {"[0]": {"nvmlDeviceGetUUID": "MIG-aaaa-1"}}}
        machine.gpu(5)["nvmlDeviceGetMigDeviceHandleByIndex"] = instances
        assert known_gpus(machine).visible == (5,)
        machine.env["CUDA_VISIBLE_DEVICES"] = f"MIG-{machine.gpu(4)['nvmlDeviceGetUUID']}/1/0"
        assert known_gpus(machine).visible == (4,)


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.just(LOST),
    lambda x: (
        st.lists(x, max_size=4)
        | st.dictionaries(
            st.sampled_from(["error", "args", "[0]", "[1,0]", "pid", "busId", "state", "[x"]), x
        )
    ),
    max_leaves=6,
)
FUNCTIONS = sorted(machines.h100().gpu(0))


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(FUNCTIONS), ODD, min_size=1, max_size=12), ODD, ODD)
def test_no_answer_whatever_raises(changes: dict[str, Any], system: Any, entry: Any) -> None:
    machine = machines.geforce(count=2)
    machine.gpu(0).update(changes)
    machine.nvml["devices"].append(entry)
    machine.nvml["system"]["nvmlDeviceGetCount"] = system
    machine.env["CUDA_VISIBLE_DEVICES"] = str(system)
    found = known_gpus(machine)
    assert len(found.devices) == 3 and all(isinstance(g, Gpu) for g in found.devices)
    hash(found.devices[0].bdf)
    machine.nvml["system"] = system
    driver(source_of(machine))
    machine.nvml = {"system": system, "devices": system}
    gpus(source_of(machine))
