"""Where text goes: standard output, standard error or a file, on any encoding and to any reader."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import click

from fsdp_doctor.report.escape import lines, to_ascii, visible

DEFAULT_WIDTH = 100
MAXIMUM_WIDTH = 120


class CannotAnswer(click.ClickException):
    """The answer is there and cannot be delivered, such as on a full disk."""

    exit_code = 3


def emit(text: str) -> None:
    """Write to standard output. A reader that has gone is no error; any other failure is `CannotAnswer`."""
    stream = sys.stdout
    if stream is None:
        return
    try:
        _write(stream, text)
    except OSError as error:
        _detach(stream)
        if error.errno not in (errno.EPIPE, errno.ESHUTDOWN) and not _windows_pipe(error):
            raise CannotAnswer(f"cannot write the output: {error.strerror or error}") from None
    except ValueError:
        return  # closed by whoever embeds the command


def complain(text: str, *, raw: bool = False) -> None:
    """Write a line (with `raw`: lines) to standard error; never raises."""
    stream = sys.stderr
    if stream is None:
        return
    said = "\n".join(lines(text)) if raw else visible(" ".join(text.split()))
    try:
        _write(stream, said + "\n")
    except (OSError, ValueError):
        _detach(stream)


def silence() -> None:
    """Flush what is left, so that the interpreter finds nothing to complain of at exit."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                _detach(stream)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:
        stream.write(to_ascii(text))
    stream.flush()


def _windows_pipe(error: OSError) -> bool:
    return os.name == "nt" and error.errno == errno.EINVAL


def _detach(stream: TextIO) -> None:
    """Let the stream's descriptor lead nowhere: the interpreter flushes it once more at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        return


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person reads a stream."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def wants_ascii(stream: TextIO | None, env: Mapping[str, str]) -> bool:
    """Whether only ASCII is sure to be shown: another encoding than UTF-8, or a C locale asked for.

    Python itself sets LC_CTYPE to C.UTF-8 in a C locale, so that one does not count as the user's wish.
    """
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "").replace("_", "")
    if encoding not in ("utf8", "utf8sig", "cp65001"):
        return True
    chosen = env.get("LC_ALL") or env.get("LC_CTYPE", "")
    if chosen in ("", "C.UTF-8", "C.utf8", "UTF-8") and not env.get("LC_ALL"):
        chosen = env.get("LANG", "")
    return chosen in ("C", "POSIX")


def wants_colour(stream: TextIO | None, env: Mapping[str, str], no_color: bool) -> bool:
    """Colour only for a terminal that has it, and only if neither the user nor NO_COLOR objects.

    mpirun gives each rank a terminal of its own and copies what comes, be it into a file.
    """
    if env.get("OMPI_COMM_WORLD_RANK"):
        return False
    if no_color or env.get("NO_COLOR") or env.get("TERM") == "dumb" or not is_terminal(stream):
        return False
    return os.name != "nt" or bool(env.get("WT_SESSION") or env.get("TERM") or env.get("ANSICON"))


def width() -> int:
    """Columns of the terminal or of COLUMNS, else a fixed width, so that piped output is stable."""
    return min(shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns, MAXIMUM_WIDTH)


def check_target(path: Path) -> None:
    """Refuse an output file that could not be written. Raises `click.UsageError`."""
    try:
        problem = _problem_of(path)
    except OSError as error:
        problem = error.strerror or str(error)
    except RuntimeError:  # how Python before 3.13 says it
        problem = "is a link to itself"
    if problem is not None:
        raise click.UsageError(f"--output {path}: {problem}")


def _problem_of(path: Path) -> str | None:
    parent = path.resolve().parent
    if path.is_dir():
        return "is a folder"
    if not parent.is_dir():
        return f"there is no folder {parent}"
    if not os.access(path if path.exists() and not path.is_file() else parent, os.W_OK):
        return "no permission to write there"
    return None


def write_file(path: Path, text: str) -> None:
    """Write a whole file or none: a temporary file beside it, synchronised and renamed."""
    import tempfile

    raw = text.encode("utf-8", "backslashreplace")
    try:
        # By its own name: where /dev/stdout is a pipe it resolves to a name that cannot be opened.
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            path.write_bytes(raw)
            return
        target = path.resolve()
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, _mode(target))
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CannotAnswer(f"cannot write {path}: {error.strerror or error}") from None


def _mode(target: Path) -> int:
    """The mode of the file that is replaced, else what the umask leaves."""
    try:
        return stat.S_IMODE(target.stat().st_mode)
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
