"""Profiles of two ranks and dumps of all answer as profiles of all."""

import gzip
import json
import re
from collections import Counter

import pytest

from helpers.flight_dumps import dump, write
from traces.core.loaded import Options
from traces.load import load

SAMPLE = "traces/samples/gpu-dp2-tp4"
NUMBER = {0: 0, 1: 3, 2: 1, 3: 6, 4: 2, 5: 7, 6: 5, 7: 4}
"""Ranks of the sample as another launcher might number them: groups without a pattern."""


def renumbered(document, rank):
    """A rank's file with all ranks numbered otherwise."""
    text = re.sub(
        r"\[(\d+(?:, \d+)+)\]",
        lambda match: str([NUMBER[int(number)] for number in match[1].split(", ")]),
        json.dumps(document),
    )
    document = json.loads(text)
    document["distributedInfo"]["rank"] = NUMBER[rank]
    return document


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Folders of all ranks and of two, and the dumps of all."""
    every, few = tmp_path_factory.mktemp("all"), tmp_path_factory.mktemp("few")
    dumps = {}
    for rank in range(8):
        with gzip.open(f"{SAMPLE}/rank{rank}.json.gz") as file:
            document = renumbered(json.load(file), rank)
        text = json.dumps(document)
        for folder in (every, few)[: 1 + (rank in (0, 4))]:
            (folder / f"rank{NUMBER[rank]}.json").write_text(text)
        groups = document["distributedInfo"]["pg_config"]
        dumps[NUMBER[rank]] = dump(
            {(group["pg_name"], group["pg_desc"]): group["ranks"] for group in groups}
        )
    return every, few, dumps


def shape(workload):
    """What the ranks of a job do: their ops, and the calls of every group."""
    calls = [workload.call_view(index) for index in range(len(workload.calls))]
    return (
        Counter(workload.rank.tolist()),
        Counter((call.kind, frozenset(call.group.ranks), call.size) for call in calls),
    )


def test_two_ranks_and_the_dumps_of_all_make_the_whole_job(jobs):
    every, few, dumps = jobs
    options = Options(replicate=True)
    want = shape(load(every).workload)
    assert shape(load(few, options=options).workload) != want  # groups go by a pattern that is none
    write(few, dumps)
    joined = load(few, options=options)
    assert shape(joined.workload) == want
    assert any("dumps of 8 ranks list" in note for note in joined.coverage.notes)
    assert not joined.coverage.skipped


def test_a_dump_of_another_job_does_no_harm_and_is_named(jobs, tmp_path):
    _, few, _ = jobs
    for file in few.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write(tmp_path, {0: dump({("0", "tp"): (0, 1)})})
    skipped = load(tmp_path, options=Options(replicate=True)).coverage.skipped
    assert [reason for _, reason in skipped if "of another job" in reason]
