"""Files that are read apart, by one process or two, are what they are read together."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.support.errors import TraceError
from traces.core.loaded import Options, stored
from traces.kineto.directory import is_large, read_job
from traces.linked_files import LinkedFiles
from traces.load import load
from traces.profiler.link import link_job

SAMPLES = Path("traces/samples")
JOB = SAMPLES / "gpu-dp2-tp4"


def copied(folder, into, names=lambda name: True):
    into.mkdir()
    for file in folder.iterdir():
        if names(file.name):
            (into / file.name).write_bytes(file.read_bytes())
    return into


@pytest.fixture(scope="module")
def whole():
    """Steps of the job whose files were read together."""
    job = read_job(JOB)
    return {step: stored(link_job(JOB, job, step)) for step in ("median", "1", "all")}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_read_file_by_file_is_the_job_to_the_last_bit(workers, whole):
    files = LinkedFiles(JOB, Options(), workers)
    for step, content in whole.items():
        assert stored(files.link(step)) == content


def test_a_large_directory_is_read_apart_by_the_door_and_execution_traces_still_count(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    for file in JOB.iterdir():
        text = gzip.decompress(file.read_bytes())
        (folder / file.stem).write_bytes(text + b" " * 8_500_000)
    assert is_large(folder)
    apart = replace(load(folder, "2", options=Options(workers=2)), trace=str(JOB))
    assert stored(apart) == stored(load(JOB, "2"))
    nodes = b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "now", "start_ts": 1, "nodes": []}'
    (folder / "et_0.json").write_bytes(nodes)
    asked = load(folder, "2", options=Options(workers=2, executions=True))
    assert [Path(file).name for file, _ in asked.coverage.skipped] == ["et_0.json"]
    assert stored(replace(asked, trace=str(JOB), coverage=apart.coverage)) == stored(apart)


def test_hosts_without_devices_and_steps_that_no_rank_has():
    job = SAMPLES / "gloo-ddp-4"
    files = LinkedFiles(job, Options(), 1)
    assert stored(files.link("median")) == stored(load(job))
    with pytest.raises(TraceError, match="no ProfilerStep#77"):
        files.link("77")
    assert stored(files.link("median")) == stored(load(job))


def test_the_error_of_a_file_comes_back_from_its_process(tmp_path):
    folder = copied(JOB, tmp_path / "job")
    broken = sorted(folder.iterdir())[2]
    broken.write_bytes(broken.read_bytes()[:-700])
    with pytest.raises(TraceError, match=broken.name):
        LinkedFiles(folder, Options(), 2).link("median")


def test_a_file_that_changes_between_two_steps_is_refused(tmp_path):
    folder = copied(JOB, tmp_path / "job")
    files = LinkedFiles(folder, Options(), 1)
    files.link("1")
    for file in folder.iterdir():
        file.write_text(json.dumps({"nothing": 1}))
    with pytest.raises(TraceError, match="was changed while it was read"):
        files.link("2")


def test_only_large_directories_of_several_files_are_read_apart(tmp_path):
    assert not is_large(JOB)
    assert is_large(JOB, least=1e6)
    one = copied(JOB, tmp_path / "one", lambda name: name.startswith("rank0"))
    assert not is_large(one, least=1)
    assert not is_large(next(one.iterdir()), least=1)
