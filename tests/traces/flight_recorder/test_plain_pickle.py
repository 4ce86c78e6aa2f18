"""A pickle is read as far as it is plain data, and never runs anything."""

import pickle
import subprocess
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.support.errors import LimitError, TraceError
from traces.flight_recorder.dump import read_dump
from traces.flight_recorder.plain_pickle import read_plain_pickle

FILE = Path("dump")
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(value=plain, protocol=st.integers(2, 5))
def test_plain_data_are_read_as_python_reads_them(value, protocol):
    assert read_plain_pickle(pickle.dumps(value, protocol), FILE) == value


class Runs:
    """What a malicious file holds: reading it with pickle.load touches a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return subprocess.call, (["touch", str(self.path)],)


@pytest.mark.parametrize("protocol", range(1, 6))
def test_a_pickle_that_would_run_a_program_is_refused_and_runs_nothing(tmp_path, protocol):
    mark, file = tmp_path / "mark", tmp_path / "nccl_trace_rank_0"
    data = pickle.dumps({"pg_config": Runs(mark)}, protocol)
    file.write_bytes(data)
    with pytest.raises(TraceError, match="names a class or function"):
        read_dump(file)
    assert not mark.exists()
    pickle.loads(data)
    assert mark.exists()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"cos\nsystem\n.", "GLOBAL"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL"),
        (b"(S'x'\nios\nsystem\n.", "opcode b'S'"),
        (b"(ios\nsystem\n.", "INST"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"Pother\n.", "PERSID"),
        (b"\x80\x02}}b.", "BUILD"),
        (pickle.dumps(OrderedDict(a=1)), "names a class or function"),
        (pickle.dumps({1, 2}), "opcode"),
        (b"\x80\x02]K\x01u.", "does not fit"),
        (b"\x80\x02}(]K\x01u.", "does not fit"),
        (b"\x80\x02(K\x01.", "middle of a container"),
        (b"\x80\x02h\x07.", "does not fit"),
        (b"\x80\x02X\xff\xff\xff\x7fabc", "cut short"),
        (b"", "cut short"),
    ],
)
def test_what_is_no_plain_data_is_refused(data, why):
    with pytest.raises(TraceError, match=why) as caught:
        read_plain_pickle(data, FILE)
    assert "\n" not in str(caught.value)


def test_a_number_of_the_memo_costs_no_memory():
    assert read_plain_pickle(b"\x80\x02K\x05r\xff\xff\xff\xff.", FILE) == 5


def test_lists_of_lists_that_stand_for_more_than_memory_are_refused():
    bomb = b"]q\x00" + b"".join(
        b"]q" + bytes([level]) + b"(" + 9 * (b"h" + bytes([level - 1])) + b"e"
        for level in range(1, 30)
    )
    with pytest.raises(LimitError, match="ratio"):
        read_plain_pickle(b"\x80\x02](" + bomb + b"e.", FILE)


def test_a_list_that_holds_itself_is_refused():
    with pytest.raises(LimitError):
        read_plain_pickle(b"\x80\x02]q\x00h\x00a.", FILE)
