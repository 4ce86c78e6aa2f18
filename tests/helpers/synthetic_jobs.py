"""Steps to generate: plans for one accelerator, given or drawn at random."""

from hypothesis import strategies as st

from traces.generate.generate import expand
from traces.generate.kernel_times import KernelRates
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism
from traces.generate.plan import GenerationPlan
from traces.generate.run import Training
from traces.generate.stage import stage_programs

CHIP = KernelRates(peak=989e12, memory_bandwidth=3.35e12)


def planned(model, parallelism, run, accelerator=CHIP, **more):
    """Plan a step; ``more`` are launch and replicas."""
    return GenerationPlan(
        model=model, parallelism=parallelism, run=run, accelerator=accelerator, **more
    )


def generated(*planned_by, one_each=False, **more):
    """Generate the workload of such a plan, of all ranks of a replica or of one of each stage."""
    plan = planned(*planned_by, **more)
    return expand(stage_programs(plan), plan, one_each=one_each)


@st.composite
def plans(draw):
    """A small job of any kind, and a model for it."""
    name = draw(st.sampled_from(["qwen3-4b", "mixtral-8x7b", "deepseek-v3-16b"]))
    tp, pp, cp = (draw(st.sampled_from([1, 2])) for _ in range(3))
    ep = 1 if name == "qwen3-4b" else draw(st.sampled_from([1, 2]))
    virtual = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    schedule = "interleaved" if virtual > 1 else draw(st.sampled_from(["gpipe", "1f1b", "zb-h1"]))
    p = Parallelism(
        tp=tp,
        cp=cp,
        ep=ep,
        dp=ep * draw(st.sampled_from([1, 2])),
        pp=pp,
        virtual=virtual,
        sequence_parallel=tp > 1 and (ep > 1 or draw(st.booleans())),
        zero=draw(st.integers(0, 3)),
    )
    recompute = draw(st.sampled_from(["none", "selective", "full"]))
    run = Training(
        micro_batch=1, global_batch=2 * p.dp, sequence=512, recompute=recompute, schedule=schedule
    )
    return planned(load_model(name), p, run)
