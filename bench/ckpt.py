"""What reading checkpoints costs: time and memory of whole processes, against the aims.

    python -m bench.ckpt

Makes its inputs in a temporary folder: metadata of 723 tensors in 1,024 shards (sparse data files), a sparse
archive of 100 GB, a folder of 10,000 files and a small one.
"""

from __future__ import annotations

import os
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

TENSORS, SHARDS = 723, 1024
ITEM = 263_644
"""Bytes of one item: a chunk of 16 x 4096 float32 and its archive."""
REPEATS = 5


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="fsdp-doctor-bench-"))
    try:
        cases = (
            ("723 tensors x 1,024 shards", large(folder / "large"), 5.0, 700),
            ("100 GB sparse archive", sparse(folder / "full.pt"), 1.0, 200),
            ("10,000 files", many(folder / "many"), 2.0, 200),
            ("small folder", small(folder / "small"), 0.3, 200),
        )
        os.sync()  # three gigabytes of blocks are not written while the first is measured
        worst = 0
        for name, path, seconds, megabytes in cases:
            took, peak, said = measured(path)
            good = took <= seconds and peak <= megabytes
            worst |= not good
            print(
                f"{name:28} {took:6.2f} s (aim {seconds:g})  {peak:6.0f} MB (aim {megabytes})  "
                f"{'ok' if good else 'MISSED'}  {said}"
            )
        return worst
    finally:
        shutil.rmtree(folder)


