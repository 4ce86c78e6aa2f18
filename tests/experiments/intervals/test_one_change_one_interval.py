"""One change of one step has one interval, to the last bit, whichever command asks."""

import pytest

from experiments.explore.session import Session
from experiments.explore.state import State
from experiments.points.compare import compare
from experiments.points.sweep import curve, sweep
from experiments.points.utility import utility
from experiments.points.what_if import what_ifs
from experiments.questions.generate import plan_on, write_plan
from experiments.scenario.change import is_of_links
from experiments.studies.declaration import declare
from experiments.studies.report import details_of
from experiments.studies.study import read_workloads, study
from helpers.places import SAMPLES
from topologies import changed, load_cluster, resource_values
from topologies.cluster.catalog import cluster_text
from traces.generate.parallelism import Parallelism
from traces.generate.run import Training

GPU, GLOO = SAMPLES / "gpu-dp2-tp4", SAMPLES / "gloo-ddp-4"
FACTORS = {"scale_out.latency": 0.5}
"""By what a value multiplies where twice as good is not twice as much."""


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    cluster = load_cluster("hgx-h100")
    run = Training(micro_batch=1, global_batch=2, sequence=512)
    made = plan_on(cluster, model="llama-3.2-1b", parallelism=Parallelism(dp=2), run=run)
    write_plan(made, path)
    return path


def asked(trace, plan):
    """The trace, its cluster and its nodes."""
    return {
        "gpu": (GPU, "dgx-a100", 2),
        "gloo": (GLOO, "dgx-a100", 4),
        "plan": (plan, "hgx-h100", None),
    }[trace]


def other_cluster(name, resource, nodes):
    """The cluster with the resource twice as good, under another name."""
    cluster = load_cluster(name)
    made = changed(cluster, resource, FACTORS.get(resource, 2.0))
    assert resource_values(made) != resource_values(cluster)
    return made.model_copy(update={"name": "another", "description": "written by hand"})


def by_utility(trace, cluster, nodes, resource, folder):
    (row,) = utility(trace, cluster, resources=[resource], nodes=nodes).utilities
    return row


def by_all_utilities(trace, cluster, nodes, resource, folder):
    rows = utility(trace, cluster, nodes=nodes).utilities
    return next(row for row in rows if row.resource == resource)


def by_sweep(trace, cluster, nodes, resource, folder):
    points = sweep(trace, cluster, resource, factors=[0.5, 2.0, 3.0], nodes=nodes).points
    return next(point for point in points if point.factor == 2.0)


def by_curve(trace, cluster, nodes, resource, folder):
    points = curve(trace, cluster, resource, reach=(1.0, 2.0), nodes=nodes).points
    return next(point for point in points if point.factor == 2.0)


def by_compare(trace, cluster, nodes, resource, folder):
    other = other_cluster(cluster, resource, nodes)
    return compare(trace, [cluster, "l40s-pcie-8", other], nodes=nodes).points[2]


def by_compared_file(trace, cluster, nodes, resource, folder):
    file = folder / "other.yaml"
    file.write_text(cluster_text(other_cluster(cluster, resource, nodes)))
    return compare(trace, [cluster, file], nodes=nodes).points[1]


def by_what_if(trace, cluster, nodes, resource, folder):
    change = f"{resource} x{FACTORS.get(resource, 2)}"
    return what_ifs(trace, cluster, [f"{resource} x3", change], nodes=nodes).points[1]


def by_value(trace, cluster, nodes, resource, folder):
    value = resource_values(other_cluster(cluster, resource, nodes))[resource]
    unit = "s" if resource.endswith("latency") else "B/s"
    change = f"{resource} = {value!r} {unit}"
    if not is_of_links(resource):
        change = f"{resource} = {value}"
    return what_ifs(trace, cluster, change, nodes=nodes).points[0]


def by_explore(trace, cluster, nodes, resource, folder):
    base = utility(trace, cluster, resources=[resource], nodes=nodes).base
    sliders = Session(trace, cluster, base).resting(State()).sliders
    return next(one for one in sliders if one.resource == resource)


def by_study(trace, cluster, nodes, resource, folder):
    value = resource_values(other_cluster(cluster, resource, nodes))[resource]
    unit = {"latency": " s", "bandwidth": " B/s"}.get(resource.rpartition(".")[2])
    level = f"{value!r}{unit}" if unit else value
    text = {
        "name": "one",
        "workloads": [{"trace": str(trace)}],
        "cluster": cluster,
        "settings": {"nodes": nodes, "engine": "flow"},
        "space": {resource: [level]},
        "objectives": {"step_s": "min"},
        "confirm": "none",
    }
    declared = declare(text)
    bases, _ = read_workloads(declared)
    (details,) = details_of(declared, bases, study(text).explored.results, [0])
    return details.interval


COMMANDS = {
    "every utility": by_all_utilities,
    "sweep": by_sweep,
    "curve": by_curve,
    "compare": by_compare,
    "compared file": by_compared_file,
    "what-if": by_what_if,
    "what-if of a value": by_value,
    "explore": by_explore,
    "study": by_study,
}
CHANGES = (
    ("gpu", "scale_out.bandwidth"),
    ("gpu", "scale_up.bandwidth"),
    ("gpu", "scale_out.latency"),
    ("gpu", "scale_up.size"),
    ("gloo", "scale_out.bandwidth"),
    ("plan", "scale_up.bandwidth"),
)
USUAL = {CHANGES[0], CHANGES[-1]}
"""Changes that every command is asked of in ``make test``; of the others these are."""
FEW = ("every utility", "compared file", "what-if of a value")
CASES = [
    pytest.param(
        command, *change, marks=() if change in USUAL or command in FEW else pytest.mark.slow
    )
    for change in CHANGES
    for command in COMMANDS
]
OPEN = ("scatter_pct", "prior_pct", "prediction_pct", "generated_pct", "kernels_pct")


@pytest.fixture(scope="module")
def by_the_first():
    return {}


@pytest.mark.parametrize(("command", "trace", "resource"), CASES)
def test_one_change_has_one_interval(command, trace, resource, plan, tmp_path, by_the_first):
    if (command, resource) == ("curve", "scale_up.size"):
        pytest.skip("a curve is of numbers of links")
    if (command, trace) == ("study", "plan"):
        pytest.skip("a plan's points have no recorded step that they save of")
    question = (*asked(trace, plan), resource, tmp_path)
    if (trace, resource) not in by_the_first:
        by_the_first[trace, resource] = by_utility(*question)
    first, row = by_the_first[trace, resource], COMMANDS[command](*question)
    assert first.interval_pct is not None
    assert row.interval_pct == first.interval_pct
    if command != "explore":
        assert {name: getattr(row, name) for name in OPEN} == {
            name: getattr(first, name) for name in OPEN
        }
