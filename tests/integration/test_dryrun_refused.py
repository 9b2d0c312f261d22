"""What cannot be replayed is refused by its name, and input that does not match is told as the GPU would tell it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fsdp_doctor.cli.main import run
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.simulate import Run
from tests.support.replays import runs

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(240)

STUBS = {
    "bitsandbytes/nn.py": "import torch\nclass Linear8bitLt(torch.nn.Linear): pass\n",
    "megatron/core.py": "import torch\nclass ColumnParallelLinear(torch.nn.Linear): pass\n",
    "deepspeed/__init__.py": """
import torch
class DeepSpeedEngine(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
""",
    "torchao/quantization.py": """
import torch
class AffineQuantizedTensor(torch.Tensor):
    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype, device=data.device)
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(str(func))
def quantize_(model):
    model.mid.weight = torch.nn.Parameter(AffineQuantizedTensor(model.mid.weight.detach()), requires_grad=False)
""",
}
MODELS = """
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch
from torch import nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self, layer=nn.Linear, what=""):
        super().__init__()
        self.first, self.mid, self.last, self.what = nn.Linear(64, 64), layer(64, 64), nn.Linear(64, 64), what
    def forward(self, x):
        x = self.last(self.mid(self.first(x)))
        if self.what == "none": return None
        if self.what == "dict": return {"loss": x.mean()}
        if self.what == "int": return x.mean().long()
        if self.what == "targets": return F.cross_entropy(x, torch.zeros(8, dtype=torch.int32))
        if self.what == "kbd": raise KeyboardInterrupt
        if self.what == "checks":
            assert not torch.isnan(x).any() and not x.isinf().any(), "no numbers"
            while x.norm() > 1: x = x / 2
        return x.square().mean()

def batch(device): return torch.randn(8, 64, device=device),
def mesh():
    from torch.distributed.device_mesh import init_device_mesh
    return init_device_mesh("cuda", (8,))

def tp():
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    return parallelize_module(Net(), mesh(), {"mid": ColwiseParallel()})
def stage():
    from torch.distributed.pipelining import PipelineStage
    return PipelineStage(Net(), 0, 8, torch.device("meta"))
def context():
    from torch.distributed.tensor.experimental import context_parallel
    class Split(Net):
        def forward(self, x):
            with context_parallel(mesh(), buffers=[x], buffer_seq_dims=[0]):
                return super().forward(x)
    return Split()
def compiled():
    net = Net()
    net.mid = torch.compile(net.mid)
    return net
def data_parallel(): return nn.DataParallel(Net())
def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel
    return FullyShardedDataParallel(Net())
def fsdp2():
    from torch.distributed.fsdp import fully_shard
    return fully_shard(Net())
def bitsandbytes():
    from bitsandbytes.nn import Linear8bitLt
    return Net(Linear8bitLt)
def megatron():
    from megatron.core import ColumnParallelLinear
    return Net(ColumnParallelLinear)
def deepspeed():
    from deepspeed import DeepSpeedEngine
    return DeepSpeedEngine(Net())
def torchao():
    from torchao.quantization import quantize_
    net = Net()
    quantize_(net)
    return net
def int8():
    net = Net()
    net.mid.weight = nn.Parameter(torch.zeros(64, 64, dtype=torch.int8), requires_grad=False)
    return net

def net(**kw): return Net(**kw)
def reckons():
    rates = [r.item() for r in torch.linspace(0, 0.5, 3)]
    assert rates == [0, 0.25, 0.5] and torch.arange(3).tolist() == [0, 1, 2] and torch.ones(2).numpy().sum() == 2
    counts = torch.zeros(3)
    counts[1] = 4
    size = int(torch.tensor([2, 4]).prod()) * int(counts.sum()) * len(counts.nonzero())
    assert (counts >= 0).all() and torch.rand(2).sum().item() < 2 and counts.cpu().unique().numel() == 2
    net = Net()
    net.mid = nn.Linear(64, 2 * size)
    return net
def looks(): return Net(nn.Linear, Net().mid.weight.abs().max().item())
def leaves(): os._exit(7)
def asks(): return Net(nn.Linear, input())
def hub():
    from huggingface_hub import snapshot_download
    snapshot_download("nobody/nothing")
