"""Values inside DCP's data files, read without being run."""

from __future__ import annotations

import io

from fsdp_doctor.ckpt import torch_zip
from fsdp_doctor.ckpt.convert.cursor import Files
from fsdp_doctor.ckpt.convert.model import Archived, ConvertError, Opaque, Ordered
from fsdp_doctor.ckpt.convert.values import Tree
from fsdp_doctor.ckpt.stub import name_of
from fsdp_doctor.ckpt.window import Window


def resolved(files: Files, value: object) -> object:
    """The tree with the values of archived leaves in their places. Raises `ConvertError`."""
    if isinstance(value, Archived):
        window = io.BufferedReader(Window(files.get(value.file), value.start, value.length), 1 << 13)
        try:
            _, loaded = torch_zip.read(window, value.length)
        except (torch_zip.ZipError, OSError) as error:
            raise ConvertError(f"{value.file}, the object at byte {value.start}: {error}") from None
        return Tree(lambda stub: Opaque(name_of(stub))).of(loaded.value)
    if isinstance(value, dict):
        pairs = {k: resolved(files, v) for k, v in value.items()}
        return Ordered(pairs) if isinstance(value, Ordered) else pairs
    if isinstance(value, (list, tuple)):
        inner = [resolved(files, v) for v in value]
        return inner if isinstance(value, list) else tuple(inner)
    return value
