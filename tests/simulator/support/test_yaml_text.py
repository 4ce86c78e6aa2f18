"""YAML that is wrong is one line that names file and line, whichever of our files it is."""

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

import traces
from helpers.places import ROOT
from helpers.tries import tries
from simulator.support.errors import ClusterError, TraceError, TwofoldError
from simulator.support.yaml_text import parse_yaml
from topologies import catalog
from topologies.cluster.catalog import parse_cluster
from traces.card.card import parse_card
from traces.core.comm_kernels import load_kernel_rules
from traces.generate.model import parse_model
from traces.generate.plan import read_plan

_MODEL = (Path(traces.__file__).parent / "models" / "llama-3.1-8b.yaml").read_text()
_CLUSTER = (ROOT / "topologies" / "catalog" / "dgx-a100.yaml").read_text()
_PLAN = """model: llama-3.1-8b
training: {micro_batch: 1, global_batch: 1, sequence: 128}
accelerator: {peak: 312 TFLOP/s, memory_bandwidth: 2 TB/s, compute_efficiency: 0.5}
"""
_CARD = "workload: {model: {phase: training, moe: false}, hardware: {xpu_spec: {total_count: 8}}}\n"
_KERNELS = "- {pattern: my_gemm, kind: compute}\n"


def _by_file(read):
    def parse(text, folder):
        path = folder / "x.yaml"
        path.write_text(text, "utf-8")
        return read(path)

    return parse


READERS = {
    "cluster": (_CLUSTER, lambda text, _: parse_cluster(text, source="x.yaml")),
    "model": (_MODEL, lambda text, _: parse_model(text, source="x.yaml")),
    "card": (_CARD, lambda text, _: parse_card(text, "x.yaml")),
    "plan": (_PLAN, _by_file(read_plan)),
    "kernels": (_KERNELS, _by_file(load_kernel_rules)),
}
every_reader = pytest.mark.parametrize("name", READERS)
_BOMB = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 60))]
)
WRONG = [
    ("!!bool foo", "'foo' is not a bool"),
    ("!!bool ''", "'' is not a bool"),
    ("!!float ''", "'' is not a float"),
    ("!!float x", "'x' is not a float"),
    ("!!int ''", "'' is not an int"),
    ("!!int x", "'x' is not an int"),
    ("!!int +", "'+' is not an int"),
    ("!!int 0x", "'0x' is not an int"),
    ("!!int " + "9" * 5000, "a number of 5000 characters"),
    ("1:" * 5000 + "1", "a number of 10001 characters"),
    ("!!timestamp x", "'x' is not a timestamp"),
    ("2020-13-45", "month must be in 1..12"),
    ("!!map x", "expected a mapping"),
    ("!!seq {a: b}", "expected a sequence"),
    ("!!str [a]", "expected a scalar"),
    ("!!float {a: 1}", "expected a scalar"),
    ("!!binary aGk=", "the tag !!binary is not accepted"),
    ("!!binary x", "the tag !!binary is not accepted"),
    ("!!set {a}", "the tag !!set is not accepted"),
    ("!!omap [a: 1]", "the tag !!omap is not accepted"),
    ("!!python/object/apply:os.getcwd []", "the tag !!python/object/apply:os.getcwd is"),
    ("!!python/name:os.system", "the tag !!python/name:os.system is not accepted"),
    ("!mine x", "the tag !mine is not accepted"),
    ("=", "is not accepted"),
    ("{? [a] : b}", "unhashable key"),
    ("{? {a: b} : c}", "unhashable key"),
    ("{a: 1, a: 2}", "field 'a' is given twice"),
    ("{<<: 3}", "expected a mapping"),
    ("[&a 1, *a]", "aliases are not accepted"),
    ("&a [*a]", "aliases are not accepted"),
    ("*nowhere", "aliases are not accepted"),
    ("[" * 40 + "]" * 40, "nested deeper than 32 levels"),
    ("[" * 100_000, "nested deeper than 32 levels"),
    ("{a: " * 40 + "}" * 40, "nested deeper than 32 levels"),
    ("[", "expected"),
    ("'", "end of stream"),
    ("\x00", "unacceptable character #x0000"),
]


