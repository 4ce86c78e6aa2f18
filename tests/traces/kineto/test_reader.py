"""The Kineto reader on events of real traces."""

import json
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.kineto_events import CUDA, DATA, names, read_rank
from traces.core.events import HostKind
from traces.kineto.schema import identifier


def test_reads_the_top_level_of_a_job() -> None:
    found = read_rank(CUDA)
    assert (found.rank, found.rank_source, found.world_size) == (0, "distributedInfo", 2)
    assert (found.backend, found.accelerator) == ("nccl", "NVIDIA A100-PG509-200")
    assert found.groups["0"].ranks == (0, 1)
    assert (found.groups["0"].label, found.groups["0"].size) == ("default_pg", 2)


def test_nanoseconds_survive_relative_to_the_first_start() -> None:
    found = read_rank(CUDA)
    written = json.loads(CUDA.read_text())
    used = [event for event in written["traceEvents"] if event["ph"] == "X"]
    used = [event for event in used if event["cat"] != "gpu_user_annotation"]
    exact = sorted(int(Decimal(str(event["ts"])) * 1000) for event in used)
    assert found.epoch == written["baseTimeNanoseconds"] + exact[0]
    starts = np.concatenate([found.host.start, found.device.start, [s.start for s in found.steps]])
    assert sorted(np.rint(starts * 1e9).astype(int) + exact[0]) == exact


def test_steps_are_the_hosts_annotations_and_no_events() -> None:
    found = read_rank(CUDA)
    assert [step.number for step in found.steps] == [4]
    assert found.steps[0].end - found.steps[0].start == pytest.approx(222442.191e-6, abs=1e-9)
    assert not any(name.startswith("ProfilerStep") for name in names(found, found.host.name))


def test_a_kernel_tells_its_communication_by_named_fields() -> None:
    found = read_rank(CUDA)
    records = [found.comms[index] for index in found.device.comm if index >= 0]
    assert {(record.collective, record.dtype) for record in records} == {
        ("broadcast", "Float"),
        ("allreduce", "Float"),
    }
    for record in records:
        assert record.group_ranks == (0, 1)
        assert (record.group_key, record.group_label, record.group_size) == ("0", "default_pg", 2)
        assert record.in_elements == record.out_elements


def test_every_host_event_of_a_call_has_its_own_record() -> None:
    found = read_rank(CUDA)
    told = found.host.comm[found.host.comm >= 0]
    assert len(told) == 7  # c10d::, record_param_comms and nccl: of two calls, and a wait
    assert len(set(told) | set(found.device.comm[found.device.comm >= 0])) == len(found.comms)
    wait = [found.comms[index] for index in told if found.comms[index].collective == "wait"]
    assert [(record.in_elements, record.group_size) for record in wait] == [(0, 1)]


def test_a_launch_and_its_kernel_share_their_correlation() -> None:
    found = read_rank(CUDA)
    launches = found.host.correlation[found.host.kind == HostKind.RUNTIME]
    kernels = found.device.correlation[~found.device.copy]
    assert set(kernels) <= set(launches)
    assert min(kernels) > 0


def test_what_is_not_used_is_counted() -> None:
    found = read_rank(CUDA)
    written = json.loads(CUDA.read_text())["traceEvents"]
    used = len(found.host) + len(found.device) + len(found.steps) + len(found.syncs)
    assert used + sum(found.unused.values()) == len(written)
    assert found.unused["gpu_user_annotation"] == 1
    assert found.unused["metadata"] == 1


def test_arguments_by_position_with_the_groups_size() -> None:
    found = read_rank(DATA / "kineto_positions_rank0.json")
    call, wait = (
        found.comms[comm]
        for comm, name in zip(found.host.comm, names(found, found.host.name), strict=True)
        if name == "record_param_comms"
    )
    assert (call.collective, call.in_elements, call.dtype) == ("", 4 * 2048 * 4096, "")
    assert (call.sequence, call.group_key, call.group_size) == (337, "93825114103440", 8)
    assert (wait.sequence, wait.group_key, wait.in_elements) == (337, "", None)
    kinds = dict(zip(names(found, found.host.name), found.host.kind, strict=True))
    assert kinds["cuLaunchKernel"] == HostKind.RUNTIME
    assert kinds["nccl:all_reduce"] == HostKind.ANNOTATION


def test_shapes_and_types_of_the_other_events_of_a_call() -> None:
    found = read_rank(DATA / "kineto_positions_rank0.json")
    by_word = {record.collective: record for record in found.comms}
    operator, annotation = by_word["allreduce_"], by_word["all_reduce"]
    assert operator.in_elements == operator.out_elements == 33_554_432
    assert (annotation.in_elements, annotation.out_elements) == (33_554_432, None)
    assert annotation.dtype == "c10::Half"


