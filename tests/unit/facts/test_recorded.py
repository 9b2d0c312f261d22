"""A recording answers as the machine did, whoever wrote it."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from fixtures import machines
from fsdp_doctor.facts import trees, zip_tree
from fsdp_doctor.facts.recorded import (
    DirectoryTree,
    MemoryTree,
    RecordedSource,
    RecordingError,
    Tree,
    ZipTree,
    open_recording,
)
from fsdp_doctor.facts.source import number, text
from fsdp_doctor.subjects.fact import Known, Unknown

MANIFEST = {
    "schema": "fsdp-doctor-recording/1",
    "tool": "test",
    "created": "2026-09-14T08:30:00+00:00",
    "host": "a",
    "rank": 0,
    "world_size": 1,
    "not_recorded": {},
}


def contents(**parts: bytes) -> dict[str, bytes]:
    return {"manifest.json": json.dumps(MANIFEST).encode()} | parts


def memory(files: dict[str, bytes] | None = None, links: object = None, **manifest: object) -> RecordedSource:
    out = {"manifest.json": json.dumps(MANIFEST | manifest).encode()} | (files or {})
    if links is not None:
        out["links.json"] = json.dumps(links).encode()
    return RecordedSource(MemoryTree(out))


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, raw in files.items():
        target = folder / name
        if name.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(raw)
    return folder


def pack(path: Path, files: dict[str, bytes], under: str = "") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, raw in files.items():
            out.writestr(under + name, raw)
    return path


@pytest.fixture(scope="module", params=["memory", "folder", "zip"])
def h100(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RecordedSource:
    files = machines.h100().contents()
    folder = tmp_path_factory.mktemp("recording")
    if request.param == "memory":
        return RecordedSource(MemoryTree(files))
    if request.param == "folder":
        return open_recording(write(folder / "h100", files))
    return open_recording(pack(folder / "h100.zip", files))


class TestFiles:
    def test_through_a_linked_folder(self, h100: RecordedSource) -> None:
        assert number(h100, "/sys/class/net/eno1/mtu") == 9000
        assert number(h100, "/sys/class/net/eno1/../../vendor") == 0x15B3, "above the target, not the link"
        assert text(h100, "/proc/mounts") == text(h100, "/proc/self/mounts")

    def test_first_bytes(self, h100: RecordedSource) -> None:
        assert h100.read("/proc/version", 5) == b"Linux"
        assert h100.read("/proc/version", 0) == b""
        assert h100.read("/dev/nvidia0") == b""

    def test_binary(self, h100: RecordedSource) -> None:
        bridge = "/sys/bus/pci/devices/0000:17:00.0/config"
        raw = h100.read(bridge)
        assert isinstance(raw, bytes) and len(raw) == 64

    def test_absent(self, h100: RecordedSource) -> None:
        for path in ("/nope", "/proc/version/nope", "/sys/class/net/eth7/mtu", "/dev/nvidia8", "/a\0b"):
            answer = h100.read(path)
            assert isinstance(answer, Unknown) and answer.absent, path
            assert not h100.exists(path) and h100.listdir(path) == ()

    def test_folder_is_no_file(self, h100: RecordedSource) -> None:
        answer = h100.read("/proc")
        assert isinstance(answer, Unknown) and not answer.absent

    def test_listing_merges_files_folders_and_links(self, h100: RecordedSource) -> None:
        assert h100.listdir("/sys/class/net")[:3] == ("eno1", "ibp154s0", "ibp188s0")
        device = h100.listdir("/sys/bus/pci/devices/0000:1b:00.0")
        assert {"driver", "vendor", "numa_node"} <= set(device)
        assert set(h100.listdir("/sys/class")) == {"dmi", "infiniband", "infiniband_verbs", "net"}
        assert {"proc", "sys", "etc", "dev"} == set(h100.listdir("/"))

    def test_links(self, h100: RecordedSource) -> None:
        assert h100.readlink("/sys/class/net/lo") == "../../devices/virtual/net/lo"
        assert h100.readlink("/sys/class/net/lo/mtu") is None
        assert h100.readlink("/sys/class/net") is None
        assert h100.realpath("/sys/class/net/lo/mtu") == "/sys/devices/virtual/net/lo/mtu"
        assert h100.realpath("/nope/./x/..//y") == "/nope/y"
        driver = "/sys/bus/pci/devices/0000:1b:00.0/driver"
        assert h100.realpath(driver) == "/sys/bus/pci/drivers/nvidia"
        assert h100.exists(driver), "the target of a driver's link need not be recorded"

    def test_exists(self, h100: RecordedSource) -> None:
        for path in ("/", "/sys/class", "/sys/class/net/eno1/mtu", "/dev/nvidia7", "/proc/self/"):
            assert h100.exists(path), path

    def test_openable_is_not_known(self, h100: RecordedSource) -> None:
        assert h100.openable("/dev/nvidia0") is None

    def test_parts(self, h100: RecordedSource) -> None:
        stack, net, nvml, env = h100.stack(), h100.net(), h100.nvml(), h100.env()
        assert isinstance(stack, Known) and stack.value["python"] == "3.12.3"
        assert isinstance(net, Known) and net.value["hostname"] == "h100-node-a"
        assert isinstance(nvml, Known) and len(nvml.value["devices"]) == 8  # type: ignore[arg-type]
        assert isinstance(env, Known) and env.value["HOME"] == "/home/user"
        space, log = h100.statvfs(), h100.kernel_log()
        assert isinstance(space, Known) and space.value["/tmp"]["f_frsize"] == 4096
        assert isinstance(log, Known) and "NVRM: loading" in log.value


class TestLinks:
    def test_absolute_and_chained(self) -> None:
        s = memory({"root/c/d/f": b"1"}, {"a": "/b", "b": "c", "x": "a/d"})
        assert text(s, "/a/d/f") == text(s, "/x/f") == "1"
        assert s.realpath("/x/f") == "/c/d/f"

    def test_above_the_root_is_the_root(self) -> None:
        s = memory({"root/f": b"1"}, {"a": "../../../f", "b": "../../../../manifest.json"})
        assert text(s, "/a") == "1"
        assert text(s, "/b") is None

    @pytest.mark.parametrize("links", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "a/a"}, {"a": "./a/x"}])
    def test_loop(self, links: dict[str, str]) -> None:
        s = memory({}, links)
        assert isinstance(s.read("/a"), Unknown) and s.listdir("/a") == ()
        assert s.realpath("/a/b") == "/a/b"
        assert s.readlink("/a") == links["a"]

    def test_as_deep_as_the_kernel_follows(self) -> None:
        chain = {f"l{i}": f"l{i + 1}" for i in range(60)}
        s = memory({"root/l60": b"1"}, chain)
        assert text(s, "/l20") == "1"
        assert text(s, "/l19") is None

    def test_long_targets_end(self) -> None:
        s = memory({}, {f"l{i}": "/".join(["x"] * 1500) + f"/../l{i + 1}" for i in range(60)})
        assert isinstance(s.read("/l0"), Unknown)

    def test_listing_of_a_folder_that_holds_only_links(self) -> None:
        s = memory({}, {"sys/class/net/eth0": "../../devices/eth0"})
        assert s.listdir("/sys") == ("class",)
        assert s.exists("/sys/class") and s.listdir("/sys/class/net") == ("eth0",)
        assert s.exists("/sys/class/net/eth0")


class TestRanks:
    def test_each_has_its_own(self, tmp_path: Path) -> None:
        machines.two_nodes().write(tmp_path)
        job = open_recording(tmp_path)
        assert job.ranks() == (1, 2, 3)
        assert [job.rank(n).manifest.host for n in job.ranks()] == ["node-a", "node-b", "node-b"]
        assert text(job.rank(2), "/etc/hostname") == "node-b"
        assert job.rank(2).manifest.rank == 2
        with pytest.raises(RecordingError, match="ranks/7"):
            job.rank(7)

    def test_other_names_are_no_ranks(self) -> None:
        names = ("01", "x", "-1", "²", "9" * 30, "999999999", "12")
        assert memory({f"ranks/{n}/manifest.json": b"" for n in names}).ranks() == (12,)


class TestNoRecording:
    def test_no_manifest(self) -> None:
        with pytest.raises(RecordingError, match="not a recording"):
            RecordedSource(MemoryTree({"root/x": b""}))

    @pytest.mark.parametrize(
        ("manifest", "words"),
        [
            (b"", "manifest.json.*JSON"),
            (b"[]", "not an object"),
            (b"\xff\xfe", "UTF-8"),
            (b"{}", "format 'None'"),
            (b'{"schema": "fsdp-doctor-recording/2"}', "recording/2.*reads.*recording/1"),
            (b"[" * 100_000, "nested"),
            (b'{"a":' * 100 + b"1" + b"}" * 100, "nested"),
            (b'{"schema": NaN}', "NaN"),
        ],
    )
    def test_manifest(self, manifest: bytes, words: str) -> None:
        with pytest.raises(RecordingError, match=words) as caught:
            RecordedSource(MemoryTree({"manifest.json": manifest}))
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "field",
        [
            {"rank": "0"},
            {"rank": -1},
            {"rank": True},
            {"world_size": 1.5},
            {"host": 5},
            {"checkpoint_dir": []},
            {"clock_offset_seconds": "0"},
            {"clock_offset_seconds": 10**400},
        ],
    )
    def test_manifest_fields(self, field: dict[str, object]) -> None:
        with pytest.raises(RecordingError, match=next(iter(field))):
            memory(**field)

    def test_unset_manifest_fields(self) -> None:
        s = memory(rank=None, world_size=None, host=None, clock_offset_seconds=3, not_recorded=None)
        assert (s.manifest.rank, s.manifest.host, s.manifest.clock_offset_seconds) == (None, None, 3.0)
        assert s.manifest.recorded

    @pytest.mark.parametrize(
        "links", [b"{", b"[]", b'{"a": 1}', b'{"": "x"}', b'{"a": null}', b'{"a/./b": "x"}', b'{"../a": "x"}']
    )
    def test_links(self, links: bytes) -> None:
        with pytest.raises(RecordingError, match=r"links\.json"):
            RecordedSource(MemoryTree(contents() | {"links.json": links}))

    def test_paths(self, tmp_path: Path) -> None:
        with pytest.raises(RecordingError, match="no such file"):
            open_recording(tmp_path / "nope")
        with pytest.raises(RecordingError, match="not a recording"):
            open_recording(tmp_path)
        (tmp_path / "text").write_text("hello")
        with pytest.raises(RecordingError, match="no zip archive"):
            open_recording(tmp_path / "text")
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(RecordingError, match="not a regular file"):
            open_recording(tmp_path / "pipe")
        with pytest.raises(RecordingError, match="not a folder"):
            DirectoryTree(tmp_path / "text")


class TestDamagedParts:
    @pytest.mark.parametrize(
        ("raw", "words"),
        [
            (b'{"a": 1', "not valid JSON"),
            (b"null", "not an object"),
            (b'{"a": NaN}', "NaN"),
            (b'{"a": -Infinity}', "Infinity"),
            (b'{"a": 1e999}', "1e999"),
            (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
            (b"\xff", "UTF-8"),
            (b"[" * 100_000, "nested"),
            (b'{"a":' * 50 + b"1" + b"}" * 50, "nested"),
        ],
    )
    @pytest.mark.parametrize("part", ["env", "nvml", "stack", "net", "statvfs"])
    def test_is_unknown(self, part: str, raw: bytes, words: str) -> None:
        s = memory({f"{part}.json": raw})
        answer = getattr(s, part)()
        assert isinstance(answer, Unknown) and words in answer.reason and f"{part}.json" in answer.reason

    def test_missing_part_gives_the_reason_of_the_manifest(self) -> None:
        s = memory(not_recorded={"kernel_log": "permission denied: /dev/kmsg"})
        assert s.kernel_log() == Unknown("permission denied: /dev/kmsg")
        assert s.nvml() == Unknown("the recording holds no nvml.json")

    def test_values_of_the_wrong_kind(self) -> None:
        s = memory(
            {"env.json": b'{"A": 1}', "statvfs.json": b'{"/": {"f_bfree": 1}, "/x": [], "/y": {"a": "b"}}'}
        )
        assert isinstance(s.env(), Unknown)
        space = s.statvfs()
        assert isinstance(space, Known) and space.value == {"/": {"f_bfree": 1}}

    def test_half_characters_can_be_printed(self) -> None:
        env = memory({"env.json": b'{"A\\ud800": "\\udfff\\u00e9"}'}).env()
        assert isinstance(env, Known)
        assert [(k.encode(), v.encode()) for k, v in env.value.items()] == [(b"A?", b"?\xc3\xa9")]

    def test_log_of_odd_bytes(self) -> None:
        log = memory({"kernel_log.txt": b"a\xffb"}).kernel_log()
        assert isinstance(log, Known) and log.value == "a\ufffdb"


class TestHostileFolder:
    def test_link_out_of_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("s")
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "f").write_text("s")
        folder = write(tmp_path / "r", contents() | {"root/etc/ok": b"1"})
        (folder / "root/etc/absolute").symlink_to(tmp_path / "secret")
        (folder / "root/etc/relative").symlink_to("../../../secret")
        (folder / "root/etc/folder").symlink_to("../../../outside")
        (folder / "root/etc/inside").symlink_to("ok")
        (folder / "root/etc/loop").symlink_to("loop")
        (folder / "root/same").symlink_to("etc")
        s = open_recording(folder)
        for name in ("absolute", "relative", "folder", "folder/f", "loop"):
            assert isinstance(s.read(f"/etc/{name}"), Unknown), name
        assert s.listdir("/etc/folder") == ()
        assert text(s, "/etc/inside") == text(s, "/same/ok") == "1"

    def test_recording_that_is_a_link_to_a_folder(self, tmp_path: Path) -> None:
        write(tmp_path / "r", contents() | {"root/f": b"1"})
        (tmp_path / "link").symlink_to("r")
        assert text(open_recording(tmp_path / "link"), "/f") == "1"

    def test_special_files_are_not_opened(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "r", contents() | {"root/dev/nvidia0": b""})
        os.mkfifo(folder / "root/dev/pipe")  # opening it would block for ever
        (folder / "root/dev/null").symlink_to("/dev/null")
        os.mkfifo(folder / "nvml.json")
        s = open_recording(folder)
        assert isinstance(s.read("/dev/pipe"), Unknown) and isinstance(s.read("/dev/null"), Unknown)
        assert isinstance(s.nvml(), Unknown)
        assert s.listdir("/dev") == ("null", "nvidia0", "pipe")

    def test_unreadable_file(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "r", contents() | {"root/f": b"1"})
        (folder / "root/f").chmod(0)
        answer = open_recording(folder).read("/f")
        assert answer == b"1" if os.geteuid() == 0 else isinstance(answer, Unknown)

    def test_large_file_is_cut(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trees, "MAX_FILE", 10)
        assert DirectoryTree(write(tmp_path, {"f": b"x" * 50})).read("f", 1 << 40) == b"x" * 10


class TestHostileArchive:
    @pytest.mark.parametrize("name", ["../x", "/etc/passwd", "root/../../x", "a//b", "root/./x", "a/" * 100])
    def test_name_that_leads_out(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(RecordingError, match="no recording has"):
            ZipTree(pack(tmp_path / "z.zip", contents() | {name: b""}))
        with pytest.raises(RecordingError, match="no recording has"):
            MemoryTree({name: b""})

    def test_bomb(self, tmp_path: Path) -> None:
        z = pack(
            tmp_path / "z.zip", contents() | {"root/bomb": bytes(30 << 20), "root/huge": bytes(40 << 20)}
        )
        s = open_recording(z)
        bomb, huge = s.read("/bomb"), s.read("/huge")
        assert isinstance(bomb, Unknown) and "unpacks to 31457280 bytes" in bomb.reason
        assert isinstance(huge, Unknown) and "too large" in huge.reason

    def test_lie_about_the_size(self, tmp_path: Path) -> None:
        z = pack(tmp_path / "z.zip", contents() | {"root/f": b"x" * 70_000})
        z.write_bytes(z.read_bytes().replace((70_000).to_bytes(4, "little"), (9).to_bytes(4, "little")))
        answer = open_recording(z).read("/f")
        assert isinstance(answer, Unknown) or len(answer) <= 9

    def test_table_of_contents_that_is_too_large(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        z = pack(tmp_path / "z.zip", contents() | {f"root/{i}": b"" for i in range(50)})
        monkeypatch.setattr(zip_tree, "MAX_DIRECTORY_BYTES", 1000)
        with pytest.raises(RecordingError, match="table of contents"):
            ZipTree(z)
        monkeypatch.setattr(zip_tree, "MAX_DIRECTORY_BYTES", 1 << 20)
        monkeypatch.setattr(trees, "MAX_ENTRIES", 50)
        with pytest.raises(RecordingError, match="more than 50 files"):
            ZipTree(z)

    def test_very_many_files(self, tmp_path: Path) -> None:
        z = pack(tmp_path / "z.zip", contents() | {f"root/{i}": b"" for i in range(66_000)})
        assert len(open_recording(z).listdir("/")) == 66_000
        raw = z.read_bytes()
        at = raw.rindex(b"PK\6\6") + 40  # the size in the 64-bit end record
        z.write_bytes(raw[:at] + (1 << 40).to_bytes(8, "little") + raw[at + 8 :])
        with pytest.raises(RecordingError, match="table of contents"):
            ZipTree(z)

    def test_links_and_encrypted_files(self, tmp_path: Path) -> None:
        path = tmp_path / "z.zip"
        with zipfile.ZipFile(pack(path, contents()), "a") as out:
            link = zipfile.ZipInfo("root/link")
            link.external_attr = 0o120777 << 16
            out.writestr(link, "/etc/passwd")
            out.writestr("root/lzma", b"x" * 99, zipfile.ZIP_LZMA)
            out.writestr("root/locked", b"abc")
        raw = bytearray(path.read_bytes())
        entry = raw.rindex(b"root/locked") - 46
        raw[entry + 8] |= 1
        path.write_bytes(raw)
        s = open_recording(path)
        assert not s.exists("/link")
        assert isinstance(s.read("/lzma"), Unknown) and isinstance(s.read("/locked"), Unknown)

    def test_cut_and_garbled(self, tmp_path: Path) -> None:
        raw = pack(tmp_path / "z.zip", contents() | {"root/f": b"0123456789" * 99}).read_bytes()
        for cut in range(0, len(raw), 7):
            (tmp_path / "cut.zip").write_bytes(raw[:cut])
            with pytest.raises(RecordingError):
                open_recording(tmp_path / "cut.zip")
        for at in range(0, len(raw), 3):
            (tmp_path / "bad.zip").write_bytes(raw[:at] + bytes([raw[at] ^ 0x55]) + raw[at + 1 :])
            try:
                open_recording(tmp_path / "bad.zip").read("/f")
            except RecordingError as error:
                assert "\n" not in str(error)

    def test_folder_in_the_archive(self, tmp_path: Path) -> None:
        z = pack(
            tmp_path / "z.zip",
            contents() | {"root/f": b"1", "ranks/1/manifest.json": contents()["manifest.json"]},
            "node-a/",
        )
        s = open_recording(z)
        assert text(s, "/f") == "1" and s.ranks() == (1,)

    def test_empty_archive(self, tmp_path: Path) -> None:
        with pytest.raises(RecordingError, match="not a recording"):
            open_recording(pack(tmp_path / "z.zip", {}))


def test_trees_agree(tmp_path: Path) -> None:
    files = machines.laptop().contents() | {"root/proc/7/": b""}
    trees_: list[Tree] = [
        MemoryTree(files),
        DirectoryTree(write(tmp_path / "d", files)),
        ZipTree(pack(tmp_path / "z.zip", files)),
    ]
    names = sorted({"", "nope", "root/nope/x", "root/proc/version/x", *(f.rstrip("/") for f in files)})
    names += sorted({n.rpartition("/")[0] for n in names})
    for name in names:
        assert len({t.kind(name) for t in trees_}) == 1, name
        assert len({t.names(name) for t in trees_}) == 1, name
        answers = [t.read(name, 100) for t in trees_]
        assert len({a if isinstance(a, bytes) else "unknown" for a in answers}) == 1, name
