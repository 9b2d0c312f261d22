"""Whatever a recording holds, it is refused in one line or judged; nothing else is raised."""

from __future__ import annotations

import contextlib
import json
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures import machines
from fsdp_doctor.facts.collect import KINDS, collect
from fsdp_doctor.facts.recorded import MemoryTree, RecordedSource, RecordingError
from fsdp_doctor.facts.recording import contents
from fsdp_doctor.subjects.fact import Known, Unknown

SLOW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
BASES = [
    m().contents() for m in (machines.geforce, machines.laptop, lambda: machines.job_node("a", "10.0.0.1/24"))
]
MANIFEST = {"manifest.json": b'{"schema": "fsdp-doctor-recording/1"}'}
PATHS = sorted({n for base in BASES for n in base})

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**40), 10**40),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["", "-1", "N/A", "\ud800", "\0", "..", "/", "9" * 400, "[bold]", "1e999"]),
)
JSON = st.recursive(
    ODD,
    lambda c: st.lists(c, max_size=4) | st.dictionaries(st.text(max_size=8), c, max_size=4),
    max_leaves=12,
)
RAW = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=100).map(lambda t: t.encode("utf-8", "replace")),
    JSON.map(lambda v: json.dumps(v).encode()),
    st.integers(-(10**40), 10**40).map(lambda i: str(i).encode()),
    st.sampled_from(
        [b"", b"\0" * 50, b"\n" * 50, b"[" * 5000, b"{}", b"null", b"\xff\xfe", b": \n:\n= = =\n- - -"]
    ),
)


def judge(files: dict[str, bytes]) -> None:
    try:
        source = RecordedSource(MemoryTree(files))
    except RecordingError as error:
        assert "\n" not in str(error)
        return
    facts = collect(source, KINDS)
    for kind in KINDS:
        fact = facts.fact(kind)
        if isinstance(fact, Unknown):
            assert fact.reason and not fact.reason.startswith("provider "), fact
        else:
            assert isinstance(fact, Known) and isinstance(fact.value, kind)
    for path in ("/", "/sys/class/net", "/proc/1", "/x/../y", ""):
        for name in source.listdir(path):
            source.read(f"{path}/{name}")
            source.realpath(f"{path}/{name}")
            source.stat(f"{path}/{name}")
        source.exists(path)
        source.path_facts(path)
    for rank in source.ranks():
        with contextlib.suppress(RecordingError):
            source.rank(rank)
    RecordedSource(MemoryTree(contents(source)))


@SLOW
@given(st.dictionaries(st.sampled_from(PATHS) | st.text(max_size=30), RAW, max_size=15), st.booleans())
def test_arbitrary_files(files: dict[str, bytes], valid: bool) -> None:
    judge(files | (MANIFEST if valid else {}))


@SLOW
@given(
    st.sampled_from(BASES),
    st.dictionaries(st.sampled_from(PATHS), RAW, max_size=8),
    st.lists(st.sampled_from(PATHS), max_size=8),
)
def test_files_replaced_and_lost(base: dict[str, bytes], replaced: dict[str, bytes], lost: list[str]) -> None:
    files = {n: replaced.get(n, raw) for n, raw in base.items() if n not in lost or n == "manifest.json"}
    judge(files)


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """The way to every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [p for k, v in items for p in places(v, (*path, k))]


def changed(value: object, path: tuple[object, ...], new: object) -> object:
    if not path:
        return new
    if isinstance(value, dict):
        return {k: changed(v, path[1:], new) if k == path[0] else v for k, v in value.items()}
    assert isinstance(value, list)
    return [changed(v, path[1:], new) if i == path[0] else v for i, v in enumerate(value)]


@SLOW
@given(
    st.sampled_from(BASES),
    st.sampled_from(["nvml", "stack", "net", "statvfs", "env", "manifest", "links"]),
    st.lists(JSON, min_size=1, max_size=5),
    st.integers(0, 2**32),
)
def test_values_inside_the_parts(base: dict[str, bytes], part: str, new: list[object], seed: int) -> None:
    pick = random.Random(seed)
    value = json.loads(base[f"{part}.json"])
    for odd in new:
        value = changed(value, pick.choice(places(value)), odd)
    judge(base | {f"{part}.json": json.dumps(value).encode()})


@SLOW
@given(
    st.sampled_from(BASES),
    st.dictionaries(
        st.lists(
            st.sampled_from(["sys", "class", "net", "proc", "self", "devices", "a", ".", ".."]), max_size=5
        ).map("/".join),
        st.lists(st.sampled_from(["..", ".", "", "a", "net", "sys", "self", "x"]), max_size=9).map("/".join),
        max_size=8,
    ),
)
def test_links_to_anywhere(base: dict[str, bytes], links: dict[str, str]) -> None:
    table = json.loads(base["links.json"]) | links
    judge(base | {"links.json": json.dumps(table).encode()})


@SLOW
@given(st.sampled_from(BASES), st.integers(0, 2**32), st.integers(1, 40))
def test_bytes_flipped(base: dict[str, bytes], seed: int, count: int) -> None:
    pick = random.Random(seed)
    files = dict(base)
    for _ in range(count):
        name = pick.choice(PATHS)
        raw = bytearray(files.get(name, b""))
        if raw:
            raw[pick.randrange(len(raw))] = pick.randrange(256)
            del raw[pick.choice([len(raw), pick.randrange(len(raw))]) :]
        files[name] = bytes(raw)
    judge(files | {"manifest.json": base["manifest.json"]})