def measured(path: Path) -> tuple[float, float, str]:
    """Seconds of the median run, peak MB of its largest process, and the first line that it printed."""
    words = [sys.executable, "-m", "fsdp_doctor", "ckpt", "inspect", str(path), "--depth", "1"]
    times, peak, said = [], 0, ""
    for _ in range(REPEATS):
        done = subprocess.run(
            [sys.executable, "-c", PEAK, *words], capture_output=True, text=True, check=False
        )
        seconds, kilobytes = done.stderr.strip().rsplit("\n", 1)[-1].split()
        times.append(float(seconds))
        peak = max(peak, int(kilobytes))
        said = done.stdout.split("\n", 1)[0][-60:]
    return sorted(times)[len(times) // 2], peak * 1024 / 1e6, said


PEAK = """
import resource, subprocess, sys, time
began = time.monotonic()
subprocess.run(sys.argv[1:])
print(time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""
"""A small process of its own: what is forked starts with the memory of the one that forks it."""


def large(folder: Path) -> Path:
    """Written opcode by opcode as torch's pickles are: a million objects would take a minute to make."""
    folder.mkdir()
    rows = 16
    out = Pickle()
    keys = [f"model.layers.{t // 9}.block.w{t % 9}.weight" for t in range(TENSORS)]
    with (folder / ".metadata").open("wb") as file:
        file.write(out.metadata(keys, rows))
    for shard in range(SHARDS):
        with (folder / f"__{shard}_0.distcp").open("wb") as file:
            for tensor in range(TENSORS):
                file.seek(tensor * ITEM)
                file.write(b"PK\x03\x04")
            file.truncate(TENSORS * ITEM)
    return folder


class Pickle:
    """Opcodes of protocol 4, with a memo as a pickler keeps it: everything is memoized, texts are reused."""

    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x04")
        self.memo: dict[object, int] = {}
        self.count = 0

    def keep(self, key: object = None) -> None:
        """MEMOIZE."""
        self.out += b"\x94"
        if key is not None:
            self.memo[key] = self.count
        self.count += 1

    def again(self, key: object) -> bool:
        """BINGET, where it was kept."""
        at = self.memo.get(key)
        if at is not None:
            self.out += b"h" + bytes([at]) if at < 256 else b"j" + struct.pack("<I", at)
        return at is not None

    def text(self, value: str) -> None:
        """A text."""
        if not self.again(value):
            self.out += b"\x8c" + bytes([len(value)]) + value.encode()
            self.keep(value)

    def name(self, module: str, name: str) -> None:
        """A global."""
        if not self.again((module, name)):
            self.text(module)
            self.text(name)
            self.out += b"\x93"
            self.keep((module, name))

    def number(self, value: int) -> None:
        """The shortest opcode for a number."""
        if value < 256:
            self.out += b"K" + bytes([value])
        elif value < 65536:
            self.out += b"M" + struct.pack("<H", value)
        elif value < 1 << 31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            self.out += pickle.dumps(value, 4)[2:-1]

    def size(self, first: int, second: int) -> None:
        """A torch.Size of two dimensions."""
        self.name("torch", "Size")
        self.number(first)
        self.number(second)
        self.out += b"\x86"
        self.keep()
        self.out += b"\x85"
        self.keep()
        self.out += b"R"
        self.keep()

    def begin(self, module: str, name: str) -> None:
        """A dataclass up to its fields."""
        self.name(module, name)
        self.out += b")\x81"
        self.keep()
        self.out += b"}"
        self.keep()
        self.out += b"("

    def metadata(self, keys: list[str], rows: int) -> bytes:
        """The whole file."""
        module = "torch.distributed.checkpoint.metadata"
        self.begin(module, "Metadata")
        self.text("state_dict_metadata")
        self.out += b"}"
        self.keep()
        self.out += b"("
        for key in keys:
            self.text(key)
            self.tensor(module, rows)
        self.out += b"u"
        self.text("planner_data")
        self.out += b"N"
        self.text("storage_data")
        self.out += b"}"
        self.keep()
        # Every rank sends its places to the first: names are shared within what one rank sent, and no further.
        for shard in range(SHARDS):
            self.out += b"("
            path = f"__{shard}_0.distcp"
            for number, key in enumerate(keys):
                self.memo.pop(key, None)
                self.place(module, key, shard, rows, path, number * ITEM)
            self.out += b"u"
        self.text("version")
        self.text("1.0.0")
        self.out += b"ub."
        return bytes(self.out)

    def tensor(self, module: str, rows: int) -> None:
        """One TensorStorageMetadata with its chunks."""
        self.begin(module, "TensorStorageMetadata")
        self.text("properties")
        self.begin(module, "TensorProperties")
        self.text("dtype")
        self.name("torch", "float32")
        self.out += b"ub"
        self.text("size")
        self.size(rows * SHARDS, 4096)
        self.text("chunks")
        self.out += b"]"
        self.keep()
        self.out += b"("
        for shard in range(SHARDS):
            self.begin(module, "ChunkStorageMetadata")
            self.text("offsets")
            self.size(shard * rows, 0)
            self.text("sizes")
            self.size(rows, 4096)
            self.out += b"ub"
        self.out += b"eub"

    def place(self, module: str, key: str, shard: int, rows: int, path: str, offset: int) -> None:
        """One entry of storage_data."""
        self.begin(module, "MetadataIndex")
        self.text("fqn")
        self.text(key)
        self.text("offset")
        self.size(shard * rows, 0)
        self.text("index")
        self.number(shard)
        self.out += b"ub"
        self.begin("torch.distributed.checkpoint.filesystem", "_StorageInfo")
        self.text("relative_path")
        self.text(path)
        self.text("offset")
        self.number(offset)
        self.text("length")
        self.number(ITEM)
        self.out += b"ub"


def sparse(path: Path) -> Path:
    """A torch.save file of 100 tensors of 1 GB each, whose bytes were never written."""
    count, size = 100, 10**9
    values = b"".join(_tensor(i, size // 4) for i in range(count))
    entries = [("archive/data.pkl", b"\x80\x02}(" + values + b"u.", 0)]
    entries += [(f"archive/data/{i}", b"", size) for i in range(count)]
    directory = bytearray()
    with path.open("wb") as file:
        for name, raw, hole in entries:
            at, length, raw_name = file.tell(), len(raw) + hole, name.encode()
            extra = struct.pack("<HHQQ", 1, 16, length, length)
            crc = zlib.crc32(raw) if raw else 0
            local = (0x04034B50, 45, 0, 0, 0, 0, crc, 0xFFFFFFFF, 0xFFFFFFFF, len(raw_name), len(extra))
            file.write(struct.pack("<I5H3I2H", *local) + raw_name + extra + raw)
            file.seek(hole, os.SEEK_CUR)
            more = struct.pack("<HHQQQ", 1, 24, length, length, at)
            central = (0x02014B50, 45, 45, 0, 0, 0, 0, crc, 0xFFFFFFFF, 0xFFFFFFFF, len(raw_name), len(more))
            directory += struct.pack("<I6H3I5H2I", *central, 0, 0, 0, 0, 0xFFFFFFFF) + raw_name + more
        at = file.tell()
        file.write(directory)
        end = file.tell()
        number = len(entries)
        file.write(struct.pack("<IQ2H2L4Q", 0x06064B50, 44, 45, 45, 0, 0, number, number, len(directory), at))
        file.write(struct.pack("<IIQI", 0x07064B50, 0, end, 1))
        file.write(struct.pack("<I4H2LH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))
    return path


def _tensor(number: int, count: int) -> bytes:
    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    size = b"J" + struct.pack("<i", count)
    storage = (
        b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(str(number)) + text("cpu") + size + b"tQ"
    )
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\0" + size + b"\x85K\x01\x85\x89N" + b"tR"
    return text(f"layers.{number}.weight") + tensor


def many(folder: Path) -> Path:
    """5,000 ranks' empty files and as many that nothing names, beside a small checkpoint."""
    small(folder)
    for number in range(2, 5000):
        (folder / f"__{number}_0.distcp").touch()
        (folder / f"notes-{number}.txt").touch()
    return folder


def small(folder: Path) -> Path:
    """A model on two ranks."""
    from tests.unit.ckpt.making import small as made

    return made().write(folder)


if __name__ == "__main__":
    sys.exit(main())
