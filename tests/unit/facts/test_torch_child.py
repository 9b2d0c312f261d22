"""The torch child under interpreters and torches that work, fail, hang and crash."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fsdp_doctor.facts.child_answers import stack_answers
from fsdp_doctor.facts.children import torch_child
from fsdp_doctor.facts.live import CHILDREN
from fsdp_doctor.process import Outcome, run
from fsdp_doctor.subjects.fact import Known, Unknown

CHILD = CHILDREN / "torch_child.py"
DEADLINE = 90.0


def ask(
    env: Mapping[str, str] | None = None, deadline: float = DEADLINE, python: str = sys.executable
) -> Known[Mapping[str, Any]] | Unknown:
    outcome = run([python, "-B", str(CHILD)], deadline, env={**os.environ, **(env or {})})
    return stack_answers(outcome, python)


def answers(env: Mapping[str, str] | None = None, deadline: float = DEADLINE) -> Mapping[str, Any]:
    fact = ask(env, deadline)
    assert isinstance(fact, Known), fact
    return fact.value


def fake_torch(folder: Path, code: str) -> dict[str, str]:
    """A package torch of this code, before the real one."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(code)
    return {"PYTHONPATH": str(folder)}


WORKING = """
__version__ = "2.13.0+cu130"
import types, warnings
version = types.SimpleNamespace(cuda="13.0", hip=None)
_C = types.SimpleNamespace(_cuda_getArchFlags=lambda: "sm_90 compute_90")
distributed = types.SimpleNamespace(is_available=lambda: True, is_nccl_available=lambda: True)
def _available():
    {available}
cuda = types.SimpleNamespace(
    is_available=_available, device_count=lambda: 2,
    nccl=types.SimpleNamespace(version=lambda: (2, 29, 7)),
)
"""


@pytest.fixture(scope="module")
def told() -> Mapping[str, Any]:
    pytest.importorskip("torch")
    return answers()


class TestRealTorch:
    def test_environment(self, told: Mapping[str, Any]) -> None:
        assert told["python"] == ".".join(map(str, sys.version_info[:3]))
        assert told["executable"] == sys.executable
        assert "nvidia-ml-py" in told["dists"] and "typing-extensions" in told["dists"]
        assert any(r.startswith("filelock") for r in told["requires"]["torch"])
        assert told["libc"] is None or len(told["libc"]) == 2

    def test_torch(self, told: Mapping[str, Any]) -> None:
        import torch

        answered = told["torch"]
        assert answered["version"] == str(torch.__version__)
        assert answered["cuda"] == torch.version.cuda
        assert answered["path"] == os.path.dirname(torch.__file__)
        assert answered["cuda_available"] == torch.cuda.is_available()
        assert answered["device_count"] == torch.cuda.device_count()
        assert answered["distributed_available"] is True
        assert any(p.endswith("/libtorch_cpu.so") for p in told["libraries"])

    def test_loader(self, told: Mapping[str, Any]) -> None:
        assert {
            "libcuda.so.1",
            "libnvidia-ml.so.1",
            "libibverbs.so.1",
            "librdmacm.so.1",
            "libnccl-net.so",
        } <= set(told["dlopen"])
        assert all(p is None or Path(p).is_absolute() for p in told["dlopen"].values())


class TestBrokenTorch:
    def test_a_missing_library(self, tmp_path: Path) -> None:
        text = "libcudart.so.12: cannot open shared object file: No such file or directory"
        told = answers(fake_torch(tmp_path, f"raise ImportError({text!r})"))
        assert told["torch"] == {"error": f"ImportError: {text}"}
        assert told["python"] and told["dists"] and "dlopen" in told

    def test_an_exit_is_an_error_as_well(self, tmp_path: Path) -> None:
        assert answers(fake_torch(tmp_path, "raise SystemExit(3)"))["torch"] == {"error": "SystemExit: 3"}

    def test_a_missing_dependency_of_torch(self, tmp_path: Path) -> None:
        told = answers(fake_torch(tmp_path, "import torch_needs_this"))
        assert told["torch"] == {"error": "ModuleNotFoundError: No module named 'torch_needs_this'"}

    def test_a_hang(self, tmp_path: Path) -> None:
        told = answers(fake_torch(tmp_path, "\n\nimport time; time.sleep(600)"), 9.0)
        assert told["torch"]["error"].startswith("no answer in 9.")
        assert f"{tmp_path}/torch/__init__.py, line 3 (<module>)" in told["torch"]["error"]
        assert told["dists"] and told["torch"]["late"] is True, "more time might have brought an answer"

    def test_a_crash(self, tmp_path: Path) -> None:
        told = answers(fake_torch(tmp_path, "import os\nos.abort()"))
        assert told["torch"] == {
            "error": f"ended by SIGABRT in {tmp_path}/torch/__init__.py, line 2 (<module>)"
        }
        assert told["dists"] and not list(tmp_path.glob("core*"))

    def test_an_end_without_a_word(self, tmp_path: Path) -> None:
        told = answers(fake_torch(tmp_path, "import os; os._exit(7)"))
        assert told["torch"] == {"error": "exit status 7"}

    def test_an_end_that_looks_like_success(self, tmp_path: Path) -> None:
        told = answers(fake_torch(tmp_path, "import os; os._exit(0)"))
        assert told["torch"] == {"error": "the import ended the interpreter, with status 0"}

    def test_a_folder_of_that_name(self, tmp_path: Path) -> None:
        told = answers(fake_torch(tmp_path, ""))
        expected = f"ImportError: {tmp_path}/torch/__init__.py is found as torch and is not PyTorch"
        assert told["torch"] == {"error": expected}

    def test_what_it_prints_is_no_answer(self, tmp_path: Path) -> None:
        noise = 'print(\'{"python": "1", "torch": {"version": "x"}}\', flush=True)\nraise ImportError("no")'
        told = answers(fake_torch(tmp_path, noise))
        assert told["torch"] == {"error": "ImportError: no"} and told["python"] != "1"


