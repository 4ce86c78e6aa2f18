"""Schedules from files: our JSON, MSCCL's XML; what is not understood is refused by name."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import ALGORITHMS, check
from collectives.algorithms import ring as rings_of
from collectives.files.msccl import read_msccl
from collectives.files.schedule_file import load_schedule, read_json
from helpers.places import SHARED
from helpers.schedules import to_json
from simulator.support.errors import ScheduleError


def same(one, other):
    plain = ("kind", "algorithm", "ranks", "chunks", "parts")
    run = ("reduce", "repeats", "shift", "cycle", "in_network")
    columns = ("source", "target", "chunk", "count")
    return (
        all(getattr(one, name) == getattr(other, name) for name in plain)
        and len(one.steps) == len(other.steps)
        and all(
            all(getattr(a, name) == getattr(b, name) for name in run)
            and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in columns)
            for a, b in zip(one.steps, other.steps, strict=True)
        )
    )


def written(tmp_path, text, name="mine.json"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@given(
    which=st.sampled_from([(kind, name) for kind, table in ALGORITHMS.items() for name in table]),
    n=st.sampled_from([1, 2, 4, 8]),
)
def test_every_schedule_survives_a_round_trip(which, n):
    kind, name = which
    schedule = ALGORITHMS[kind][name](min(n, 2) if kind == "send_receive" else n)
    again, owners = read_json(to_json(schedule))
    assert same(schedule, again)
    assert owners is None


def test_a_schedule_comes_from_a_file(tmp_path):
    schedule = rings_of.all_reduce(4)
    assert same(load_schedule(written(tmp_path, to_json(schedule))), schedule)
    assert same(load_schedule(str(written(tmp_path, to_json(schedule)))), schedule)


def test_the_example_of_the_module_is_one(tmp_path):
    text = """{"kind": "all_gather", "algorithm": "mine", "ranks": 2, "chunks": 2, "parts": 2,
     "steps": [{"reduce": false, "transfers": [[0, 1, 0, 1], [1, 0, 1, 1]]}]}"""
    assert str(load_schedule(written(tmp_path, text))) == "mine all_gather (n=2)"


def test_owners_are_read_and_used(tmp_path):
    fields = json.loads(to_json(rings_of.all_gather(2), np.array([1, 0])))
    fields["steps"][0]["transfers"] = [[1, 0, 0, 1], [0, 1, 1, 1]]
    load_schedule(written(tmp_path, json.dumps(fields)))
    del fields["owners"]
    with pytest.raises(ScheduleError, match="does not have"):
        load_schedule(written(tmp_path, json.dumps(fields)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "all_reduced"}, "kind is not one of"),
        ({"ranks": "2"}, "ranks: Input should be a valid integer"),
        ({"ranks": 0}, "ranks: "),
        ({"chunks": 2**31}, "chunks: "),
        ({"ranks": 2**31}, "ranks: "),
        ({"speed": 1}, "speed: Extra inputs"),
        ({"owners": [0, 2]}, "owners: rank 2 is outside 0..1"),
        ({"owners": [0]}, "1 owners for 2 chunks"),
        ({"steps": []}, "after the last step: rank 0 does not have"),
        ({"steps": [{"transfers": [[0, 1, 0, 1]]}]}, "steps.0.reduce: Field required"),
        ({"steps": [{"reduce": False, "transfers": []}]}, "steps.0.transfers: "),
        ({"steps": [{"reduce": False, "transfers": [[0, 1, 0]]}]}, "steps.0.transfers.0: "),
        ({"steps": [{"reduce": False, "transfers": [[0, 1, -1, 1]]}]}, "steps.0.transfers.0.2: "),
        (
            {"steps": [{"reduce": False, "transfers": [[0, 1, 2**31, 1]]}]},
            "steps.0.transfers.0.2: ",
        ),
        ({"steps": [{"reduce": False, "transfers": [[0, 2**31 - 1, 0, 1]]}]}, "a rank outside 0"),
        ({"steps": [{"reduce": False, "transfers": [[0, 0, 0, 1]]}]}, "a rank sends to itself"),
        ({"steps": [{"reduce": False, "transfers": [[0, 3, 0, 1]]}]}, "a rank outside 0..1"),
        ({"steps": [{"reduce": False, "transfers": [[0, 1, 1, 1]]}]}, "which it does not have"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_element(tmp_path, change, said):
    fields = {**json.loads(to_json(rings_of.all_gather(2))), **change}
    with pytest.raises(ScheduleError) as error:
        load_schedule(written(tmp_path, json.dumps(fields)))
    assert "mine.json: " in str(error.value)
    assert said in str(error.value)


def test_what_is_no_schedule_file_is_refused(tmp_path):
    with pytest.raises(ScheduleError, match=r"mine.json: the file: Invalid JSON"):
        load_schedule(written(tmp_path, "{"))
    with pytest.raises(ScheduleError, match=r"a.txt: a schedule is a file in .json or .xml"):
        load_schedule(written(tmp_path, "", "a.txt"))
    with pytest.raises(ScheduleError, match=r"no\.json"):
        load_schedule(tmp_path / "no.json")
    (tmp_path / "latin.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ScheduleError, match=r"latin\.json"):
        load_schedule(tmp_path / "latin.json")


# -- MSCCL ------------------------------------------------------------------------------------


def step(number, what, source, target=None, *, count=1, after=(-1, -1)):
    (srcbuf, srcoff), (dstbuf, dstoff) = source, target or source
    return (
        f'<step s="{number}" type="{what}" srcbuf="{srcbuf}" srcoff="{srcoff}" dstbuf="{dstbuf}" '
        f'dstoff="{dstoff}" cnt="{count}" depid="{after[0]}" deps="{after[1]}" hasdep="0"/>'
    )


def block(steps, *, send=-1, recv=-1, number=0, channel=0):
    return f'<tb id="{number}" send="{send}" recv="{recv}" chan="{channel}">{"".join(steps)}</tb>'


def algo(coll, gpus, *, chunks, in_place=0):
    inner = "".join(f'<gpu id="{rank}">{"".join(tbs)}</gpu>' for rank, tbs in enumerate(gpus))
    return (
        f'<algo name="mine" proto="Simple" nchannels="1" nchunksperloop="{chunks}" '
        f'ngpus="{len(gpus)}" coll="{coll}" inplace="{in_place}">{inner}</algo>'
    )


def ring_program(n):
    """All-reduce in place: every kind of receive that stores what it sends on."""
    gpus = []
    for rank in range(n):
        rows = [("s", rank)]
        rows += [("rrcs", (rank - hop) % n) for hop in range(1, n)]
        rows += [("rcs", (rank - hop) % n) for hop in range(n - 2)]
        rows += [("r", (rank - n + 2) % n)]
        steps = [step(number, what, ("i", at)) for number, (what, at) in enumerate(rows)]
        gpus.append([block(steps, send=(rank + 1) % n, recv=(rank - 1) % n)])
    return algo("allreduce", gpus, chunks=n, in_place=1)


def all_to_all_program(n, *, share=1):
    """Out of place, a thread block per peer; the own chunks are copied."""
    gpus = []
    for rank in range(n):
        own = [step(0, "cpy", ("i", rank * share), ("o", rank * share), count=share)]
        tbs = [block(own)]
        for number, peer in enumerate((peer for peer in range(n) if peer != rank), start=1):
            rows = [
                step(0, "s", ("i", peer * share), ("o", rank * share), count=share),
                step(1, "r", ("i", rank * share), ("o", peer * share), count=share),
            ]
            tbs.append(block(rows, send=peer, recv=peer, number=number))
        gpus.append(tbs)
    return algo("alltoall", gpus, chunks=n * share)


def resolved(text):
    schedule, owners = read_msccl(text)
    check(schedule, owners)
    return schedule


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_a_ring_in_xml_is_our_ring(n):
    schedule = resolved(ring_program(n))
    assert (schedule.kind, schedule.algorithm, schedule.parts) == ("all_reduce", "mine", n)
    assert [one.reduce for one in schedule.steps] == [True] * (n - 1) + [False] * (n - 1)
    for one in schedule.steps:
        assert np.array_equal(np.sort(one.source), np.arange(n))
        assert np.array_equal(one.target, (one.source + 1) % n)
        assert (one.count == 1).all()


@given(n=st.integers(1, 6), share=st.integers(1, 3))
def test_an_all_to_all_in_xml_is_one_step(n, share):
    schedule = resolved(all_to_all_program(n, share=share))
    assert schedule.parts == n * share
    assert len(schedule.steps) == (n > 1)
    for one in schedule.steps:
        assert len(one.source) == n * (n - 1)
        assert (one.count == share).all()


def test_receive_reduce_send_passes_on_and_stores_nothing():
    gpus = [
        [block([step(0, "s", ("i", 0)), step(1, "r", ("i", 0), ("o", 0))], send=1, recv=2)],
        [
            block([step(0, "rrs", ("i", 0))], send=2, recv=0),
            block([step(0, "r", ("i", 0), ("o", 0))], recv=2, number=1, channel=1),
        ],
        [
            block([step(0, "rrcs", ("i", 0), ("o", 0))], send=0, recv=1),
            block([step(0, "s", ("o", 0), after=(0, 0))], send=1, number=1, channel=1),
        ],
    ]
    schedule = resolved(algo("allreduce", gpus, chunks=1))
    assert [len(one.source) for one in schedule.steps] == [1, 1, 2]


def test_what_is_passed_on_by_receive_reduce_send_is_not_kept():
    gpus = [
        [block([step(0, "s", ("i", 0)), step(1, "r", ("i", 0), ("o", 0))], send=1, recv=1)],
        [block([step(0, "rrs", ("i", 0), ("o", 0))], send=0, recv=0)],
    ]
    with pytest.raises(ScheduleError, match=r"gpu 1: in the end o\[0\] is not chunk 0, whole"):
        read_msccl(algo("allreduce", gpus, chunks=1))


def all_pairs_program(n, *, in_scratch=False):
    """All-reduce in place as RCCL's: everybody's share of a chunk into scratch, then added there.

    ``in_scratch``: the own chunk is added to what came first, and the sum is copied back.
    """
    gpus = []
    for rank in range(n):
        peers = [peer for peer in range(n) if peer != rank]
        came = [(number, 1) for number in range(1, n)]
        if in_scratch:
            sums = [step(0, "re", ("i", rank), ("s", 0), after=came[0])]
            sums += [step(k, "re", ("s", k), ("s", 0), after=came[k]) for k in range(1, n - 1)]
            sums.append(step(n - 1, "cpy", ("s", 0), ("i", rank)))
        else:
            sums = [step(k, "re", ("s", k), ("i", rank), after=came[k]) for k in range(n - 1)]
        tbs = [block(sums)]
        for number, peer in enumerate(peers, start=1):
            rows = [
                step(0, "s", ("i", peer)),
                step(1, "r", ("i", rank), ("s", number - 1)),
                step(2, "s", ("i", rank), after=(0, len(sums) - 1)),
                step(3, "r", ("i", peer)),
            ]
            tbs.append(block(rows, send=peer, recv=peer, number=number))
        gpus.append(tbs)
    return algo("allreduce", gpus, chunks=n, in_place=1)


@pytest.mark.parametrize("in_scratch", [False, True])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_what_is_received_and_added_later_is_a_transfer_that_adds(n, in_scratch):
    schedule = resolved(all_pairs_program(n, in_scratch=in_scratch))
    assert [one.reduce for one in schedule.steps] == [True, False]
    assert [len(one.source) for one in schedule.steps] == [n * (n - 1)] * 2


def test_adding_what_was_received_twice_is_found():
    text = all_pairs_program(3).replace('srcbuf="s" srcoff="1"', 'srcbuf="s" srcoff="0"', 1)
    with pytest.raises(ScheduleError, match="gpu 0, tb 0, step 1: adds the contribution of rank 1"):
        read_msccl(text)


def test_rccls_all_pairs_is_proven():
    path = SHARED / "traces" / "other" / "allreduce-allpairs-8n-ll-32tb.xml"
    if not path.is_file():
        pytest.skip("the program is not at hand")
    schedule = load_schedule(path)
    assert (schedule.kind, schedule.ranks, schedule.parts) == ("all_reduce", 8, 256)
    assert [one.reduce for one in schedule.steps] == [True, False]


def in_place_all_gather(*, coll="allgather"):
    gpus = [
        [
            block(
                [step(0, "s", ("i", 0)), step(1, "r", ("o", 1 - rank))],
                send=1 - rank,
                recv=1 - rank,
            )
        ]
        for rank in range(2)
    ]
    return algo(coll, gpus, chunks=2, in_place=1)


def test_in_place_the_input_is_a_part_of_the_output():
    (one,) = resolved(in_place_all_gather()).steps
    assert one.chunk.tolist() == [0, 1]


def test_in_place_the_output_is_a_part_of_the_input():
    gpus = [
        [
            block(
                [step(0, "s", ("i", 1 - rank)), step(1, "rrc", ("i", rank), ("o", 0))],
                send=1 - rank,
                recv=1 - rank,
            )
        ]
        for rank in range(2)
    ]
    (one,) = resolved(algo("reduce_scatter", gpus, chunks=2, in_place=1)).steps
    assert one.reduce
    assert one.chunk.tolist() == [1, 0]


def test_a_reduce_scatter_leaves_each_rank_the_whole_of_its_own_chunk():
    idle = [[block([step(0, "nop", ("i", -1), ("o", -1), count=0)])] for _ in range(2)]
    with pytest.raises(ScheduleError, match=r"gpu 0: in the end o\[0\] is not chunk 0, whole"):
        read_msccl(algo("reduce_scatter", idle, chunks=2, in_place=1))


def test_a_step_waits_for_what_it_depends_on():
    """Rank 0 forwards from scratch what came on another thread block, after a nop."""
    gpus = [
        [
            block([step(0, "r", ("i", 0), ("s", 0))], recv=1),
            block(
                [
                    step(0, "nop", ("i", -1), ("o", -1), count=0, after=(0, 0)),
                    step(1, "s", ("s", 0)),
                ],
                send=2,
                number=1,
            ),
        ],
        [
            block([step(0, "s", ("i", 2))], send=0),
            block([step(0, "cpy", ("i", 1), ("o", 1))], number=1),
        ],
        [block([step(0, "r", ("s", 0), ("o", 1))], recv=0)],
    ]
    with pytest.raises(ScheduleError, match=r"gpu 0: in the end o\[0\] is not chunk 0, whole"):
        read_msccl(algo("alltoall", gpus, chunks=3))
    racing = algo("alltoall", gpus, chunks=3).replace('depid="0" deps="0"', 'depid="-1" deps="-1"')
    with pytest.raises(ScheduleError, match=r"gpu 0, tb 1, step 1: s\[0\] holds nothing yet"):
        read_msccl(racing)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("<algo", "<algorithm", "not XML"),
        ('coll="allreduce"', 'coll="custom"', "algo: coll 'custom' is not one of allreduce"),
        ('coll="allreduce" ', "", "algo: attribute coll is missing"),
        ('ngpus="3"', 'ngpus="4"', "algo: ngpus is 4, but the gpus are [0, 1, 2]"),
        ('<gpu id="1"', '<gpu id="0"', "algo: gpu 0 is given twice"),
        ('nchunksperloop="3"', 'nchunksperloop="0"', "nchunksperloop 0 cannot be dealt out"),
        ('nchunksperloop="3"', 'nchunksperloop="1000000000"', "nchunksperloop 1000000000 is more"),
        ('nchunksperloop="3"', 'nchunksperloop="x"', "nchunksperloop 'x' is not a whole number"),
        ('nchunksperloop="3"', 'nchunksperloop="4"', "o[3] is not chunk 3, whole"),
        ('type="rrcs"', 'type="rx"', "gpu 0, tb 0, step 1: type 'rx' is not one of s, r, rcs"),
        ('type="rrcs"', 'type="re"', "gpu 0, tb 0, step 1: adds the contribution of rank 0 to"),
        ('srcbuf="i"', 'srcbuf="x"', "gpu 0, tb 0, step 0: buffer 'x' is not one of"),
        ('cnt="1"', 'cnt="-1"', "gpu 0, tb 0, step 0: cnt '-1' is not a whole number of 0 or more"),
        ('cnt="1"', 'cnt="99999999"', "cnt 99999999 is more than"),
        ('cnt="1"', 'cnt="2"', "gpu 1, tb 0, step 1: cnt 1, but 2 chunks were sent"),
        ('<step s="0"', '<step s="9"', "gpu 0, tb 0: steps are [1, 2, 3, 4, 9]"),
        ('depid="-1" deps="-1"', 'depid="0" deps="3"', "gpu 0, tb 0, step 0: waits for ever"),
        ('depid="-1" deps="-1"', 'depid="7" deps="0"', "gpu 0, tb 0, step 0: depid 7 is not a tb"),
        ('send="1"', 'send="-1"', "gpu 0, tb 0, step 0: sends, but its tb's send is -1"),
        ('recv="2"', 'recv="1"', "gpu 0, tb 0, step 1: waits for ever"),
        ('srcoff="0"', 'srcoff="5"', "gpu 0, tb 0, step 0: i[5] holds nothing yet"),
        ("<step", "<loop/><step", "gpu 0, tb 0: <loop> is not understood here, only <step>"),
        ('type="rrcs"', 'type="rcs"', "is not chunk"),
        *(
            (f'{name}="{now}"', f'{name}="{-1 if least == 0 else -2}"', f"of {least} or more")
            for name, now, least in (
                *(("send", 1, -1), ("recv", 2, -1), ("chan", 0, -1), ("srcoff", 0, -1)),
                *(("dstoff", 0, -1), ("depid", -1, -1), ("deps", -1, -1), ("cnt", 1, 0)),
                *(("ngpus", 3, 0), ("nchunksperloop", 3, 0), ("s", 0, 0)),
            )
        ),
    ],
)
def test_what_is_not_understood_in_xml_is_refused_by_name(tmp_path, before, after, said):
    text = ring_program(3)
    assert before in text
    path = written(tmp_path, text.replace(before, after, 1), "mine.xml")
    with pytest.raises(ScheduleError) as error:
        load_schedule(path)
    assert "mine.xml: " in str(error.value)
    assert said in str(error.value)


def test_adding_twice_or_another_chunk_is_found():
    twice = [
        [block([step(0, "s", ("i", 0)), step(1, "s", ("i", 0))], send=1)],
        [block([step(0, "rrc", ("i", 0)), step(1, "rrc", ("i", 0))], recv=0)],
    ]
    with pytest.raises(ScheduleError, match="adds the contribution of rank 0 to chunk 0 a second"):
        read_msccl(algo("allreduce", twice, chunks=1))
    other = [[block([step(0, "s", ("i", 1))], send=1)], [block([step(0, "rrc", ("i", 0))], recv=0)]]
    with pytest.raises(ScheduleError, match="gpu 1, tb 0, step 0: adds chunk 1 to chunk 0"):
        read_msccl(algo("allreduce", other, chunks=2))


def test_what_is_sent_must_be_received():
    gpus = [[block([step(0, "s", ("i", 0))], send=1)], []]
    with pytest.raises(ScheduleError, match="gpu 0 sends more to gpu 1 on channel 0"):
        read_msccl(algo("allreduce", gpus, chunks=1))


def test_an_outermost_element_of_another_name_is_refused():
    with pytest.raises(ScheduleError, match="<program>: the outermost element must be <algo>"):
        read_msccl("<program/>")


def test_a_document_type_is_refused_before_its_entities_are_expanded(tmp_path):
    bomb = '<!DOCTYPE algo [<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY a{number} "{f"&a{number - 1 or str()};" * 10}">' for number in range(1, 12)
    )
    path = written(tmp_path, f"{bomb}]><algo>&a11;</algo>", "bomb.xml")
    with pytest.raises(
        ScheduleError, match=r"bomb.xml: .*DOCTYPE algo: document types are not accepted"
    ):
        load_schedule(path)
