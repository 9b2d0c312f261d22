"""Jobs with planted faults, simulated: the kind of fault and the rank at fault are named, the cascade is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.dumps.memory import verdict
from fixtures.dumps.simulate import Die, Hang, Op, Sim, Wait, Work, as_json, as_version, fsdp_step


def G(**k):
    return Op("_all_gather_base", inputs=((65536,),), site="unshard:model.py:40", **k)


def hsdp():
    # world 8: shard groups of 4, replicate groups of 2
    return {
        "1": ("shard", (0, 1, 2, 3)),
        "2": ("shard", (4, 5, 6, 7)),
        **{str(3 + i): ("replicate", (i, i + 4)) for i in range(4)},
    }


def hstep(r, last=False):
    s = "1" if r < 4 else "2"
    rep = str(3 + r % 4)
    for l in range(3):
        yield Op("_all_gather_base", s, ((65536,),), site=f"unshard:model.py:{40 + l}")
    for l in range(3):
        yield Op(
            "_reduce_scatter_base", s, ((262144,),), dtype="Float", site="backward:train.py:121", stream="rs"
        )
        yield Op("all_reduce", rep, ((65536,),), dtype="Float", site="backward:train.py:121", stream="rs")
    yield Op("all_reduce", "0", ((1,),), dtype="Float", site="clip:train.py:124")
    yield Wait()


S = []


def sc(name, want, **kw):
    def d(f):
        S.append((name, want, f, kw))
        return f

    return d


@sc("hsdp rank 6 hangs before backward", ("never entered", (6,)), world=8, groups=hsdp())
def program_1(r):
    yield from hstep(r)
    yield from hstep(r)
    if r == 6:
        s = "2"
        for l in range(3):
            yield Op("_all_gather_base", s, ((65536,),), site=f"unshard:model.py:{40 + l}")
        yield Hang()
    yield from hstep(r)


@sc("hsdp rank 2 dies", ("no dump", (2,)), world=8, groups=hsdp())
def program_2(r):
    yield from hstep(r)
    if r == 2:
        yield Die()
    yield from hstep(r)


@sc("hsdp replicate op size", ("other size", (5,)), world=8, groups=hsdp())
def program_3(r):
    yield from hstep(r)
    for i, a in enumerate(hstep(r)):
        if r == 5 and isinstance(a, Op) and a.name == "all_reduce" and a.group != "0" and i == 6:
            a = replace(a, inputs=((65537,),))
        yield a


# note group of 2: 1 vs 5
@sc(
    "tp+dp: rank 3 skips tp all_reduce",
    (("never entered", "other operation"), (3,)),
    world=4,
    groups={"1": ("tp", (0, 1)), "2": ("tp", (2, 3)), "3": ("dp", (0, 2)), "4": ("dp", (1, 3))},
)
def program_4(r):
    tp = "1" if r < 2 else "2"
    dp = "3" if r % 2 == 0 else "4"
    for s in range(4):
        for l in range(4):
            yield G(group=dp)
            if not (r == 3 and s == 3 and l == 2):
                yield Op("all_reduce", tp, ((512,),), site=f"mlp:model.py:{70 + l}")
            yield Wait()
        yield Op("_reduce_scatter_base", dp, ((131072,),), dtype="Float")
        yield Wait()


@sc("pipeline: stage 1 one microbatch less", ("unmatched", (1,)), world=4)
def program_5(r):
    for s in range(2):
        for m in range(4):
            if r > 0:
                if not (r == 1 and s == 1 and m == 3):
                    yield Op("recv", "0", ((4, 1024),), peer=r - 1, site="recv_fwd:pp.py:10")
                else:
                    yield Hang()
            if r < 3:
                yield Op("send", "0", ((4, 1024),), peer=r + 1, site="send_fwd:pp.py:14")
            yield Wait()


@sc("pipeline: size mismatch", ("other size", ()), world=2)
def program_6(r):
    for m in range(4):
        n = 1024 if m < 3 or r == 0 else 1000
        yield Op("send" if r == 0 else "recv", "0", ((4, n),), peer=1 - r, site="pp:pp.py:10")
        yield Wait()


@sc("coalesced all_gather, rank 2 missing", ("never entered", (2,)), world=4)
def program_7(r):
    for s in range(3):
        if r == 2 and s == 2:
            yield Hang()
        for m in range(3):
            yield Op("_all_gather_base", "0", ((100 + m,),), coalesced=s + 1)
        yield Op("ALLGATHER_coalesced", "0", ((1,),), coalesced=s + 1, outputs=())
        yield Wait()


@sc("coalesced member differs", (("other operation", "other size"), (1,)), world=4)
def program_8(r):
    for s in range(3):
        for m in range(3):
            yield Op(
                "_all_gather_base",
                "0",
                ((100 + m + (7 if r == 1 and s == 2 and m == 1 else 0),),),
                coalesced=s + 1,
            )
        yield Op("ALLGATHER_coalesced", "0", ((1,),), coalesced=s + 1, outputs=())
        yield Wait()


@sc("batch_isend_irecv rank 1 absent", ("unmatched", (1,)), world=3)
def program_9(r):
    for s in range(3):
        if r == 1 and s == 2:
            yield Hang()
        yield Op("send", "0", ((8,),), peer=(r + 1) % 3, coalesced=-s - 1)
        yield Op("recv", "0", ((8,),), peer=(r - 1) % 3, coalesced=-s - 1)
        yield Op("coalesced", "0", ((8,),), coalesced=-s - 1)
        yield Wait()


@sc("ring overflow, missing", ("never entered", (37,)), world=64, ring=30)
def program_10(r):
    for s in range(8):
        yield from fsdp_step(r, world=64)
    if r == 37:
        yield Hang()
    yield from fsdp_step(r, world=64)


@sc(
    "rare group overwritten by ring",
    ("never entered", (3,)),
    world=4,
    ring=20,
    groups={"9": ("ckpt", (0, 1, 2, 3))},
)
def program_11(r):
    yield Op("barrier", "9", ())
    yield Wait()
    for s in range(6):
        yield from fsdp_step(r, world=4)
    if r == 3:
        yield Hang()
    yield from fsdp_step(r, world=4)


@sc("2 ranks: extra op on 1", ("other operation", (1,)), world=2)
def program_12(r):
    for s in range(4):
        yield from fsdp_step(r, world=2)
    if r == 1:
        yield Op("all_reduce", "0", ((7,),), site="log:train.py:9")
    for s in range(2):
        yield from fsdp_step(r, world=2)


@sc("2 ranks: size differs", ("other size", (0,)), world=2)
def program_13(r):
    for s in range(4):
        yield from fsdp_step(r, world=2)
    for a in fsdp_step(r, world=2):
        yield replace(a, inputs=((2,),)) if r == 0 and isinstance(a, Op) and a.name == "all_reduce" else a


@sc("skip alike neighbours w/ sites", ("never entered", (4,)), world=8)
def program_14(r):
    for s in range(2):
        for l in range(6):
            if r == 4 and s == 1 and l == 2:
                continue
            yield Op("_all_gather_base", "0", ((65536,),), site=f"unshard:model.py:{40 + l}")
        yield Wait()


@sc("straggler after timeout with skew", ("late", (5,)), world=8, skew_ms=120000)
def program_15(r):
    for s in range(3):
        yield from fsdp_step(r)
    if r == 5:
        yield Work(650)
    yield replace(G(), stuck_on=tuple(range(8)))
    yield Wait()


@sc(
    "two independent: 2 groups each with its own culprit",
    ("never entered", (1,)),
    world=4,
    groups={"1": ("a", (0, 1)), "2": ("b", (2, 3))},
)
def program_16(r):
    g = "1" if r < 2 else "2"
    for s in range(3):
        yield Op("all_reduce", g)
        yield Wait()
    if r in (1, 3):
        yield Hang()
    yield Op("all_reduce", g)
    yield Wait()


@sc("uneven batches: rank 7 leaves loop, joins eval", ("other operation", (7,)), world=8)
def program_17(r):
    for s in range(3 if r == 7 else 4):
        yield from fsdp_step(r)
    yield Op("all_reduce", "0", ((2,),), dtype="Float", site="evaluate:eval.py:12")
    yield Wait()


@sc("rank 0 saves", ("other operation", (0,)), world=8)
def program_18(r):
    for s in range(2):
        yield from fsdp_step(r)
    if r == 0:
        for l in range(3):
            yield Op("_all_gather_base", "0", ((1000 + l,),), site="save_checkpoint:ckpt.py:50")
        yield Wait()
    yield from fsdp_step(r)


@sc("half/half branch 4 vs 4", ("other operation", ()), world=8)
def program_19(r):
    yield from fsdp_step(r)
    yield (Op("broadcast") if r < 4 else Op("reduce"))
    yield Wait()


@sc("nobody starts: busy stream", ("never entered", (2,)), world=4, groups={"1": ("rep", (0, 1, 2, 3))})
def program_20(r):
    yield from fsdp_step(r, world=4)
    if r == 2:
        yield Op("all_reduce", "1", stream="0")
        yield Hang()
    yield Op("all_reduce", "1", stream="0")
    yield G()
    yield Wait()


@sc("first collective never works", ("stalled", ()), world=16)
def program_21(r):
    yield Op("broadcast", "0", ((1,),), stuck_on=tuple(range(16)))
    yield Wait()


@sc("healthy", ("finished", ()), world=8)
def program_22(r):
    for s in range(4):
        yield from fsdp_step(r)


@sc("healthy a2a uneven", ("finished", ()), world=4)
def program_23(r):
    for s in range(4):
        yield Op("all_to_all_single", "0", ((100,),), outputs=((100 + r * 10,),))
        yield Wait()


@sc("gloo missing", ("never entered", (2,)), world=4, backend="gloo")
def program_24(r):
    yield from fsdp_step(r, world=4)
    if r == 2:
        yield Hang()
    yield from fsdp_step(r, world=4)


@sc("timing: rank 3 stream blocked by hung kernel", ("not started", (3,)), world=4, timing=True)
def program_25(r):
    yield from fsdp_step(r, world=4)
    yield replace(G(), unstarted_on=(3,))
    yield Wait()


@sc("rank 5 kernel stuck, others went on", ("not finished", (5,)), world=8)
def program_26(r):
    yield from fsdp_step(r)
    yield replace(G(), stuck_on=(5,))
    yield G()
    yield G()
    yield Wait()


@sc(
    "chain of three groups",
    ("never entered", (5,)),
    world=6,
    groups={"1": ("a", (0, 1)), "2": ("b", (1, 3)), "3": ("c", (3, 5))},
)
def program_27(r):
    for s in range(2):
        for g, m in (("3", (3, 5)), ("2", (1, 3)), ("1", (0, 1))):
            if s == 1 and r == 5:
                yield Hang()
            if r in m:
                yield Op("all_reduce", g)
                yield Wait()


@sc("crossed minority", ("crossed", (6,)), world=8, groups={"7": ("ep", tuple(range(8)))})
def program_28(r):
    yield from fsdp_step(r)
    for g in ("7", "0") if r == 6 else ("0", "7"):
        yield Op("all_reduce", g)
        yield Wait()


def kinds(want):
    return want if isinstance(want, tuple) else (want,)


@pytest.mark.parametrize(("name", "want", "program", "options"), S, ids=[s[0] for s in S])
def test_cause(name, want, program, options):
    cause = verdict(Sim(program=program, **options).run()).conclusions[0]
    assert cause.kind in kinds(want[0]), cause
    assert cause.ranks == want[1], cause


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.4", "2.0", "2.1", "2.2", "2.4", "2.7"])
def test_older_schemas(version):
    def program(r):
        yield from fsdp_step(r)
        if r == 5:
            yield Hang()
        yield from fsdp_step(r)

    dumps = {r: as_version(d, version) for r, d in Sim(8, program).run().items()}
    cause = verdict(dumps).conclusions[0]
    assert (cause.kind, cause.ranks) == ("never entered", (5,))


def test_json_form():
    def program(r):
        yield from fsdp_step(r)
        if r == 5:
            yield Hang()
        yield from fsdp_step(r)

    cause = verdict({r: as_json(d) for r, d in Sim(8, program).run().items()}).conclusions[0]
    assert (cause.kind, cause.ranks) == ("never entered", (5,))
