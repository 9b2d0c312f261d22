"""Facts come from the provider of their type; a provider that breaks costs its own fact only."""

from __future__ import annotations

import pytest

from fixtures import machines
from fixtures.memory import source_of
from fsdp_doctor.facts import collect as module
from fsdp_doctor.facts import host as host_module
from fsdp_doctor.facts import pci as pci_module
from fsdp_doctor.facts.collect import KINDS, collect
from fsdp_doctor.facts.source import Manifest
from fsdp_doctor.subjects.fact import Known, MissingFact, Unknown
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.kernel_log import KernelLog
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.pci import Pci
from fsdp_doctor.subjects.rdma import Rdma
from fsdp_doctor.subjects.scheduler import Identity, Scheduler
from fsdp_doctor.subjects.storage import Storage


def test_every_kind_of_a_healthy_machine() -> None:
    facts = collect(source_of(machines.h100()), KINDS)
    for kind in KINDS:
        if kind is not Launch:
            assert isinstance(facts.fact(kind), Known), kind


def test_only_what_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(pci_module, "pci", asked.append)
    facts = collect(source_of(machines.laptop()), [Host, Host])
    assert facts.find(Host) is not None and asked == []
    with pytest.raises(MissingFact, match="not collected"):
        facts[Pci]


def test_laptop_has_no_gpus() -> None:
    facts = collect(source_of(machines.laptop()), [Gpus, Rdma, KernelLog])
    gpus, rdma, log = (facts.fact(k) for k in (Gpus, Rdma, KernelLog))
    assert isinstance(gpus, Unknown) and gpus.absent
    assert isinstance(rdma, Unknown) and rdma.absent
    assert isinstance(log, Unknown) and not log.absent and "dmesg_restrict" in log.reason


def test_broken_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: object) -> object:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(host_module, "host", broken)
    monkeypatch.setattr(pci_module, "pci", lambda source: Known("text"))
    facts = collect(source_of(machines.h100()), [Host, Pci, Driver])
    assert facts.fact(Host) == Unknown("provider host failed: ZeroDivisionError: by zero")
    assert facts.fact(Pci) == Unknown("provider pci failed: it answered a Known")
    assert facts.find(Driver) is not None


def test_missing_module_matters_only_when_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROVIDERS", {**module.PROVIDERS, Rdma: ("not_there", "rdma")})
    source = source_of(machines.laptop())
    assert collect(source, [Host]).find(Host) is not None
    with pytest.raises(ModuleNotFoundError):
        collect(source, [Rdma])


def test_type_that_nothing_provides() -> None:
    assert collect(source_of(machines.laptop()), [int]).fact(int) == Unknown("nothing provides int")


def test_launch_is_passed_through() -> None:
    launch = Launch("torchrun", ("torchrun", "t.py"))
    source = source_of(machines.laptop())
    assert collect(source, [Launch], launch=launch)[Launch] is launch
    fact = collect(source, [Launch]).fact(Launch)
    assert isinstance(fact, Unknown) and fact.absent


def test_checkpoint_of_the_recording_unless_another_is_named() -> None:
    m = machines.job_node("a", "10.0.0.1/24")
    m.manifest["checkpoint_dir"] = "/mnt/ckpt"
    for asked, path in ((None, "/mnt/ckpt"), ("/tmp/x", "/tmp/x")):
        found = collect(source_of(m), [Storage], checkpoint=asked)[Storage].checkpoint
        assert found is not None and found.path == path
    assert collect(source_of(machines.laptop()), [Storage])[Storage].checkpoint is None


def test_identity_of_a_recording_is_its_manifest() -> None:
    rank = machines.two_nodes().ranks[2]
    rank.env["RANK"] = "99"
    identity = collect(source_of(rank), [Identity])[Identity]
    assert (identity.host, identity.rank, identity.world_size) == ("node-b", 2, 4)
    assert identity.recorded and identity.clock_offset_seconds == pytest.approx(0.00046)


def test_identity_of_a_live_machine_is_its_environment() -> None:
    class Live:
        manifest = Manifest(host="here")
        env = staticmethod(lambda: Known({"RANK": "3", "WORLD_SIZE": "8"}))

    identity = collect(Live(), [Identity, Scheduler])[Identity]  # type: ignore[arg-type]
    assert (identity.host, identity.rank, identity.world_size) == ("here", 3, 8)
    assert not identity.recorded
