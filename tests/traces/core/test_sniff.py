"""A file is told by how it begins, and by one format only, but for Parquet: by its columns, too."""

from codecs import BOM_UTF8

import pytest

from traces.load import FORMATS

HEADS = {
    b'{"schemaVersion": 1, "traceEvents": [': "kineto",
    BOM_UTF8 + b'\n {"traceEvents": [': "kineto",
    b' [{"ph": "X", "name": "gemm", "ts": 1}': "kineto",
    b'{"traceEvents": [{"args": {"name": "/device:TPU:0"}': "xla_json",
    b'{"cols": [{"id": "hlo_op_name"': "xla_json",
    b"\x0a\x80\x01\x12\x09/host:CPU": "xplane",
    b"PK\x03\x04": "nsys_jax",
    b"\x80\x02}q\x00(X\x09\x00\x00\x00pg_config": "flight_recorder",
    b'{"entries": [{"profiling_name": "nccl:all_reduce"': "flight_recorder",
    b'{"schemaVersion": 1, "distributedInfo": {"pg_config": [], "pg_status": {}}': "kineto",
    b"SQLite format 3\0": "nsys",
    b"PAR1\x15\x04": "nsys ndtimeline",
    b'SQLite format 3\0 CREATE TABLE "rocpd_op"': "rocm",
    b'{"rocprofiler-sdk-tool":[{"metadata"': "rocm",
    b'{"schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": [': "pytorch_et",
    b"\0" * 257 + b"ustar" + b'\0{"schema": "1.1.0", "pid": 7, "nodes": [': "pytorch_et",
    b'{"workload_graph": [': "chakra",
    b"model: llama-3.1-8b\naccelerator: {peak: 1 TFLOP/s": "plan",
    b"# a plan\ntraining: {}\nmodel: mine": "plan",
    b"// LogGOPSim\nnum_ranks 4\n": "goal",
    b"{}": None,
    b"[]": None,
    b"": None,
    b"model: mine": None,
    b"{model: 1, training: 2}": "plan",
    b'{"model": 1, "serving": 2}': "plan",
    b'{"model": 1, "training": 2, "traceEvents": []}': "kineto",
    b'"traceEvents"': None,
    b'["traceEvents"]': None,
    b"\0" * 257 + b"ustar" + b"\0no trace": None,
}


@pytest.mark.parametrize(("head", "told"), HEADS.items(), ids=map(repr, HEADS))
def test_a_file_is_told_by_its_beginning_and_by_one_format_only(head, told):
    found = [name for name, one in FORMATS.items() if one.begins(head)]
    assert found == (told or "").split()