class TestCuda:
    def test_available(self, tmp_path: Path) -> None:
        told = answers(fake_torch(tmp_path, WORKING.format(available="return True")))
        assert told["torch"] == {
            "version": "2.13.0+cu130",
            "cuda": "13.0",
            "hip": None,
            "nccl": "2.29.7",
            "arch_list": ["sm_90", "compute_90"],
            "path": f"{tmp_path}/torch",
            "distributed_available": True,
            "nccl_available": True,
            "cuda_available": True,
            "device_count": 2,
            "cuda_error": None,
        }

    def test_the_warning_is_the_reason(self, tmp_path: Path) -> None:
        text = "CUDA initialization: The NVIDIA driver on your system is too old (found version 12020). Please update"
        code = f"warnings.warn({text + ' (Triggered internally at /c10/x.cpp:1.)'!r}); return False"
        told = answers(fake_torch(tmp_path, WORKING.format(available=code)))
        expected = "The NVIDIA driver on your system is too old (found version 12020). Please update"
        assert (told["torch"]["cuda_available"], told["torch"]["cuda_error"]) == (False, expected)

    @pytest.mark.parametrize(
        ("code", "words"),
        [("import time; time.sleep(600)", "no answer in 9."), ("import os; os.abort()", "SIGABRT")],
    )
    def test_a_start_that_ends_the_process(self, tmp_path: Path, code: str, words: str) -> None:
        told = answers(fake_torch(tmp_path, WORKING.format(available=code)), 9.0)
        assert told["torch"]["version"] == "2.13.0+cu130"
        assert told["torch"]["cuda_error"].startswith("start CUDA: ") and words in told["torch"]["cuda_error"]
        assert "cuda_available" not in told["torch"]

    def test_the_check_through_nvml_is_off(self, tmp_path: Path) -> None:
        code = 'import os; return os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "0"'
        env = fake_torch(tmp_path, WORKING.format(available=code)) | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        assert answers(env)["torch"]["cuda_available"] is True


class TestInterpreters:
    def test_one_without_torch(self, tmp_path: Path) -> None:
        venv.create(tmp_path / "env", symlinks=True, with_pip=False)
        python = str(tmp_path / "env" / "bin" / "python")
        fact = ask({"PYTHONPATH": ""}, python=python)
        assert isinstance(fact, Known)
        assert (fact.value["torch"], fact.value["executable"], fact.value["dists"]) == (None, python, {})

    @pytest.mark.parametrize(
        ("python", "words"),
        [
            ("/nonexistent/python", "/nonexistent/python cannot be run: No such file or directory"),
            ("/etc/passwd", "/etc/passwd cannot be run: Permission denied"),
            ("/bin/true", "/bin/true is no working Python: it printed no answer"),
            ("/bin/false", "/bin/false is no working Python: exit status 1"),
        ],
    )
    def test_what_is_no_python(self, python: str, words: str) -> None:
        fact = ask(python=python)
        assert isinstance(fact, Unknown) and fact.reason == words and "--python" in fact.enable

    def test_one_that_is_too_old(self) -> None:
        stderr = b"    from __future__ import annotations\nSyntaxError: future feature annotations is not defined\n"
        fact = stack_answers(Outcome(1, stderr=stderr), "/usr/bin/python3.6")
        assert isinstance(fact, Unknown) and fact.reason == "/usr/bin/python3.6 is older than Python 3.8"

    def test_it_is_written_for_python_3_8(self) -> None:
        tree = ast.parse(CHILD.read_text(), feature_version=(3, 8))
        modules = {
            n.name.split(".")[0] for i in ast.walk(tree) if isinstance(i, ast.Import) for n in i.names
        } | {i.module.split(".")[0] for i in ast.walk(tree) if isinstance(i, ast.ImportFrom) and i.module}
        assert modules - {"torch", "resource"} <= sys.stdlib_module_names
        methods = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        assert not methods & {"removeprefix", "removesuffix", "bit_count"}, "of Python 3.9 and later"

    def test_the_working_folder_does_not_shadow(self, tmp_path: Path) -> None:
        (tmp_path / "torch.py").write_text("raise ImportError('shadowed')")
        done = subprocess.run(
            [sys.executable, "-B", str(CHILD)],
            cwd=tmp_path,
            capture_output=True,
            timeout=DEADLINE,
            check=True,
        )
        assert b"shadowed" not in done.stdout

    def test_a_package_that_was_half_removed(self, tmp_path: Path) -> None:
        (tmp_path / "gone-1.0.dist-info").mkdir()
        (tmp_path / "My_Thing.x-2.0.dist-info").mkdir()
        (tmp_path / "My_Thing.x-2.0.dist-info" / "METADATA").write_text("Name: My_Thing.x\nVersion: 2.0\n")
        told = answers(fake_torch(tmp_path, "raise ImportError('x')"))
        assert told["dists"]["my-thing-x"] == "2.0"


