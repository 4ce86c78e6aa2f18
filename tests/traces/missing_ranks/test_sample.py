"""Some ranks of a job answer as all of them do, where the others do the same in the same time."""

import gzip
import json
import random
from dataclasses import replace

import numpy as np
import pytest

from experiments.points.utility import utility
from experiments.settings import Settings
from helpers.flight_dumps import dump, write
from simulator.support.errors import SettingsError, TraceError
from traces.core.loaded import Options
from traces.linked_files import LinkedFiles
from traces.load import input_files, load
from traces.missing_ranks import sample_of

SAMPLE = "traces/samples/gpu-dp2-tp4"
RANKS = 16
NUMBER = random.Random(4).sample(range(RANKS), RANKS)
"""Ranks as a launcher might number them that knows nothing of nodes: groups without a pattern."""


def widened(ranks, copy):
    """A group of the sample in a job of twice as many replicas: in the first half, or the other."""
    if len(ranks) == 4:
        return [rank + 8 * copy for rank in ranks]
    return [rank + 8 * half for half in (0, 1) for rank in ranks]


def wider(document, copy, number):
    """A rank's file in the wider job, all ranks numbered otherwise."""
    document = json.loads(json.dumps(document))
    info = document["distributedInfo"]
    info |= {"rank": number[info["rank"] + 8 * copy], "world_size": RANKS}
    for group in info["pg_config"]:
        group["ranks"] = [number[rank] for rank in widened(group["ranks"], copy)]
        group["pg_size"] = len(group["ranks"])
    for event in document["traceEvents"]:
        args = event.get("args", {})
        if "Process Group Ranks" in args:
            recorded = args["Process Group Ranks"]
            ranks = widened(json.loads(recorded), copy)
            args["Process Group Ranks"] = str([number[rank] for rank in ranks])
            args["Group size"] = len(ranks)
            if len(ranks) != len(json.loads(recorded)):
                for field in ("In msg nelems", "Out msg nelems"):
                    args[field] = args[field] * 2 // 3  # what four send in the time of two
    return document


def write_wider(folder, number):
    """Write the wider job, and return the dumps of its flight recorders by rank."""
    dumps = {}
    for rank in range(8):
        with gzip.open(f"{SAMPLE}/rank{rank}.json.gz") as file:
            document = json.load(file)
        for copy in (0, 1):
            of_rank = wider(document, copy, number)
            info = of_rank["distributedInfo"]
            (folder / f"rank{info['rank']}.json").write_text(json.dumps(of_rank))
            groups = {
                (group["pg_name"], group["pg_desc"]): group["ranks"] for group in info["pg_config"]
            }
            dumps[info["rank"]] = dump(groups)
    return dumps


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Folders of all ranks, and of two with the dumps of all."""
    every, few = tmp_path_factory.mktemp("all"), tmp_path_factory.mktemp("few")
    dumps = write_wider(every, NUMBER)
    for rank in (NUMBER[0], NUMBER[13]):
        (few / f"rank{rank}.json").write_bytes((every / f"rank{rank}.json").read_bytes())
    write(few, dumps)
    return every, few


@pytest.fixture(scope="module")
def in_order(tmp_path_factory):
    folder = tmp_path_factory.mktemp("in-order")
    write_wider(folder, range(RANKS))
    return folder


@pytest.fixture(scope="module")
def in_order_read(in_order):
    return load(in_order)


def asked(folder, **settings):
    resources = ("compute", "scale_up.bandwidth", "scale_out.bandwidth")
    return utility(
        folder,
        "dgx-a100",
        resources=resources,
        nodes=4,
        step=3,
        collective_cost="trace",
        **settings,
    )


def same_answers(report, want):
    """Whether a step is as long to half a percent, and savings are within what is left open."""
    assert report.base.timeline.makespan == pytest.approx(want.base.timeline.makespan, rel=5e-3)
    of_all = {row.resource: row.utility_pct for row in want.points}
    for row in report.points:
        off = abs(row.utility_pct - of_all[row.resource])
        assert off <= max(0.1, min(row.interval_pct, 3.0))


def test_two_profiles_and_the_dumps_of_sixteen_ranks_answer_as_sixteen_profiles(jobs):
    every, few = jobs
    want, report = asked(every), asked(few, replicate=True)
    assert len(want.base.loaded.coverage.ranks) == RANKS
    assert len(report.base.loaded.coverage.ranks) == 2
    same_answers(report, want)


def test_a_choice_of_ranks_reads_their_files_alone_and_is_the_job_of_those(jobs):
    every, few = jobs
    chosen = tuple(sorted((NUMBER[0], NUMBER[13])))
    files = [file.name for file in input_files(every, chosen)]
    assert files == sorted(f"rank{rank}.json" for rank in chosen)
    folder = few  # the dumps list the groups that the files of two ranks do not
    for file in every.iterdir():
        if not (folder / file.name).exists():
            (folder / file.name).write_bytes(file.read_bytes())
    whole = load(folder, options=Options(ranks=chosen))
    apart = LinkedFiles(every, Options(ranks=(NUMBER[0],)), 1)
    assert whole.coverage.ranks == chosen
    assert whole.workload.job_ranks == RANKS
    assert set(whole.workload.rank.tolist()) == set(range(RANKS))
    assert "2 of 16 recorded ranks were read" in whole.coverage.notes[0]
    with pytest.raises(TraceError, match=r"make no pattern|of the groups that are listed fit"):
        apart.link("median")  # without the dumps nobody knows the groups of the others


def test_ranks_that_are_not_there_are_refused_before_any_file_is_read(jobs, monkeypatch):
    every, _ = jobs
    with pytest.raises(TraceError, match=r"no file of ranks 16-17; those of ranks 0-15 are here"):
        load(every, options=Options(ranks=(3, 16, 17)))
    with pytest.raises(TraceError, match=r"no file of rank 9; those of rank 2 are here"):
        load(every / "rank2.json", options=Options(ranks=(9,)))
    with pytest.raises(TraceError, match=r"--ranks are for kineto, .*; this is "):
        load("traces/samples/jax-cpu-4", options=Options(ranks=(0,)))
    with pytest.raises(SettingsError, match="'7-3' is not a list of ranks such as 3 or 0-3,8"):
        Settings(ranks="7-3")
    assert Settings(ranks="9, 0-2,3").ranks == "0-3,9"


def test_a_sample_is_advised_where_its_answers_are_those_of_all(in_order, in_order_read):
    loaded = in_order_read
    sample = sample_of(loaded.workload, loaded.measured_step)
    assert sample.ranks == (0,)
    assert 0 < sample.off < 0.01
    assert sample.sentence().startswith("each of the 16 ranks does the same as rank 0")
    same_answers(asked(in_order, ranks="0"), asked(in_order))


def test_no_sample_is_advised_where_one_rank_is_slower_or_does_something_else(in_order_read):
    step, workload = in_order_read.measured_step, in_order_read.workload
    slower = workload.duration.copy()
    slower[np.flatnonzero(workload.rank == 11)[:50]] += step / 50 / 50
    assert sample_of(replace(workload, duration=slower), step) is None
    name = workload.name.copy()
    name[np.flatnonzero(workload.rank == 13)[3]] += 1
    assert sample_of(replace(workload, name=name), step) is None
    assert sample_of(load(SAMPLE).workload, step) is None  # eight ranks are read in no time
