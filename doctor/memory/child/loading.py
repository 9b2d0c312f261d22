"""The user's model and batch: a function of a file or a module, or a transformers configuration."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from . import pretrained
from .fences import end_copy
from .hints import hint, lacking, said, unmodelled
from .offline import Offline, no_network

__all__ = ["HERE", "HfLoss", "Offline", "Refused", "call", "function", "no_network", "one_line"]
HERE = os.getcwd()
"""Where the doctor was called: files are named from here, wherever the user's code goes."""


class Refused(Exception):
    """What was asked for cannot be replayed. `place` is the user's file and line where one is known."""

    def __init__(self, kind: str, text: str, place: str = "", trace: str = "", **more: object) -> None:
        super().__init__(text)
        self.kind, self.text, self.place, self.trace, self.more = kind, text, place, trace, more


def function(spec: str, what: str) -> Callable[..., Any]:
    """The function that `FILE.py:NAME` or `pkg.mod:NAME` names. Raises `Refused`."""
    source, _, name = spec.rpartition(":")
    try:
        module = _file(source) if source.endswith(".py") else _module(source)
    except BaseException as error:
        end_copy()
        _reraise(error, what, f"{what} {spec}: importing {source} failed")
    end_copy()
    found = getattr(module, name, None)
    if not callable(found):
        names = [n for n in vars(module) if not n.startswith("_") and callable(getattr(module, n))]
        near = difflib.get_close_matches(name, names, 3)
        other = f"; did you mean {' or '.join(near)}?" if near else f"; it has {', '.join(names)}"[:300]
        raise Refused(what, f"{what} {spec}: {source} has no function {name!r}" + (other if names else ""))
    return found  # type: ignore[no-any-return]


def _module(name: str) -> Any:
    """A module by its dotted name, as `python -m` finds it: from where the doctor was called first."""
    if HERE not in sys.path:
        sys.path.insert(0, HERE)
    return importlib.import_module(name)


def _file(path: str) -> Any:
    path = os.path.normpath(os.path.join(HERE, path))
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {path}")
    folder, name = os.path.split(path)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = name[:-3]
    name = name if name not in sys.modules else f"_fsdp_doctor_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        if "no known parent package" not in str(error) or not os.path.isfile(
            os.path.join(folder, "__init__.py")
        ):
            raise
    else:
        return module
    return _in_package(folder, os.path.basename(path)[:-3])


def _in_package(folder: str, name: str) -> Any:
    """The module of a file that imports its neighbours by relative names: by its name in the package."""
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        name = f"{package}.{name}"
    sys.path.insert(0, folder)
    return importlib.import_module(name)


def call(factory: Callable[..., Any], args: dict[str, Any], what: str, *first: object) -> Any:
    """Call the user's function. Raises `Refused` with the line of theirs that failed."""
    try:
        return factory(*first, **args)
    except BaseException as error:
        end_copy()
        _reraise(error, what, f"the {what} function failed")
    finally:
        end_copy()


def _reraise(error: BaseException, what: str, saying: str) -> Any:
    if isinstance(error, Refused):
        raise error
    text = ended(error) or f"{type(error).__name__}: {said(error)}".strip().rstrip(":")
    kind = "unmodelled" if unmodelled(error) else what
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-6000:]
    words = f"{saying}: {one_line(text)}{hint(error, what)}{called_at(error)}"
    raise Refused(kind, words, user_place(error), trace, lacks=lacking(error)) from None


def ended(error: BaseException) -> str:
    """What `exit()` in the user's code says; "" for every other exception."""
    if not isinstance(error, SystemExit):
        return ""
    said = f"with code {error.code or 0}" if error.code is None or isinstance(error.code, int) else ""
    return f"it ends the process {said or f'and says: {error.code}'}"


def one_line(text: str) -> str:
    """The first and the last line of a message, which are the ones that say something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] + (f" … {lines[-1]}" if len(lines) > 1 else ""))[:500] if lines else ""


def user_place(error: BaseException) -> str:
    """File and line of the innermost frame that is neither torch's nor this package's, else the innermost."""
    frames = _foreign(traceback.extract_tb(error.__traceback__))
    place = place_of(frames)
    if not place and isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    return place or (f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "")


def called_at(error: BaseException) -> str:
    """Where the user's function was when an error came from another place of theirs; "" where it did not."""
    outer = place_of(reversed(traceback.extract_tb(error.__traceback__)))
    if not outer or outer == user_place(error):
        return ""
    within = os.path.relpath(outer, HERE)
    return f", called at {outer if within.startswith(os.pardir) else within}"


def place_of(frames: Iterable[traceback.FrameSummary]) -> str:
    """File and line of the innermost frame that is neither torch's nor this package's; "" without one."""
    installed = tuple(p for p in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")) if p)
    kept = _foreign(frames)
    for foreign in (installed, (f"{os.sep}torch{os.sep}", f"{os.sep}transformers{os.sep}")):
        for f in reversed(kept):
            if not any(part in f.filename for part in foreign):
                return f"{f.filename}:{f.lineno}"
    return ""


def _foreign(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    own, importing = os.path.dirname(os.path.abspath(__file__)), os.path.dirname(importlib.__file__)
    return [f for f in frames if not f.filename.startswith((own, importing, "<"))]


class HfLoss:
    """Factory of a transformers model from a folder with config.json; the module returns `.loss`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, **kwargs: Any) -> Any:
        """The module, without weights. Raises `Refused` where transformers cannot build one."""
        return pretrained.model(self.folder, Refused, **kwargs)
