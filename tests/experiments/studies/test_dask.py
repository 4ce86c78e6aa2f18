"""Studies on a Dask cluster: the same bytes, whatever becomes of its workers and connections."""

import gc
import os
import random
import signal
import socket
import threading
from contextlib import contextmanager

import pytest

from experiments.studies import dask_cluster
from experiments.studies.declaration import declare
from experiments.studies.placed import AHEAD, Chunk
from experiments.studies.study import executor_of, read_workloads, study
from helpers.severed import severed
from helpers.studies import TRACE, links
from simulator.support.errors import StudyError

distributed = pytest.importorskip("distributed", reason="needs dask[distributed]")
FLOW = {"settings": {"engine": "flow"}, "objectives": {"step_s": "min"}}
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that are cut


@pytest.fixture(autouse=True, scope="module")
def swept():
    """Close what Dask leaves open of cut connections, here, where its warning is not an error."""
    yield
    gc.collect()
    for one in gc.get_objects():
        if isinstance(one, socket.socket) and one.family == socket.AF_INET:
            one.close()


@contextmanager
def cluster(*, processes=False, workers=2):
    """A scheduler and workers on 127.0.0.1; threads of this process are there at once."""
    with distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=processes,
        protocol="tcp://",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=60,
    ) as made:
        yield made


def at_points(progress):
    """Call this with each count of points that are done."""
    return lambda what: (lambda count, _: progress(count)) if what == "links" else None


def port_of(made):
    return int(made.scheduler_address.rpartition(":")[2])


def read(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "results").iterdir())}


def test_a_connection_that_is_cut_costs_nothing(tmp_path):
    """Once while answers are computed, once while they come."""
    plain, cut = tmp_path / "plain", tmp_path / "cut"
    study(links(steps=3, **FLOW), plain, cache=False)
    with cluster() as made, severed(port_of(made)) as between:
        done = []

        def progress(count):
            done.append(count)
            if count in (1, 4):
                between.cut()

        address, watch = f"tcp://127.0.0.1:{between.port}", at_points(progress)
        report = study(links(steps=3, **FLOW), cut, dask=address, cache=False, watch=watch)
        assert between.cuts == 2
    assert report.explored.counts.computed == 9
    assert done == list(range(1, 10))
    assert read(cut) == read(plain)


def test_a_point_that_cannot_be_is_that_point_s_fault():
    fields = links(
        space={"scale_up.topology": ["switch", "ring", "torus:3x5"]}, objectives={"step_s": "min"}
    )
    here = study(fields, cache=False).explored.results
    with cluster(workers=1) as made:
        there = study(fields, cache=False, dask=made.scheduler_address).explored.results
    assert there.refused == here.refused
    assert [bool(why) for why in there.refused] == [False, False, True]


def test_inputs_are_shipped_once_to_each_worker(monkeypatch):
    made_in = []
    begin = dask_cluster.Answerer.__post_init__

    def counted(answerer):
        made_in.append(threading.current_thread() is threading.main_thread())
        begin(answerer)

    monkeypatch.setattr(dask_cluster.Answerer, "__post_init__", counted)
    with cluster() as made:
        study(links(steps=3, **FLOW), dask=made.scheduler_address, cache=False)
    assert made_in.count(False) == 2


def test_what_is_wrong_with_the_program_ends_the_study(monkeypatch):
    def broken(*_):
        raise OSError("of the worker's own")

    monkeypatch.setattr(dask_cluster.Answerer, "answers", broken)
    with cluster(workers=1) as made, pytest.raises(OSError, match="of the worker's own"):
        study(links(steps=2, **FLOW), dask=made.scheduler_address, cache=False)


def test_no_more_is_handed_out_than_keeps_workers_busy(monkeypatch):
    declared = declare(links(steps=2, **FLOW))
    bases, _ = read_workloads(declared)
    taken = []

    def chunks():
        for number in range(50):
            taken.append(number)
            yield Chunk(number, None, (), "flow")

    monkeypatch.setattr(dask_cluster.Answerer, "answers", lambda self, chunk: [chunk.number])
    with cluster() as made, executor_of(1, made.scheduler_address, lambda _: None)(bases) as run:
        answered = []
        for number, answers in run(chunks()):
            assert answers == [number]
            answered.append(number)
            assert len(taken) - len(answered) < 2 * AHEAD + 1
    assert sorted(answered) == list(range(50))