def curl():
    import subprocess
    subprocess.run("cd /tmp && curl -fsSL https://example.com/weights.pt -o weights.pt", shell=True)
    return Net()
def stops(): sys.exit("no such configuration")
def nothing(): pass
def a_class(): return Net
def goes_away():
    import tempfile
    os.chdir(tempfile.mkdtemp())
    return Net()
def copies():
    os.fork()
    return Net()
def double(device): return torch.randn(8, 64, device=device, dtype=torch.float64),
def ids(device): return torch.zeros(8, 64, device=device, dtype=torch.long),
def elsewhere(device): return torch.zeros(8, 64, device="cuda"),
def stream(device):
    while True:
        yield batch(device)
def names(device): return {"y": torch.randn(8, 64, device=device)}
def matching(device):
    from collections import UserDict
    return UserDict(x=torch.randn(8, 64, device=device))
def two(device): return torch.zeros(8, 64), torch.zeros(8)
def numpy(device): return torch.randn(8, 64, device=device).numpy(),
"""
REFUSED = {
    "tp": "are DTensors",
    "stage": "pipeline parallelism is not modelled",
    "context": "context parallelism is not modelled",
    "compiled": "module mid (OptimizedModule): it is compiled",
    "data_parallel": "wrapped by DataParallel already",
    "fsdp1": "wrapped by FullyShardedDataParallel already",
    "fsdp2": "sharded by FSDP already",
    "bitsandbytes": "module mid (Linear8bitLt): its quantised layers",
    "megatron": "module mid (ColumnParallelLinear): Megatron's layers",
    "deepspeed": "DeepSpeed shards and steps by its own rules",
    "torchao": "its quantised and float8 layers",
    "int8": "parameter mid.weight has the type int8: quantised",
}
WRONG: dict[str, tuple[str, str, dict[str, object]]] = {
    "os._exit(7) is called": ("leaves", "batch", {}),
    "reads standard input": ("asks", "batch", {}),
    "make the ones that the model reads with device='cpu'": ("looks", "batch", {}),
    "needs the network": ("hub", "batch", {}),
    "curl is started while the model is built (it needs the network": ("curl", "batch", {}),
    "it ends the process and says: no such configuration": ("stops", "batch", {}),
    "has no function 'nett'; did you mean net?": ("nett", "batch", {}),
    "returned None and not a torch.nn.Module": ("nothing", "batch", {}),
    "returned the class Net": ("a_class", "batch", {}),
    "have the types float32 and float64": ("net", "double", {}),
    "have the types float32 and int64": ("net", "ids", {}),
    "value 1 of the batch is on cuda:0": ("net", "elsewhere", {}),
    "a generator and not one batch": ("net", "stream", {}),
    "the batch has the names y; Net.forward has x": ("net", "names", {}),
    "the batch has 2 values": ("net", "two", {}),
    "tensors have shapes and no values here": ("net", "numpy", {}),
    "returned None and not a scalar loss": ("net", "batch", {"what": "none"}),
    "a dict and not a scalar loss: wrap it in a module that returns its .loss": (
        "net",
        "batch",
        {"what": "dict"},
    ),
    "a scalar of int64": ("net", "batch", {"what": "int"}),
    "expected target dtype to be Long or Byte, but got int32": ("net", "batch", {"what": "targets"}),
    "KeyboardInterrupt": ("net", "batch", {"what": "kbd"}),
}
GOOD: dict[str, tuple[str, str, dict[str, object]]] = {
    "sizes reckoned with tensors": ("reckons", "batch", {}),
    "mapping": ("net", "matching", {}),
    "another folder": ("goes_away", "batch", {}),
    "a copy": ("copies", "batch", {}),
    "checks of values, and a loop until they are small": ("net", "batch", {"what": "checks"}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refused")
    for name, text in STUBS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "nets.py").write_text("from .parts import net, batch\n")
    (folder / "package" / "parts.py").write_text(MODELS)
    (folder / "models.py").write_text(MODELS)
    return folder / "models.py"


@pytest.fixture(scope="module")
def found(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run | str]:
    asked: dict[str, Job] = {}
    for name in REFUSED:
        asked[name] = Job(f"{models}:{name}", f"{models}:batch", 8)
    for words, (model, batch, more) in WRONG.items():
        asked[words] = Job(f"{models}:{model}", f"{models}:{batch}", 8, more)
    for name, (model, batch, more) in GOOD.items():
        asked[name] = Job(f"{models}:{model}", f"{models}:{batch}", 8, more)
    package = models.parent / "package" / "nets.py"
    asked["relative"] = Job(f"{package}:net", f"{package}:batch", 8)
    folder = tmp_path_factory.mktemp("replays")
    return dict(zip(asked, runs(list(asked.values()), folder, 200), strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_modelled_is_refused(found: dict[str, Run | str], name: str) -> None:
    said = found[name]
    assert isinstance(said, str) and REFUSED[name] in said


@pytest.mark.parametrize("words", WRONG)
def test_wrong_input_is_named(found: dict[str, Run | str], words: str) -> None:
    said = found[words]
    assert isinstance(said, str) and words in said and "Traceback" not in said


@pytest.mark.parametrize("name", [*GOOD, "relative"])
def test_unusual_input_that_is_right(found: dict[str, Run | str], name: str) -> None:
    assert isinstance(found[name], Run), found[name]


def dryrun(folder: Path, *options: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "fsdp_doctor", "dryrun", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_refusal_ends_as_incomplete_without_a_traceback(models: Path) -> None:
    """Found by the module's name from where the doctor is called; another folder has models of that name."""
    options = ("--model", "package.parts:context", "--batch", "package.parts:batch", "--world-size", "8")
    code, out, errors = dryrun(models.parent, *options)
    assert (code, errors) == (3, "")
    assert "context parallelism is not modelled" in out and "Traceback" not in out
    line = MODELS.splitlines().index(
        "            with context_parallel(mesh(), buffers=[x], buffer_seq_dims=[0]):"
    )
    assert f"parts.py:{line + 1}" in out.replace("\n", "")