class TestLibraries:
    @pytest.fixture
    def build(self, tmp_path: Path) -> Any:
        compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
        if compiler is None:
            pytest.skip("no C compiler: libraries cannot be built")

        def make(name: str, code: str, *arguments: str) -> Path:
            target = tmp_path / name
            command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(target), *arguments]
            subprocess.run(command, input=code.encode(), check=True, timeout=60)
            return target

        return make

    def test_the_loader_is_asked(self, build: Any, tmp_path: Path) -> None:
        real = build("libibverbs.so.1.14", "int x;")
        (tmp_path / "libibverbs.so.1").symlink_to(real)
        (tmp_path / "librdmacm.so.1").write_bytes(b"no library")
        build("libcuda.so.1", "#include <stdlib.h>\n__attribute__((constructor)) void f(void) { abort(); }")
        build(
            "libnvidia-ml.so.1",
            "#include <unistd.h>\n__attribute__((constructor)) void f(void) { sleep(60); }",
        )
        build("libfabric_gone.so", "int y;", "-Wl,-soname,libfabric_gone.so")
        build("libnccl-net.so", "extern int y; int *z = &y;", f"-L{tmp_path}", "-lfabric_gone")
        (tmp_path / "libfabric_gone.so").unlink()
        env = fake_torch(tmp_path, "raise ImportError('x')") | {"LD_LIBRARY_PATH": str(tmp_path)}
        told = answers(env)
        assert told["dlopen"] == dict.fromkeys(told["dlopen"]) | {"libibverbs.so.1": str(real)}
        errors = told["dlopen_errors"]
        assert set(errors) == {"librdmacm.so.1", "libcuda.so.1", "libnvidia-ml.so.1", "libnccl-net.so"}
        assert "file too short" in errors["librdmacm.so.1"] or "invalid ELF" in errors["librdmacm.so.1"]
        assert errors["libcuda.so.1"] == "loading it ended by signal 6"
        assert errors["libnvidia-ml.so.1"] == "loading it ended by signal 14"
        assert errors["libnccl-net.so"].startswith("libfabric_gone.so: cannot open shared object file")

    def test_the_nccl_that_is_loaded_is_asked(self, build: Any, tmp_path: Path) -> None:
        nccl = build("libnccl.so.2", "int ncclGetVersion(int *v) { *v = 22907; return 0; }")
        code = WORKING.format(available="return True") + f"\nimport ctypes\nctypes.CDLL({str(nccl)!r})\n"
        told = answers(fake_torch(tmp_path, code))
        assert told["nccl_runtime"] == "2.29.7" and str(nccl) in told["libraries"]

    def test_nccl_inside_of_torch(self, build: Any) -> None:
        inside = build("libtorch_cuda.so", "int ncclGetVersion(int *v) { *v = 2804; return 0; }")
        assert torch_child.nccl_runtime([str(inside)]) == "2.8.4"
        without = build("libnccl.so.2", "int other;")
        assert torch_child.nccl_runtime([str(without), "/none/libnccl.so.2"]) is None


@pytest.mark.parametrize(
    ("number", "text"), [(22907, "2.29.7"), (21005, "2.10.5"), (2804, "2.8.4"), (20908, "2.9.8")]
)
def test_nccl_version_numbers(number: int, text: str) -> None:
    assert torch_child.version_text(number) == text


def test_a_name_that_the_loader_does_not_know() -> None:
    assert torch_child.found_by_loader("libno-such-thing.so.9") == (None, None)


def test_lines_of_something_else_are_passed_over() -> None:
    output = b'noise\n{"python": "3.12.0"}\n[1]\n{"doing": "list the distributions"}\n{"dis'
    fact = stack_answers(Outcome(-11, output), "py")
    assert isinstance(fact, Known)
    assert fact.value == {
        "python": "3.12.0",
        "torch": {"error": "list the distributions: ended by SIGSEGV"},
    }