@pytest.mark.parametrize("libyaml", [True, False])
@pytest.mark.parametrize(("value", "told"), WRONG)
def test_a_value_that_is_none_is_told_with_its_line(monkeypatch, libyaml, value, told):
    monkeypatch.setattr(yaml, "__with_libyaml__", libyaml and yaml.__with_libyaml__)
    with pytest.raises(
        ClusterError, match=r"^x\.yaml: line [345], column \d+: not valid YAML"
    ) as caught:
        parse_yaml(f"one: 1\ntwo: 2\nthree: {value}\n", "x.yaml", ClusterError)
    assert told in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_aliases_do_not_expand():
    with pytest.raises(TraceError, match=r"^x: line 2, column \d+: .*aliases"):
        parse_yaml(_BOMB, "x")


def test_values_are_plain():
    text = "\ufeff{a: !!float '1', b: !!str 3, c: [.inf, null, yes], d: !!int 0x1f, <<: {e: 2}}"
    told = {"a": 1.0, "b": "3", "c": [float("inf"), None, True], "d": 31, "e": 2}
    assert parse_yaml(text, "x") == parse_yaml(text.encode(), "x") == told
    with pytest.raises(TraceError, match=r"x: .*not UTF-8"):
        parse_yaml(b"\xff\xfe", "x")


@every_reader
@pytest.mark.parametrize("value", [value for value, _ in WRONG])
def test_every_reader_refuses_them_in_one_line(name, value, tmp_path):
    text, read = READERS[name]
    extra = f"- {value}\n" if name == "kernels" else f"extra: {value}\n"
    too_long = name == "plan" and len(value) > 2**16
    said = "too long for a plan" if too_long else r"line \d+, column \d+: not valid YAML"
    with pytest.raises(TwofoldError, match=rf"x\.yaml: {said}") as caught:
        read(text + extra, tmp_path)
    assert "\n" not in str(caught.value)


_VALUES = st.one_of(
    st.sampled_from([value for value, _ in WRONG if len(value) < 100]),
    st.sampled_from([".nan", "-.inf", ".inf", "-0.0", "1e400", "-1", "''", "~", "[]", "{}", "[1]"]),
    st.sampled_from(["2020-01-01", "yes", "1_000", "0o7", "1:30", "!!str 3", "!!float 1", "nan"]),
    st.sampled_from(["nan GB/s", "inf GB/s", "1e999 GB/s", "-1 us", "nan TFLOP/s", "9" * 39]),
    st.from_regex(r"!!(bool|int|float|null|timestamp|str|map|seq) [ -~]{0,6}", fullmatch=True),
    st.text(max_size=8),
)


@every_reader
@tries(150)
@given(data=st.data())
def test_any_value_in_any_place_is_read_or_one_line(name, data, tmp_path_factory):
    text, read = READERS[name]
    table = yaml.compose(text, Loader=yaml.SafeLoader)
    places = []
    waiting = [table]
    while waiting:
        node = waiting.pop()
        for part in node.value if not isinstance(node, yaml.ScalarNode) else ():
            waiting += part if isinstance(part, tuple) else [part]
        places.append((node.start_mark.index, node.end_mark.index))
    begin, end = data.draw(st.sampled_from(sorted(places)))
    damaged = text[:begin] + data.draw(_VALUES) + text[end:]
    told = _refusal(lambda: read(damaged, tmp_path_factory.mktemp("any", numbered=True)))
    assert told == "" or "x.yaml: " in told or "model" in told  # which a plan may name
    assert "\n" not in told


def _refusal(read):
    """The one line of a refusal, or nothing."""
    try:
        read()
    except TwofoldError as error:
        return str(error)
    return ""


@tries(300)
@given(st.text(alphabet="ab1:.-?!&*[]{},|>'\"%@`# \n\t=<\u00e9\u2028\x85", max_size=60))
@example("? ? ? a")
@example("%YAML 9.9\n---\na")
@example("a\n---\nb")
def test_any_text_is_a_value_or_one_line(text):
    told = _refusal(lambda: parse_yaml(text, "x.yaml"))
    assert told == "" or told.startswith("x.yaml: line ")
    assert "\n" not in told


def test_all_that_ships_is_read():
    assert len(catalog()) > 20
    for name, (text, read) in READERS.items():
        if name in ("cluster", "model", "card"):
            assert read(text, None)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_number_is_of_63_bits(sign):
    largest = sign * (2**63 - 1)
    assert parse_yaml(str(largest), "x.yaml") == largest
    with pytest.raises(TraceError, match="more than 64 bits"):
        parse_yaml(str(largest + sign), "x.yaml")
