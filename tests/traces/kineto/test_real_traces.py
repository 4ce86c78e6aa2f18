"""The Kineto reader on whole real traces, where they are at hand."""

from collections import Counter

import numpy as np
import pytest

from helpers.kineto_events import read_rank
from helpers.places import SHARED
from traces.core.events import RankTrace
from traces.kineto.directory import read_job
from traces.pytorch_et.join import with_execution_traces

TRACES = SHARED / "traces"
MEGATRON = TRACES / "megatron-tp8-a100"

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not at hand")


def kineto(name: str) -> RankTrace:
    return read_rank(TRACES / "kineto" / f"{name}.json.gz", alone=True)


@pytest.mark.parametrize(
    ("name", "rank", "world", "steps", "kernels"),
    [
        ("a100_2gpu_resnet_ddp_rank0", 0, 2, 3, 2700),
        ("mi300x_8gpu_resnet_ddp_rank0", 0, 8, 3, 2995),
        ("a100_16gpu_dlrm_like_rank0", 0, 16, 5, 6080),
        ("v100_2gpu_many_allreduce_rank1", 1, 2, 5, 19370),
        ("sampled_128gpu_rank0", 0, 128, 2, 1154),
        ("sampled_128gpu_rank1", 1, 128, 2, 1104),
        ("cuda_event_sync", 0, None, 1, 4),
        ("cuda_event_sync_multi_stream", 0, None, 0, 3),
        ("a100_1gpu_alexnet", 0, None, 0, 79),
        ("mi250_1gpu_minitoy", 0, None, 2, 14),
        ("v100_1gpu_resnet50_old_schema", 0, None, 6, 9538),
        ("cpu_gloo_300_rank34", 34, 300, 5, 0),
    ],
)
def test_every_trace_is_read(
    name: str, rank: int, world: int | None, steps: int, kernels: int
) -> None:
    found = kineto(name)
    assert (found.rank, found.world_size, len(found.steps)) == (rank, world, steps)
    assert np.count_nonzero(~found.device.copy) == kernels
    for events in (found.host, found.device):
        assert np.all(np.diff(events.start) >= 0)
        assert np.all(events.end >= events.start)
    assert min(found.host.start[0], *(step.start for step in found.steps), np.inf) >= 0


def test_the_kernels_of_the_resnet_tell_their_collectives() -> None:
    found = kineto("a100_2gpu_resnet_ddp_rank0")
    told = Counter(found.comms[index].collective for index in found.device.comm if index >= 0)
    assert told == {"allreduce": 15, "broadcast": 6}


def test_the_megatron_job_is_eight_ranks_of_one_step() -> None:
    job = with_execution_traces(read_job(MEGATRON))
    assert [trace.rank for trace in job.ranks] == list(range(8))
    assert (job.job_ranks, job.skipped) == (8, ())
    (note,) = job.notes
    assert note.startswith("8 execution traces used: 5520 of 5520 kernels")
    for trace in job.ranks:
        assert [step.number for step in trace.steps] == [3]
        params = [comm for comm in trace.comms if comm.collective == ""]
        assert len(params) == 170
        sizes = Counter(comm.in_elements for comm in params)
        assert (sizes[33_554_432], sizes[None]) == (81, 85)
        assert {comm.group_size for comm in params if comm.in_elements == 33_554_432} == {8}
