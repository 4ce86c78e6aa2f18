"""Chosen bad inputs: what once failed, and what a stranger would try; a module for each subject."""

from collections.abc import Iterator

from benchmarks.fuzz.cases import (
    archives,
    combined,
    devices,
    dumps,
    listed_inputs,
    more_networks,
    more_tables,
    more_traces,
    more_words,
    networks,
    recordings,
    schedules,
    studies,
    tables,
    traces,
    whole,
    words,
    xml_files,
)
from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import seeds


def chosen() -> Iterator[Case]:
    """Yield all of them."""
    for seed in seeds():
        yield from whole.whole(seed)
        yield from whole.damaged(seed)
    for cases in (
        archives.archives,
        xml_files.xml_files,
        traces.traces,
        networks.networks,
        tables.logs,
        schedules.schedules,
        studies.studies,
        words.words,
        more_traces.more_traces,
        more_tables.more_tables,
        more_networks.more_networks,
        studies.more_studies,
        more_words.more_words,
        listed_inputs.listed_inputs,
        dumps.dumps,
        recordings.recordings,
        combined.combined,
        devices.devices,
    ):
        yield from cases()
