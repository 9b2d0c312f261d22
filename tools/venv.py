"""Make the virtual environment of the Makefile, with the torch of the environment that runs this or its own.

Runs under any Python, so that a wrong one gets one clear line. Standard library only.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request

OLDEST = (3, 10)


def main() -> None:
    """Make it, then note whose torch it is in `VENV/trained-with`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("venv")
    parser.add_argument("--made-from", default="")
    parser.add_argument("--torch", default="")
    parser.add_argument("--torch-index", default="")
    args = parser.parse_args()
    if sys.version_info < OLDEST:
        sys.exit(f"fsdp-doctor needs Python 3.10 or newer; PYTHON is {sys.version.split()[0]}")
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        sys.exit(f"{sys.executable} has no venv module (Debian and Ubuntu: apt install python3-venv)")
    inside = os.path.exists(args.venv) and os.path.samefile(sys.prefix, args.venv)
    before = noted(args.venv, "made-from")
    if not inside and before not in ("", args.made_from):
        subprocess.run([sys.executable, "-m", "venv", "--clear", args.venv], check=True)
    elif not os.path.exists(os.path.join(args.venv, "bin", "python")):
        subprocess.run([sys.executable, "-m", "venv", args.venv], check=True)
    python = os.path.join(os.path.abspath(args.venv), "bin", "python")
    if not inside and importlib.util.find_spec("torch") is not None:
        lend(python)
        trained_with = sys.executable
    else:
        install(python, args.torch, args.torch_index)
        trained_with = python
    note(args.venv, "trained-with", trained_with)
    if not inside:
        note(args.venv, "made-from", args.made_from)


def noted(venv: str, name: str) -> str:
    """What an earlier call noted in the environment; empty where there is nothing."""
    try:
        with open(os.path.join(venv, name)) as file:
            return file.read().strip()
    except OSError:
        return ""


def note(venv: str, name: str, text: str) -> None:
    """Note something in the environment for the Makefile and for the next call."""
    with open(os.path.join(venv, name), "w") as file:
        file.write(text + "\n")


def lend(python: str) -> None:
    """Let the new environment import what this one has, after its own packages, without copying it."""
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    own = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    with open(os.path.join(where, "zz_active_environment.pth"), "w") as file:
        file.write("".join(path + "\n" for path in own))


def install(python: str, requirement: str, index: str) -> None:
    """Install torch unless it is there or nobody wants it."""
    found = subprocess.run(
        [python, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"], check=False
    )
    if found.returncode == 0 or not requirement:
        return
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if index and reachable(index):
        command += ["--extra-index-url", index]
    subprocess.run([*command, *requirement.split()], check=True)


def reachable(index: str) -> bool:
    """Whether an index answers at all: pip would retry it for every package, a minute and more."""
    try:
        urllib.request.urlopen(index, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        print(f"{index} does not answer: taking what pip is configured for")
        return False
    return True


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit("failed: " + " ".join(error.cmd))