SLEEPS = """
import os, time
def net():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open(os.environ["SLEEPER"], "w").write(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    time.sleep(600)
def batch(device): pass
"""


def test_a_deadline_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeps.py").write_text(SLEEPS)
    monkeypatch.setenv("SLEEPER", str(tmp_path / "sleeper"))
    options = (
        "--model",
        "sleeps.py:net",
        "--batch",
        "sleeps.py:batch",
        "--world-size",
        "2",
        "--deadline",
        "8",
    )
    code, out, _ = dryrun(tmp_path, *options, "--format", "json")
    said = next(r for r in json.loads(out)["results"] if r["code"] == "MEM001")
    assert code == 3 and "while building the model" in said["found"]
    assert SLEEPS.splitlines()[said["subject"]["line"] - 1].strip() == "time.sleep(600)"
    pid = int((tmp_path / "sleeper").read_text())
    until = time.monotonic() + 5
    while _alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "nope.py:net", "--batch", "models.py:batch"), "there is no file"),
        (("--model", "notes.txt:net", "--batch", "models.py:batch"), "is no Python file"),
        (("--model", "models.py:", "--batch", "models.py:batch"), "FILE.py:FACTORY"),
        (("--model", "models.py:net", "--batch", "models.py:batch", "--model-args", '{"a": NaN}'), "not JSON"),
        (("--model", "models.py:net", "--batch", "models.py:batch", "--model-args", "[" * 100_000), "deeply"),
        (("--model", "hf:.",), "there is no config.json"),
    ],
)  # fmt: skip
def test_what_the_command_line_alone_shows_to_be_wrong(
    models: Path,
    options: tuple[str, ...],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (models.parent / "notes.txt").touch()
    monkeypatch.chdir(models.parent)
    assert run(["dryrun", *options, "--world-size", "8"]) == 2
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said


def test_the_line_that_ends_the_process_is_named(models: Path) -> None:
    options = ("--model", "models.py:leaves", "--batch", "models.py:batch", "--world-size", "8")
    code, out, _ = dryrun(models.parent, *options, "--format", "json")
    said = next(r for r in json.loads(out)["results"] if r["code"] == "MEM001")
    assert code == 1 and said["subject"]["line"] == 1 + MODELS.splitlines().index("def leaves(): os._exit(7)")
