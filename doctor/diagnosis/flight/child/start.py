"""`python -I start.py MEMORY_BYTES FILE…`: writes one JSON line per file, in order."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys

NAME = "fsdp_doctor_flight_child"


def load() -> object:
    """The module `dump` of this folder, in a package of its own name."""
    folder = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = package
    spec.loader.exec_module(package)
    return importlib.import_module(NAME + ".dump")


def limit(size: int) -> None:
    """Let allocations beyond `size` bytes fail instead of waking the OOM killer."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):  # Windows, or a lower limit is set already
        pass


def main(argv: list[str]) -> None:
    """Describe each file. A file that needs too much memory costs its own line only."""
    dump = load()
    limit(int(argv[0]))
    out = sys.stdout.buffer
    # A dump is many objects and no cycles: looking for some while it is read takes a third of the time.
    gc.freeze()
    gc.disable()
    for path in argv[1:]:
        try:
            line = json.dumps(dump.describe(path))  # type: ignore[attr-defined]
        except MemoryError:
            line = json.dumps(
                {"kind": "unreadable", "problem": "needs more memory than a dump of its size may"}
            )
        except Exception as error:  # no file may cost the answers for the others
            line = json.dumps({"kind": "unreadable", "problem": f"damaged: {type(error).__name__}"})
        out.write(line.encode() + b"\n")
        out.flush()
        gc.collect()  # a hostile one may hold cycles, and must not cost the next its memory


if __name__ == "__main__":
    main(sys.argv[1:])
