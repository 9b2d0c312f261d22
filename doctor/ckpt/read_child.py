"""The child that reads a checkpoint: isolated, limited in memory, and gone when its answer is written.

Arguments: the folder that holds the package, the path, and "values" or "names".
"""

from __future__ import annotations

import gc
import os
import sys


def main(argv: list[str]) -> int:
    """Read, and write the index to standard output."""
    # Nothing that is read forms cycles worth collecting, and looking for them costs four times the rest.
    gc.disable()
    root, path, what = argv
    sys.path.insert(0, root)
    from fsdp_doctor.ckpt import memory
    from fsdp_doctor.ckpt.reading import read_here
    from fsdp_doctor.ckpt.wire import encode

    memory.enable()
    for piece in encode(read_here(path, values=what == "values")):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # Freeing a million objects one by one takes longer than reading them.
    os._exit(status)