def test_a_worker_of_other_code_is_refused_in_one_line(monkeypatch):
    """The one that asks is the other one here: workers are threads of this process."""
    own = dask_cluster.code_of_this()
    asking = threading.current_thread()

    def code():
        return {**own, "NumPy": "0.1"} if threading.current_thread() is asking else own

    monkeypatch.setattr(dask_cluster, "code_of_this", code)
    with cluster(workers=1) as made:
        with pytest.raises(StudyError, match=rf"has NumPy {own['NumPy']}, not 0\.1$") as error:
            study(links(steps=2, **FLOW), dask=made.scheduler_address, cache=False)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("10.0.0.1:8786", "give tcp://HOST:PORT of a scheduler or local:2"),
        ("local:0", "give tcp://HOST:PORT of a scheduler or local:2"),
        ("local:99999", "runs at most"),
        (f"local:{'9' * 5000}", "give tcp://HOST:PORT of a scheduler or local:2"),
        ("tcp://", "give tcp://HOST:PORT of a scheduler or local:2"),
    ],
)
def test_addresses_that_are_none(address, said):
    with pytest.raises(StudyError, match=said):
        study(links(steps=2, **FLOW), dask=address, cache=False)


@pytest.mark.parametrize("listens", [False, True])
def test_an_address_without_a_scheduler(listens, monkeypatch):
    """Nobody is there, or somebody who takes connections and says nothing."""
    monkeypatch.setattr(dask_cluster, "_CONNECT", 0.5)
    monkeypatch.setattr(dask_cluster, "_GRACE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not listens:
            server.close()
        with pytest.raises(StudyError, match=r"no scheduler answered within 0\.5 s"):
            study(links(steps=2, **FLOW), dask=f"tcp://127.0.0.1:{port}", cache=False)


def test_workers_and_a_cluster_are_one_or_the_other():
    with pytest.raises(StudyError, match="leave out --workers with --dask"):
        study(links(steps=2), workers=2, dask="local:2")


def test_a_scheduler_that_is_gone_for_good_is_one_line_and_what_was_done_is_kept(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(dask_cluster, "_CONNECT", 1.0)
    monkeypatch.setattr(dask_cluster, "_RECONNECT", 0.5)
    with cluster(workers=1) as made, severed(port_of(made)) as between:
        address = f"tcp://127.0.0.1:{between.port}"
        watch = at_points(lambda _: between.close())
        with pytest.raises(StudyError, match=r"no scheduler answered within 0\.5 s"):
            study(links(steps=3, **FLOW), tmp_path, dask=address, cache=False, watch=watch)
    again = study(links(steps=3, **FLOW), tmp_path, cache=False)
    assert 1 <= again.explored.counts.stored < 9


def killing(made, moments, stop):
    """Kill a worker's process at each of these moments (s) after the one before."""
    rng = random.Random(3)
    for moment in moments:
        if stop.wait(moment):
            return
        nannies = list(made.workers.values())
        process = rng.choice(nannies).process
        if process is not None and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_workers_killed_at_random_moments_and_a_cut_change_no_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(dask_cluster, "_FETCH", 1.0)
    fields = links(steps=12, workloads=[{"trace": TRACE}], **FLOW)
    plain, torn = tmp_path / "plain", tmp_path / "torn"
    study(fields, plain, cache=False)
    rng, stop = random.Random(7), threading.Event()
    with cluster(processes=True) as made, severed(port_of(made)) as between:
        moments = [rng.uniform(0.2, 2.0) for _ in range(10)]
        killer = threading.Thread(target=killing, args=(made, moments, stop))
        cut = []

        def progress(count):
            if count == 1:
                killer.start()
            if count == 40:
                between.cut()
                cut.append(count)

        address, watch = f"tcp://127.0.0.1:{between.port}", at_points(progress)
        report = study(fields, torn, dask=address, cache=False, watch=watch)
        stop.set()
        killer.join()
    assert cut
    assert report.explored.counts.computed == 144
    assert read(torn) == read(plain)