def test_arguments_by_position_without_values_tell_the_input() -> None:
    found = read_rank(DATA / "kineto_early_positions_rank0.json")
    params = [
        found.comms[comm]
        for comm, name in zip(found.host.comm, names(found, found.host.name), strict=True)
        if name == "record_param_comms"
    ]
    assert [(p.in_elements, p.dtype) for p in params[:3]] == [
        (None, ""),
        (65536 * 384, "float"),
        (3145728, "float"),
    ]
    assert all(p.sequence is None and p.group_size is None for p in params)


@pytest.mark.parametrize(
    ("word", "into", "out"),
    [
        ("_reduce_scatter_base_", 65536 * 384, 8192 * 384),
        ("alltoall_base_", 3145728, 2883584),
        ("_allgather_base_", 8192 * 64, 65536 * 64),
        ("allreduce_", None, None),  # a list of tensors: its shapes were not recorded then
    ],
)
def test_operators_tell_output_before_input(word: str, into: int | None, out: int | None) -> None:
    found = read_rank(DATA / "kineto_early_positions_rank0.json")
    record = next(record for record in found.comms if record.collective == word)
    assert (record.in_elements, record.out_elements) == (into, out)


def test_rocm_kernels_without_external_id_and_launches_by_hip() -> None:
    found = read_rank(DATA / "kineto_rocm_rank0.json")
    assert found.accelerator == "AMD Instinct MI300X"
    assert sorted(found.streams) == ["stream 0", "stream 4"]
    assert -1 in found.device.external
    assert any(name.startswith("hip") for name in names(found, found.host.name))
    assert found.unused["python_function"] == 1
    told = next(record for record in found.comms if record.collective == "allreduce")
    assert (told.in_elements, told.dtype, told.group_ranks) == (
        2873320,
        "BFloat16",
        tuple(range(8)),
    )


def test_the_old_schema_is_a_bare_list_with_text_for_numbers() -> None:
    found = read_rank(DATA / "kineto_old_schema.json", alone=True)
    assert found.rank_source == "assumed: the only file"
    assert found.streams == ("stream 7",)
    assert "thread 4093687616" in found.threads
    assert [step.number for step in found.steps] == [5]
    assert list(found.device.copy).count(False) == 1
    assert len(found.device) == 3
    kernels = found.device.correlation[~found.device.copy]
    assert set(kernels) <= set(found.host.correlation)
    assert 862 in found.device.external  # written "external id" there
    assert max(found.host.external) > 0


def test_what_waited_for_what() -> None:
    found = read_rank(DATA / "kineto_cuda_sync.json")
    assert [sync.kind for sync in found.syncs] == [
        "Event Sync",
        "Event Sync",
        "Stream Wait Event",
        "Event Sync",
        "Context Sync",
    ]
    blind, _, wait, _, context = found.syncs
    assert (blind.source_stream, blind.record_correlation, blind.correlation) == (None, None, 24)
    assert (wait.stream, wait.source_stream) == ("stream 24", "stream 20")
    assert (wait.correlation, wait.record_correlation) == (1389, 1385)
    assert context.stream is None
    assert {wait.stream, wait.source_stream} <= set(found.streams)


def test_a_job_without_devices() -> None:
    found = read_rank(DATA / "kineto_gloo_rank34.json")
    assert (found.rank, found.world_size, found.backend) == (34, 300, "gloo")
    assert len(found.device) == 0
    assert found.accelerator == ""
    assert [group.size for group in found.groups.values()] == [300, 300]
    by_word = {record.collective: record for record in found.comms}
    assert (by_word["all_reduce"].in_elements, by_word["all_reduce"].dtype) == (321271, "float")


@given(st.integers(-(2**70), 2**70))
def test_an_id_is_itself_and_a_negative_one_is_none_in_either_form(number: int) -> None:
    """As text or a number; an id of 64 bits without a sign is the negative one of the same bits."""
    for form in (number, str(number)):
        if number >= 2**64:
            with pytest.raises(ValueError, match="64 bits"):
                identifier(form, "id")
        else:
            assert identifier(form, "id") == (number if 0 <= number < 2**63 else -1)


@pytest.mark.parametrize("number", [-1, 0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_the_first_and_last_ids_are_told_from_none(number: int) -> None:
    assert identifier(number, "id") == (number if 0 <= number < 2**63 else -1)
