"""No provider raises, whatever a machine or a recording holds."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures import machines
from fsdp_doctor.facts.environment import environment
from fsdp_doctor.facts.host import host
from fsdp_doctor.facts.kernel_log import kernel_log
from fsdp_doctor.facts.network import network
from fsdp_doctor.facts.nodelist import node_names, task_counts
from fsdp_doctor.facts.pci import pci
from fsdp_doctor.facts.pci_config import acs
from fsdp_doctor.facts.rdma import rdma
from fsdp_doctor.facts.recorded import MemoryTree, RecordedSource
from fsdp_doctor.facts.scheduler import read_scheduler, scheduler
from fsdp_doctor.facts.storage import storage
from fsdp_doctor.subjects.fact import Known, Unknown
from tests.unit.facts.literal import source

Fact = Known[object] | Unknown
PROVIDERS: tuple[Callable[[RecordedSource], Fact], ...] = (
    host,
    pci,
    network,
    rdma,
    lambda s: storage(s, "/mnt/ckpt/run"),
    kernel_log,
    scheduler,
    environment,
)
NODE = machines.job_node("n", "10.30.0.11/24")
NODE.put("proc/net/tcp", "sl local rem st\n0: 0100007F:1F90 0:0 0A")
NODE.put("proc/buddyinfo", "Node 0, zone Normal 1 2 3")
NODE.put("sys/fs/cgroup/user.slice/memory.max", "1000")
NODE.put("sys/fs/cgroup/user.slice/cpu.max", "1000 1000")
NODE.put("etc/systemd/logind.conf", "RemoveIPC=no")
NODE.put("etc/nccl.conf", "NCCL_DEBUG=INFO")
NODE.put("sys/devices/pci0000:00/0000:00:06.0/0000:06:00.0/config", machines.config_space(0x1D))
NODE.put("sys/devices/pci0000:00/0000:00:06.0/0000:06:00.0/aer_dev_fatal", "TOTAL_ERR_FATAL 3")
CONTENTS = NODE.contents()
FILES = sorted(n for n in CONTENTS if n.startswith("root/"))
QUICK = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))

numbers = st.sampled_from(
    ["0", "-1", "9" * 30, "0x", "1e400", "nan", "٣", "max", "unlimited", "1_0", "0-99999999999"]
)
rubbish = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=300).map(lambda t: t.encode("utf-8", "surrogatepass")),
    st.lists(
        st.one_of(numbers, st.sampled_from([":", ",", "-", "\n", " ", "/", "\0", "[", "(", " - ", "="]))
    ).map(lambda parts: "".join(parts).encode()),
)


def all_answer(contents: dict[str, bytes]) -> None:
    recorded = RecordedSource(MemoryTree(contents))
    for provider in PROVIDERS:
        assert isinstance(provider(recorded), (Known, Unknown))


@QUICK
@given(st.dictionaries(st.sampled_from(FILES), rubbish, min_size=1, max_size=25))
def test_files_of_rubbish(changed: dict[str, bytes]) -> None:
    all_answer(CONTENTS | changed)


@QUICK
@given(st.sampled_from(FILES), st.data())
def test_files_that_are_cut_or_changed(name: str, data: st.DataObject) -> None:
    whole = CONTENTS[name]
    at = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, 8))
    all_answer(CONTENTS | {name: whole[:at] + data.draw(rubbish) + whole[at + length :]})


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_missing(name: str) -> None:
    all_answer({k: v for k, v in CONTENTS.items() if k != name})


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@QUICK
@given(values, values, values, st.sampled_from(["interfaces", "resolve", "hostname"]))
def test_parts_of_any_shape(net: object, env: object, space: object, key: str) -> None:
    parts = {
        "net.json": {key: net},
        "env.json": env,
        "statvfs.json": {"/": space},
    }
    all_answer(CONTENTS | {k: json.dumps(v).encode() for k, v in parts.items()})


@QUICK
@given(
    rubbish,
    st.sampled_from(["[    1.000000] NVRM: Xid (", "3,1,5,-;", "2026-09-14T08:30:00,1+00:00 ", "-- ", ""]),
)
def test_logs(tail: bytes, head: str) -> None:
    assert isinstance(kernel_log(source(log=head.encode() + tail)), Known)


@QUICK
@given(st.binary(max_size=5000))
def test_configuration_spaces(raw: bytes) -> None:
    has, control = acs(raw)
    assert has is not False or control is None


VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"),
    *("TORCHELASTIC_RUN_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_JOB_ID"),
    *("SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_NODEID", "PMI_RANK", "PMI_SIZE"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PET_NNODES", "VC_A_HOSTS", "LSB_HOSTS"),
)


@QUICK
@given(
    st.dictionaries(
        st.sampled_from(VARIABLES), numbers | st.text(max_size=12) | st.sampled_from(["1", "2", "8"])
    )
)
def test_variables(env: dict[str, str]) -> None:
    found = read_scheduler(env)
    assert found.rank is None or found.rank >= 0


@QUICK
@given(st.text(alphabet="nab01239[]-,(x) ", max_size=40))
def test_lists_of_nodes(text: str) -> None:
    names = node_names(text)
    assert names is None or all(names)
    task_counts(text)


@pytest.mark.timeout(20)
def test_hostile_sizes_end_quickly() -> None:
    big = b"[" * 200_000 + b"1-9" * 100_000
    contents = CONTENTS | {
        "root/proc/self/mountinfo": b"1 0 0:1 / / rw" * 60_000,
        "root/proc/cpuinfo": b"flags" + b" " * 900_000,
        "root/proc/cmdline": b'"' * 60_000,
        "root/proc/buddyinfo": b"Node 0, zone A" + b" 1" * 30_000 + b"x",
        "root/etc/systemd/logind.conf": b"\n" * 65_000,
        "root/proc/self/limits": b"Max " + b" " * 65_000,
        "root/etc/hosts": b"a " * 400_000,
        "root/sys/devices/system/cpu/online": b"0-65535," * 8000,
        "kernel_log.txt": b"\n".join([big, b"NVRM: Xid (PCI:" + b"0" * 100_000, b" " * 100_000]),
    }
    all_answer(contents)
