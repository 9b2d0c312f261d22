from __future__ import annotations

import pytest

from fixtures import machines
from fixtures.memory import source_of
from fsdp_doctor.facts.storage import space, storage
from fsdp_doctor.subjects.fact import Unknown
from fsdp_doctor.subjects.storage import CheckpointPath, Mount, Space, Storage
from tests.unit.facts.literal import known, source

GIB = 1 << 30
NFS = Mount(
    "/mnt/ckpt", "nfs4", "10.30.0.5:/export/ckpt", ("rw", "relatime", "vers=4.2", "hard", "proto=tcp")
)


def storage_of(machine: machines.Machine, checkpoint: str | None = None) -> Storage:
    value = known(storage(source_of(machine), checkpoint))
    assert isinstance(value, Storage)
    return value


def test_a_healthy_node() -> None:
    found = storage_of(machines.h100())
    assert found.mounts[0] == Mount("/", "ext4", "/dev/nvme0n1p2", ("rw", "relatime"))
    assert found.spaces["/"] == Space("/", 1700 * GIB, 1100 * GIB, 1100 * GIB, 120_000_000, 110_000_000)
    assert found.spaces["/dev/shm"].total == 2015 * GIB // 2 // 4096 * 4096
    assert found.checkpoint is None


def test_a_container() -> None:
    found = storage_of(machines.h100_container(shm=64 << 20))
    root = found.mount_of("/anything")
    assert root is not None
    assert (root.fstype, root.options[:3]) == ("overlay", ("rw", "relatime", "lowerdir=/a"))
    assert found.spaces["/dev/shm"].total == 64 << 20
    shm = found.mount_of("/dev/shm/x")
    assert shm is not None
    assert shm.options == ("rw", "relatime", "size=65536k")


@pytest.mark.parametrize(
    ("machine", "total"),
    [
        (machines.a100(), 1700),
        (machines.l40s(), 1700),
        (machines.geforce(), 1700),
        (machines.h200_vm(), 1700),
        (machines.laptop(), 460),
    ],
    ids=["a100", "l40s", "geforce", "h200_vm", "laptop"],
)
def test_the_other_machines(machine: machines.Machine, total: int) -> None:
    found = storage_of(machine)
    assert found.spaces["/tmp"].total == total * GIB
    assert [m.point for m in found.mounts] == [
        "/",
        "/proc",
        "/sys",
        "/dev",
        "/dev/shm",
        "/sys/fs/cgroup",
        "/tmp",
    ]


def test_a_checkpoint_folder_on_a_file_server() -> None:
    found = storage_of(machines.job_node("n", "10.30.0.11/24"), "/mnt/ckpt")
    assert found.checkpoint == CheckpointPath(
        "/mnt/ckpt",
        exists=True,
        nearest="/mnt/ckpt",
        is_dir=True,
        writable=None,
        mount=NFS,
        space=Space("/mnt/ckpt", 90_000 * GIB, 41_000 * GIB, 41_000 * GIB, 120_000_000, 110_000_000),
    )


def test_a_folder_below_it_that_was_not_asked_about() -> None:
    found = storage_of(machines.job_node("n", "10.30.0.11/24"), "/mnt/ckpt/../ckpt/run//7")
    checkpoint = found.checkpoint
    assert checkpoint is not None
    assert (checkpoint.path, checkpoint.exists, checkpoint.nearest) == ("/mnt/ckpt/run/7", None, "/mnt/ckpt")
    assert checkpoint.mount == NFS
    assert checkpoint.space is not None
    assert checkpoint.space.path == "/mnt/ckpt"


def test_a_mount_between_what_was_asked_and_the_folder() -> None:
    machine = machines.h100()
    machine.mounts.append(("/data", "lustre", "10.0.0.1@o2ib:/l", "rw,flock"))
    checkpoint = storage_of(machine, "/data/run").checkpoint
    assert checkpoint is not None
    assert checkpoint.mount is not None
    assert (checkpoint.mount.fstype, checkpoint.space) == ("lustre", None)


def test_a_link_to_another_mount() -> None:
    machine = machines.job_node("n", "10.30.0.11/24")
    machine.links["ckpt"] = "mnt/ckpt"
    checkpoint = storage_of(machine, "/ckpt").checkpoint
    assert checkpoint is not None
    assert checkpoint.mount == NFS
    assert checkpoint.space is not None
    assert checkpoint.space.path == "/mnt/ckpt"


class TestMounts:
    def test_escapes_fields_and_the_last_mount_of_a_place(self) -> None:
        lines = (
            "1 0 8:1 / / rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n"
            "2 1 0:5 / /my\\040disk\\134x ro shared:2 master:3 - fuse.s3fs s3fs\\040b rw,user_id=0\n"
            "3 1 0:6 / /mnt rw - tmpfs tmpfs rw\n"
            "4 1 0:7 / /mnt rw - xfs /dev/md0 rw\n"
            "5 1 0:8 / /b\\303\\274 rw - nfs4 h:/x rw\n"
            "broken\n6 1 0:9 / /none rw - \n"
        )
        found = known(storage(source({"proc/self/mountinfo": lines})))
        assert isinstance(found, Storage)
        assert found.mounts[0] == Mount("/", "ext4", "/dev/sda1", ("rw", "noatime", "errors=remount-ro"))
        assert found.mounts[1] == Mount("/my disk\\x", "fuse.s3fs", "s3fs b", ("ro", "rw", "user_id=0"))
        assert [m.point for m in found.mounts[2:]] == ["/mnt", "/mnt", "/bü"]
        mnt = found.mount_of("/mnt/x")
        assert mnt is not None
        assert mnt.fstype == "xfs"

    def test_the_old_table(self) -> None:
        found = known(storage(source({"proc/mounts": "h:/e /mnt nfs rw,soft,timeo=10 0 0\nbad\n"})))
        assert isinstance(found, Storage)
        assert found.mounts == (Mount("/mnt", "nfs", "h:/e", ("rw", "soft", "timeo=10")),)


def test_figures_without_sense() -> None:
    assert space("/", {}) is None
    assert space("/", {"f_frsize": 4096, "f_blocks": -1, "f_bfree": 1}) is None
    assert space("/", {"f_frsize": 2, "f_blocks": 10, "f_bfree": 5, "f_bavail": -3}) == Space("/", 20, 10, 0)
    assert space("/", {"f_frsize": 2, "f_blocks": 10, "f_bfree": 5}) == Space("/", 20, 10, 10)


def test_nothing_to_read() -> None:
    assert isinstance(storage(source(), "/x"), Unknown)
