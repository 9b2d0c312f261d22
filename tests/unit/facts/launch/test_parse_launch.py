"""Launch commands as users type them, read and not run."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp_doctor.facts.launch import LaunchError, parse_launch
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.tables.endpoints import split_endpoint


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('never run')\nopen('ran', 'w')\n")
    return tmp_path


def read(command: str, cwd: Path, **variables: str) -> Launch:
    return parse_launch(shlex.split(command), cwd, {"HOME": str(cwd), **variables})


def test_torchrun_with_all_its_parts(cwd: Path) -> None:
    launch = read(
        "NCCL_DEBUG=INFO torchrun --nnodes=2 --nproc-per-node 8 --node_rank=1 --rdzv-backend c10d "
        "--rdzv-endpoint=head:29400 --rdzv_id 7 train.py --nproc-per-node 3 --lr=1e-4 -- x",
        cwd,
    )
    assert launch.launcher == "torchrun"
    assert launch.environment == {"NCCL_DEBUG": "INFO"}
    assert (launch.nodes, launch.nproc_per_node, launch.world_size, launch.node_rank) == ((2, 2), 8, 16, 1)
    assert (launch.rdzv_backend, launch.rdzv_endpoint) == ("c10d", "head:29400")
    assert launch.script == "train.py"
    assert launch.script_arguments == ("--nproc-per-node", "3", "--lr=1e-4", "--", "x")
    assert launch.script_exists and launch.script_error is None
    assert launch.problems == ()


@pytest.mark.parametrize(
    ("command", "nproc", "nodes", "world"),
    [
        ("torchrun train.py", 1, (1, 1), 1),
        ("torchrun --standalone --nproc_per_node=4 train.py", 4, (1, 1), 4),
        ("torchrun --nproc-per 4 train.py", 4, (1, 1), 4),
        ("torchrun --nnodes 1:4 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint a:1 train.py", 2, (1, 4), None),
        ("python3.11 -u -m torch.distributed.run --nproc-per-node 2 train.py", 2, (1, 1), 2),
        ("python -um torch.distributed.launch --use_env --nproc_per_node=2 train.py", 2, (1, 1), 2),
        ("python -Wignore -X dev -mtorch.distributed.run --nproc-per-node 2 train.py", 2, (1, 1), 2),
        ("nohup nice -n 5 numactl -N 0 timeout -k 5 3600 env -u FOO A=1 torchrun --nproc-per-node=2 train.py", 2, (1, 1), 2),
        ("uv run --with x torchrun --nproc-per-node=2 train.py", 2, (1, 1), 2),
        ("conda run -n py torchrun --nproc-per-node=2 train.py", 2, (1, 1), 2),
        ("bash -lc 'A=1 torchrun --nproc-per-node=2 train.py'", 2, (1, 1), 2),
        ("accelerate launch --num_processes 16 --num_machines 2 --main_process_ip a --machine_rank 0 train.py", 8, (2, 2), 16),
        ("accelerate launch --num-processes=4 --fsdp_version 2 --multi_gpu train.py", 4, (1, 1), 4),
        ("srun -N2 --ntasks-per-node=8 --gres=gpu:8 --kill-on-bad-exit=1 python train.py", 8, (2, 2), 16),
        ("srun --nodes=2 -n 16 -l python -u train.py", 8, (2, 2), 16),
        ("srun -N 4 --ntasks-per-node 1 torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint h:1 train.py", 8, (4, 4), 32),
        ("mpirun -np 8 -H a:4,b:4 -x NCCL_DEBUG=INFO --mca btl tcp,self --bind-to none python train.py", 4, (2, 2), 8),
        ("mpirun -n 4 -N 2 python train.py", 2, (2, 2), 4),
        ("deepspeed --num_gpus 4 train.py --deepspeed ds.json", 4, (1, 1), 4),
        ("python train.py --x 1", None, None, None),
    ],
)  # fmt: skip
def test_ranks(
    cwd: Path, command: str, nproc: int | None, nodes: tuple[int, int] | None, world: int | None
) -> None:
    launch = read(command, cwd)
    assert (launch.nproc_per_node, launch.nodes, launch.world_size) == (nproc, nodes, world)
    assert launch.script == "train.py"
    assert launch.problems == ()
    assert not (cwd / "ran").exists()


def test_environment_of_wrappers_and_mpirun(cwd: Path) -> None:
    assert read("A=1 env B=2 torchrun train.py", cwd).environment == {"A": "1", "B": "2"}
    assert read("mpirun -n 2 -x C=3 -x PATH python train.py", cwd).environment == {"C": "3"}


@pytest.mark.parametrize("spec", ["auto", "gpu", "cpu"])
def test_counted_processes(cwd: Path, spec: str) -> None:
    launch = read(f"torchrun --nproc-per-node={spec} train.py", cwd)
    assert (launch.nproc_per_node, launch.nproc_spec, launch.world_size) == (None, spec, None)


def test_pet_variables_stand_in_for_options(cwd: Path) -> None:
    launch = read("torchrun --nnodes=1 train.py", cwd, PET_NPROC_PER_NODE="4", PET_NNODES="3")
    assert (launch.nproc_per_node, launch.nodes) == (4, (1, 1))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("torchrun --nproc-per-node=eight train.py", "eight"),
        ("torchrun --nproc-per-node=0 train.py", "positive"),
        ("torchrun --nnodes=2:1 train.py", "--nnodes"),
        ("torchrun --nproc-per-gpu 8 train.py", "no option --nproc-per-gpu"),
        ("torchrun --nproc-per-node", "lacks its value"),
        ("torchrun --nproc-per-node 2", "no training script"),
        ("torchrun --nnodes 2 --nproc-per-node 2 train.py", "127.0.0.1"),
        ("torchrun --nnodes 2 --rdzv-backend c10d train.py", "--rdzv-endpoint"),
        ("torchrun --standalone --nnodes 2 train.py", "--standalone"),
        ("torchrun --nnodes 2 --node-rank 2 --master-addr a train.py", "--node-rank 2"),
        ("torchrun --master-port x train.py", "--master-port"),
        ("accelerate launch --num_processes 7 --num_machines 2 --main_process_ip a train.py", "no multiple"),
        ("accelerate launch --num_processes 8 --num_machines 2 train.py", "main_process_ip"),
        ("srun -N 2 --ntasks-per-node=8 torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1 --nproc-per-node 8 train.py", "one task per node"),
        ("srun -N 2 torchrun --nproc-per-node 8 train.py", "alone"),
    ],
)  # fmt: skip
def test_what_the_launcher_would_refuse(cwd: Path, command: str, words: str) -> None:
    assert words in " | ".join(read(command, cwd).problems)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("make train", "'make'"),
        ("python -c 'import x'", "-c"),
        ("python -m", "module"),
        ("A=1 nohup", "no command"),
    ],
)
def test_no_launch_command(cwd: Path, command: str, words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        read(command, cwd)


def test_accelerate_config_and_options_over_it(cwd: Path) -> None:
    (cwd / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nnum_processes: 8\nnum_machines: 2\nmachine_rank: 1\nmain_process_ip: 10.0.0.1\n"
        "main_process_port: 29501\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2\n  fsdp_offload_params: false\n"
    )
    launch = read("accelerate launch --config_file fsdp.yaml --num_processes 16 train.py", cwd)
    assert (launch.nproc_per_node, launch.world_size, launch.node_rank) == (8, 16, 1)
    assert (launch.master_addr, launch.master_port) == ("10.0.0.1", 29501)
    assert launch.config["fsdp_config.fsdp_version"] == 2
    assert launch.config["mixed_precision"] == "bf16"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"a: [1", "not valid YAML"),
        (b"- 1\n", "not a mapping"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a: !!python/object/apply:os.system ['touch ran']\n", "not valid YAML"),
        (b"x" * (1 << 21), "larger than"),
    ],
)
def test_bad_accelerate_config(cwd: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (cwd / "bad.yaml").write_bytes(content)
    launch = read("accelerate launch --config_file bad.yaml train.py", cwd)
    assert words in (launch.config_error or "")
    assert not (cwd / "ran").exists()


def test_accelerate_default_config(cwd: Path) -> None:
    folder = cwd / ".cache" / "huggingface" / "accelerate"
    folder.mkdir(parents=True)
    (folder / "default_config.yaml").write_text("num_processes: 3\nnum_machines: 1\n")
    assert read("accelerate launch train.py", cwd).nproc_per_node == 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: None, "no such file"),
        (lambda p: p.mkdir(), "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda p: p.write_bytes(b"\xff\xfe"), "not Python text"),
        (lambda p: p.write_bytes(b"# coding: nonsense\n"), "not Python text"),
        (lambda p: p.write_bytes(b"x = 1\0"), "NUL"),
    ],
    ids=["missing", "folder", "fifo", "binary", "unknown-encoding", "nul"],
)
def test_unreadable_script(tmp_path: Path, make: object, words: str) -> None:
    assert callable(make)
    make(tmp_path / "bad.py")
    launch = read("torchrun bad.py", tmp_path)
    assert words in (launch.script_error or "")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("head:29400", "head", 29400),
        ("head", "head", None),
        ("[::1]:29400", "::1", 29400),
        ("fe80::1", "fe80::1", None),
        ("tcp://10.0.0.1:23456", "10.0.0.1", 23456),
        ("head:port", "head", None),
        ("head:99999999999", "head", None),
        ("[fe80::1]", "fe80::1", None),
        (" c10d://head:1/x ", "head", 1),
    ],
)
def test_split_endpoint(text: str, host: str, port: int | None) -> None:
    assert split_endpoint(text) == (host, port)


WORDS = st.sampled_from(
    ["torchrun", "accelerate", "launch", "srun", "mpirun", "python", "-m", "-n", "-N2", "--nproc-per-node", "--nnodes=2",
     "env", "A=1", "bash", "-c", "train.py", "--", "-", "--mca", "deepspeed", "torch.distributed.run", "x:y", ""]
) | st.text(max_size=8)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, max_size=10))
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    try:
        launch = parse_launch(words, Path("/nonexistent"), {"HOME": "/nonexistent"})
    except LaunchError as error:
        assert "\n" not in str(error)[:200] or "\n" in "".join(words)
    else:
        assert launch.command == tuple(words)


def test_a_pipe_as_configuration_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    launch = parse_launch(["accelerate", "launch", "--config_file", "pipe.yaml", "t.py"], tmp_path, {})
    assert launch.config_error == f"{tmp_path}/pipe.yaml: not a regular file"
