"""Steps generated with kernels of one's own: they count as they are, beside a framework only."""

import pytest

from experiments.questions.generate import generate, plan_on
from simulator.support.errors import TraceError, WorkloadError
from topologies import load_cluster
from traces.generate.kernel_times import OwnKernels
from traces.generate.kernel_times.own import read_own
from traces.generate.kernel_times.shapes import Gemm
from traces.generate.parallelism import Parallelism
from traces.generate.program import times_of
from traces.generate.run import Training


def planned(kernels=None, framework="megatron"):
    step = Training(micro_batch=1, global_batch=1, sequence=2048, framework=framework)
    parallelism = Parallelism(tp=8)
    cluster = load_cluster("hgx-h100")
    return plan_on(
        cluster, model="llama-3.1-8b", parallelism=parallelism, run=step, kernels=kernels
    )


def test_a_machine_whose_products_take_twice_as_long_has_longer_steps(tmp_path):
    tabled = times_of(planned().accelerator)
    shapes = [Gemm(2048, n, 4096) for n in (512, 1024, 2048, 4096, 8192)]
    slow = OwnKernels("here", tuple((one, 2 * tabled.time(one).seconds) for one in shapes))
    base, other = (generate(planned(one), load_cluster("hgx-h100")) for one in (None, slow))
    assert other.base.timeline.makespan > base.base.timeline.makespan
    assert any("take those times" in text for text in planned(slow).assumptions)
    file = tmp_path / "own.csv"
    rows = [f"gemm,m=2048 n={one.n} k=4096,{2 * tabled.time(one).seconds}" for one in shapes]
    file.write_text("\n".join(["kernel,shape,seconds", *rows]))
    again = generate(planned(file), load_cluster("hgx-h100"))
    assert again.base.timeline.makespan == pytest.approx(other.base.timeline.makespan)


def test_without_a_framework_they_mean_nothing_and_that_is_said():
    own = OwnKernels("here", ((Gemm(1, 1, 1), 1e-6),))
    with pytest.raises(WorkloadError, match="framework none is a roofline: name another"):
        planned(own, framework="none")


def test_a_kernel_of_two_times_far_apart_is_refused(tmp_path):
    file = tmp_path / "own.csv"
    for last, said in (("0.002", False), ("0.005", True)):
        shape = "gemm,m=4096 n=4096 k=4096 dtype=bf16"
        file.write_text(f"kernel,shape,seconds\n{shape},0.001\n{shape},{last}\n")
        if not said:
            read_own(file)
            continue
        with pytest.raises(TraceError, match=r"line 3: the same kernel takes 0\.005 s"):
            read_own(file)
