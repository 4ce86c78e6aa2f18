"""Documents on a terminal: the answer first, its figures those of the rows, nothing too wide."""

import io
import json
import re

import pytest
from msgspec import structs
from rich.console import Console

import twofold as tf
from experiments.output.document import Document, Doubt, FactList, Row, Section, Table, Text, Trust
from experiments.output.terminal import Amount, notebook, print_document
from experiments.output.words import say_gain, say_resource
from helpers.places import ROOT, SAMPLES

GPU = SAMPLES / "gpu-dp2-tp4"
WIDTHS = (60, 80, 100, 160)


def printed(document, width=100, amount=Amount.ANSWER):
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    print_document(console, document, amount)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def report():
    return tf.utility(GPU, "dgx-a100")


def test_the_headline_names_the_greatest_utility_with_the_figure_of_its_row(report):
    best = max(
        (row for row in report.utilities if row.utility_pct is not None),
        key=lambda row: row.utility_pct,
    )
    headline = report.document().headline
    assert best.resource == "compute"
    assert "GPUs twice as fast save" in headline
    assert say_gain(best.utility_pct, *best.reach_pct) in headline
    lines = printed(report.document()).splitlines()
    assert lines[0].startswith(headline[:60])
    row = next(line for line in lines if line.startswith("compute"))
    assert say_gain(best.utility_pct, *best.reach_pct) in row


def test_json_and_csv_have_the_answer_in_words(report):
    record = json.loads(report.to_json())
    document = report.document()
    assert record["headline"] == document.headline
    assert record["cause"] == document.cause
    assert record["trust"]["grade"] == document.trust.grade
    assert f"# headline: {document.headline}" in report.to_csv()


def test_the_cause_is_the_largest_share_of_the_path(report):
    shares = {}
    for part in tf.explain(GPU, "dgx-a100").parts:
        shares[part.what] = shares.get(part.what, 0.0) + part.seconds
    most = max(shares, key=shares.get)
    assert most == "compute"
    assert f"kernels are {100 * shares[most] / sum(shares.values()):.0f} %" in (
        report.document().cause
    )


def test_resources_that_are_unused_for_one_reason_are_one_line(report):
    lines = printed(report.document()).splitlines()
    unused = [line for line in lines if "unused: " in line]
    reasons = {row.note for row in report.utilities if row.utility_pct is None}
    assert len(unused) == len(reasons) == 1
    assert "scale-out, scale-up domain, PCIe" in unused[0]


def bars(values, width=100):
    rows = [Row((f"r{number}",), value) for number, value in enumerate(values)]
    document = Document("t", "h", sections=(Section("a", "A", [Table(("name",), rows)]),))
    lines = printed(document, width).splitlines()
    drawn = [next(line for line in lines if line.startswith(f"r{n}")) for n in range(len(values))]
    return [(line.count("█"), "-█" in line) for line in drawn]


def test_bars_are_proportional_to_100_percent_and_losses_have_a_minus():
    whole, half, loss, none = bars([100.0, 50.0, -80.0, 0.0])
    assert half[0] == pytest.approx(whole[0] / 2, abs=1)
    assert loss[0] == pytest.approx(0.8 * whole[0], abs=1)
    assert [minus for _, minus in (whole, half, loss, none)] == [False, False, True, False]
    assert none[0] == 0


def test_a_loss_of_more_than_the_step_rescales_all_bars():
    loss, gain = bars([-300.0, 100.0])
    assert loss[0] == pytest.approx(3 * gain[0], abs=2)


POOR = Trust("replay +12 %, 2 of 8 ranks", "poor", (Doubt("2 of 8 ranks", "--replicate"),))


def test_poor_trust_stands_above_the_table_with_cause_and_remedy(report):
    document = structs.replace(report.document(), trust=POOR)
    text = printed(document)
    assert text.index("poor: replay +12 %") < text.index("twice the ...")
    assert "2 of 8 ranks; --replicate" in text
    good = printed(structs.replace(report.document(), trust=Trust("replay +0.0 %", "good")))
    assert good.index("trust") > good.index("unused: ")


def test_quiet_is_the_table_alone_and_verbose_adds_how_it_was_simulated(report):
    document = report.document()
    assert printed(document, amount=Amount.QUIET).startswith("twice the ...")
    assert "trust" not in printed(document, amount=Amount.QUIET)
    verbose = printed(document, amount=Amount.VERBOSE)
    assert verbose.startswith(printed(document))
    assert verbose.index("simulated with") > verbose.index("trust")


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_console(report, width):
    for amount in Amount:
        text = printed(report.document(), width, amount)
        assert all(len(line) <= width for line in text.splitlines())


def test_a_notebook_shows_the_answer_and_no_markup_of_names():
    table = Table(("name",), [Row(("<script>alert(1)</script>",))])
    facts = FactList({"<b>": "<img src=x>"})
    sections = (Section("a", "A", [table, facts, Text("<i>")]),)
    html = notebook(Document("t", "<script>", sections=sections))
    assert not re.search(r"<(script|b|img|i)\b", html)
    assert "&lt;script&gt;alert(1)" in html


@pytest.mark.parametrize(
    ("gain", "width", "said"),
    [
        (40.9, 21.99, "41 ± 22 %"),
        (7.39, 3.95, "7 ± 4 %"),
        (-45.02, 9.4, "-45 ± 9 %"),
        (0.06, 0.02, "< 0.1 %"),
        (12.345, None, "12.3 %"),
        (3.0, 1e-5, "3.00 %"),
        (0.0, None, "0 %"),
        (99.97, 0.16, "99.97 ± 0.16 %"),
    ],
)
def test_an_uncertainty_says_how_many_digits_count(gain, width, said):
    assert say_gain(gain, width) == said


def test_resources_are_called_by_their_names():
    assert say_resource("scale_out.nics_per_node") == "NICs per node"
    assert say_resource("torus.bandwidth") == "torus bandwidth"


def test_no_renderer_is_found_by_a_string():
    """Modules are imported by their names in a string where commands and schemas are listed."""
    for file in (ROOT / "experiments").rglob("*.py"):
        text, room = file.read_text(), file.relative_to(ROOT / "experiments").parts[0]
        assert not re.search(r"\b(printed_by|paged_by|drawn_by)\b|\bdef named\(", text), file
        assert room in ("cli", "schemas") or "import_module" not in text, file
