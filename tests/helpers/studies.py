"""Small studies for tests: a recorded sample, or a plan, over a few dimensions."""

import yaml

from helpers.places import SAMPLES

TRACE = str(SAMPLES / "gpu-dp2-tp4")
PLAN = """\
model: llama-3.1-8b
parallelism: {tp: 2, dp: 2}
training: {micro_batch: 1, global_batch: 8, sequence: 1024}
accelerator: {peak: 989 TFLOP/s, memory_bandwidth: 3.35 TB/s}
"""


def links(steps=6, **fields):
    """A study of the sample's links: bandwidth and latency inside a node; no engine confirms."""
    return {
        "name": "links",
        "workloads": [{"trace": TRACE}],
        "cluster": "dgx-a100",
        "space": {
            "scale_up.bandwidth": {"log": ["75 GB/s", "2.4 TB/s"], "steps": steps},
            "scale_up.latency": {"log": ["0.2 us", "4 us"], "steps": steps},
        },
        "objectives": {"step_s": "min", "scale_up.bandwidth": "min"},
        "confirm": "none",
        **fields,
    }


def cells(folder, models, clusters, **space):
    """The file of an atlas of small steps on 8 GPUs, in ``folder`` with its plan."""
    (folder / "plan.yaml").write_text(PLAN.replace("{tp: 2, dp: 2}", "{tp: 1}"))
    fields = {
        "name": "few",
        "workloads": [{"plan": "plan.yaml"}],
        "space": {
            "plan.model": [*models],
            "cluster": [*clusters],
            "plan.gpus": [8],
            "plan.tp": [1, 8],
            **space,
        },
        "confirm": "none",
    }
    path = folder / "few.yaml"
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return path


def fields(space, search, **others):
    """A study whose points are not simulated: tests answer them by a formula."""
    return {
        "name": "formula",
        "workloads": [{"trace": TRACE}],
        "cluster": "dgx-a100",
        "space": space,
        "search": search,
        **others,
    }
