"""Tables of what was measured are told apart by their columns, and their errors are summed up."""

import gzip
import lzma

import pytest

from experiments.validation.errors import Prediction, error_summary
from experiments.validation.measured_collectives import ALL, by_class
from experiments.validation.tables import Cells, read_rows, table_kind
from helpers.places import ROOT, SAMPLES

NCCL = """# nThread 1 nGpus 8 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5
#
#                                                              out-of-place
#       size         count      type   redop    root     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
"""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("trace,cluster,resource,factor,measured_step_s\n", "what-ifs"),
        ("id,model,cluster,tp,sequence,global_batch,step_s\n", "steps"),
        ("kind,nodes,ranks,size_bytes,time_us\n", "collectives"),
        ("model,cluster,tp,tp,sequence,global_batch,step_s\n", "steps"),  # told what is twice
        (NCCL, "collectives"),
        ("name: dgx-a100\n", None),
        ('{"traceEvents": []}', None),
        ("", None),
    ],
)
def test_a_file_is_known_by_its_content(tmp_path, text, kind):
    file = tmp_path / "file"
    file.write_text(text)
    assert table_kind(file) == kind


def test_traces_and_what_is_not_there_are_no_tables(tmp_path):
    assert table_kind(SAMPLES / "gpu-dp2-tp4") is None
    assert table_kind(f"{SAMPLES / 'gpu-dp2-tp4'}@dgx-a100") is None
    assert table_kind(tmp_path / "gone.csv") is None
    assert table_kind(ROOT / "traces" / "live" / "pairs.csv") == "what-ifs"


def test_a_summary_has_median_percentile_bias_coverage_and_the_worst_rows():
    errors = [-10.0, -4.0, 2.0, 1.0, 30.0]
    rows = [Prediction(f"row {error:g}", error, abs(error) < 5) for error in errors]
    summary = error_summary(rows)
    assert (summary.rows, summary.median_pct, summary.bias_pct) == (5, 4.0, 1.0)
    assert summary.p90_pct == pytest.approx(22.0)
    assert (summary.inside, summary.intervals) == (3, 5)
    assert [row.name for row in summary.worst] == ["row 30", "row -10", "row -4"]


def test_rows_without_an_interval_have_no_coverage_and_no_row_no_summary():
    assert error_summary([Prediction("a", 1.0)]).intervals == 0
    assert error_summary([]) is None


def test_errors_of_all_kinds_are_summed_up_where_there_are_several():
    rows = [("all_reduce", 2.0**10, -4.0), ("all_reduce", 2.0**30, 2.0)]
    alone = list(by_class(rows))
    assert {each.kind for each in alone} == {"all_reduce"}
    assert [(each.calls, each.median_pct) for each in alone if each.sizes == ALL] == [(2, 3.0)]
    both = list(by_class([*rows, ("all_gather", 2.0**10, 9.0)]))
    (every,) = (each for each in both if (each.kind, each.sizes) == (ALL, ALL))
    assert (every.calls, every.median_pct, every.worst_pct) == (3, 4.0, 9.0)


def test_a_cluster_of_a_row_is_a_file_beside_the_table_or_a_name(tmp_path):
    """A file does not hide a cluster of the catalogue; a name of neither is for its reader."""
    for name in ("mine", "dgx-a100"):
        (tmp_path / name).write_text("")

    def cluster(cell):
        return Cells(tmp_path / "rows.csv", 2, {"cluster": cell}).cluster("hgx-h100")

    assert cluster("mine") == tmp_path / "mine"
    assert [cluster(name) for name in ("dgx-a100", "hgx-h200", "none", "")] == [
        "dgx-a100", "hgx-h200", "none", "hgx-h100",
    ]  # fmt: skip


def test_a_log_in_utf_16_is_one_of_calls(tmp_path):
    """As PowerShell redirects it; it was taken for a trace, and answered that it is none."""
    path = tmp_path / "osu.log"
    path.write_bytes("# OSU MPI Allreduce Latency Test v7.3\n1024 12.00\n".encode("utf-16"))
    assert table_kind(path) == "collectives"


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_packed_table_is_read_as_it_was_before(tmp_path, pack):
    """As traces are; pairs.csv was "not UTF-8 text"."""
    plain = ROOT / "traces" / "live" / "pairs.csv"
    packed = tmp_path / "pairs.csv.packed"
    packed.write_bytes(pack(plain.read_bytes()))
    assert table_kind(packed) == table_kind(plain)
    rows, again = (
        read_rows(path, "pair", lambda cells: cells.text("trace")) for path in (plain, packed)
    )
    assert rows == again
