"""Files that are read apart, by one process or two, are what they are read together."""

import json
from pathlib import Path

import pytest

from simulator.support.errors import TraceError
from traces.core.loaded import Options
from traces.core.stored import stored
from traces.kineto.directory import read_job
from traces.linked_files import LinkedFiles, is_large
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


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_read_file_by_file_is_the_job_to_the_last_bit(workers):
    files = LinkedFiles(JOB, Options(), workers)
    job = read_job(JOB)
    for step in ("median", "1", "all"):
        assert stored(files.link(step)) == stored(link_job(JOB, job, step))


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
