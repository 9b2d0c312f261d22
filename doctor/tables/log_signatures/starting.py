"""Commands, programs and containers that could not be started, by the shells and launchers that tried."""

from __future__ import annotations

from fsdp_doctor.findings import Row
from fsdp_doctor.tables.log_signatures.model import Kind, Scope, Signature, family

_s = family(Row.START)
R, L = Kind.ROOT, Kind.LIKELY
J = Scope.JOB
_QUOTE = "['\"‘`]"
_NAME = r"[^\s'\"’:]{1,300}"
_NOT_FOUND_WHY = "Whoever starts the ranks cannot find this command: the environment (venv, conda, module, container image) that holds it is not active on that node or in that step, or its name is mistyped. No rank ran."
_NOT_FOUND_FIX = "Activate the environment inside the job script, or give the command's whole path (for torchrun also: python -m torch.distributed.run); check that the path exists on every node"

STARTING: tuple[Signature, ...] = (
    _s(
        "LOG225",
        R,
        89,
        "A command was not found",
        (
            "command not found",
            ": not found",
            "No such file or directory",
            "no such file or directory",
            "executable file not found",
            "unable to find the specified executable",
            "Executable: ",
        ),
        rf"(?:^|[ :])(?P<cmd>{_NAME}): command not found\s*$|command not found: (?P<cmd2>{_NAME})"
        rf"|^\S+: \d+: (?P<cmd3>{_NAME}): not found\s*$"
        rf"|\benv: {_QUOTE}?(?P<cmd4>{_NAME})['’]?: No such file or directory"
        rf"|error: (?:execve\(\)|_fork_command.*?execve): (?P<cmd5>{_NAME}): No such file or directory"
        rf"|execvp error on file (?P<cmd6>{_NAME}) \(No such file or directory"
        rf"|failed to (?:run command|execute) {_QUOTE}?(?P<cmd7>{_NAME})['’]?: No such file or directory"
        rf"|^(?:\S*/)?-?(?:ba|da|k|z)?sh: (?:line )?(?:\d+: )?(?P<cmd8>{_NAME}): No such file or directory"
        rf"|(?:exec: )?\"(?P<cmd9>[^\"]{{1,300}})\": (?:executable file not found|stat \S+: no such file or directory)"
        rf"|^\S+: line \d+: (?P<cmd11>(?:\./|\S*/bin/){_NAME}|{_NAME}\.(?:sh|py)): No such file or directory"
        r"|unable to find the specified executable|^Executable: (?P<cmd10>\S+)$",
        gate=r"command not found|: not found|: No such file or directory|\(No such file or directory|"
        r": no such file or directory|executable file not found|unable to find the specified executable|Executable: \S",
        scope=J,
        says="the command {cmd} was not found, so that nothing was started",
        why=_NOT_FOUND_WHY,
        fix=_NOT_FOUND_FIX,
        command="command -v torchrun; type -a python; echo $PATH",
        sources="bash, dash, zsh, coreutils, Slurm, MPICH, Open MPI, runc, Apptainer",
        sample="slurmstepd: error: execve(): torchrun: No such file or directory",
    ),
    _s(
        "LOG226",
        R,
        88,
        "A command could not be run",
        (
            "Permission denied",
            "permission denied",
            "Exec format error",
            "bad interpreter",
            "required file not found",
        ),
        rf"error: execve\(\): (?P<cmd>{_NAME}): (?P<what>Permission denied|Exec format error)"
        rf"|^\S+: (?:line )?(?:\d+: )?(?P<cmd2>{_NAME}): (?P<what2>Permission denied)\s*$"
        rf"|failed to (?:run command|execute) {_QUOTE}?(?P<cmd3>{_NAME})['’]?: (?P<what3>Permission denied|Exec format error)"
        rf"|(?P<cmd4>{_NAME}): cannot execute(?: binary file)?: (?P<what4>Exec format error|required file not found)"
        rf"|(?P<cmd5>{_NAME}): \S+: (?P<what5>bad interpreter): "
        r"|exec: \"(?P<cmd6>[^\"]{1,300})\": (?P<what6>permission denied)",
        gate=r": [Pp]ermission denied|Exec format error|bad interpreter|required file not found",
        scope=J,
        says="{cmd} could not be run: {what}",
        why="The file is there and the system does not run it: it lacks the right to be executed (x) or lies on a file system mounted noexec, was built for another processor, or its first line names an interpreter that is not there (also with Windows line ends). No rank ran.",
        fix="chmod +x the script or start it with its interpreter (bash script.sh, python script.py); dos2unix it; check that the binary fits the node's processor",
        command="ls -l FILE; file FILE; head -1 FILE | cat -A",
        sources="bash, Slurm, runc; execve(2)",
        sample="run.sh: line 3: ./train.sh: Permission denied",
    ),
    _s(
        "LOG227",
        R,
        88,
        "Python did not find the program that it should run",
        ("can't open file ", ": No module named ", "Error while finding module specification for "),
        r"can't open file '(?P<cmd>[^']+)'|^\S*python[\d.]*: No module named (?P<cmd2>[\w.-]+)|Error while finding module specification for '(?P<cmd3>[^']+)'",
        gate=r"can't open file '|python[\d.]*: No module named |Error while finding module specification for ",
        scope=J,
        says="Python did not find {cmd}, the program that it should run",
        why="The script's path or the module's name (python -m) is wrong, relative to another folder than the job's, or is not there on this node or in this environment. Nothing of the program ran.",
        fix="Give the script's whole path, start from the folder that it is relative to, or install the module into the environment that the launcher uses, on every node",
        command="pwd; ls -l SCRIPT; python -c 'import MODULE'",
        sources="CPython",
        sample="/usr/bin/python3: can't open file '/job/trian.py': [Errno 2] No such file or directory",
    ),
    _s(
        "LOG228",
        R,
        87,
        "A container could not be started",
        (
            "Error response from daemon: ",
            "OCI runtime ",
            "nvidia-container-cli: ",
            "could not open image ",
            "pyxis: ",
            "enroot: ",
            "ErrImagePull",
            "ImagePullBackOff",
            "InvalidImageName",
            "CreateContainerConfigError",
            "Failed to pull image",
        ),
        r"Error response from daemon: (?P<what>.*)|OCI runtime (?:create|exec) failed: (?P<what2>.*)|nvidia-container-cli: (?P<what3>.*error.*)"
        r"|could not open image (?P<what4>.*)|pyxis: (?P<what5>container start failed.*|couldn't start container.*|failed to import docker image.*)"
        r"|(?:pyxis|enroot): +\[ERROR\] (?P<what6>.*)|\b(?P<what7>ErrImagePull|ImagePullBackOff|InvalidImageName|CreateContainerConfigError)\b"
        r"|Failed to pull image (?P<what8>.*)",
        gate=r"Error response from daemon: |OCI runtime (?:create|exec) failed: |nvidia-container-cli: .*error|could not open image |"
        r"pyxis: |enroot: +\[ERROR\]|ErrImagePull|ImagePullBackOff|InvalidImageName|CreateContainerConfigError|Failed to pull image",
        scope=J,
        says="a container could not be started: {what}",
        why="The image, its command or the GPU's runtime is missing on that node; none of the job's ranks ran in it.",
        fix="Check that the image and the command in it exist (pull it on the node), and that the NVIDIA container toolkit is set up there",
        command="docker run --rm --gpus all IMAGE nvidia-smi; nvidia-ctk --version",
        sources="Docker, containerd, Apptainer, enroot and pyxis, NVIDIA container toolkit, Kubernetes",
        sample='docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
    ),
)
