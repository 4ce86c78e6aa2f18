"""One change of one step has one step time and one interval, whichever command asks."""

from types import SimpleNamespace

import pytest

from experiments.evaluate.serving_plan import instances_of, load_of, read_serving_plan
from experiments.explore.serving import ServingSession
from experiments.explore.session import Session
from experiments.explore.state import State
from experiments.output.page import fragment
from experiments.points.compare import compare
from experiments.points.sweep import curve, sweep
from experiments.points.utility import utility
from experiments.points.what_if import what_ifs
from experiments.questions.generate import plan_on, write_plan
from experiments.questions.serving import serving
from experiments.questions.serving_points import serving_sweep
from experiments.scenario.change import is_of_links
from experiments.studies.declaration import declare
from experiments.studies.report import details_of
from experiments.studies.study import read_workloads, study
from helpers.places import ROOT, SAMPLES
from topologies import changed, load_cluster, resource_values
from topologies.cluster.catalog import cluster_text
from traces.generate.parallelism import Parallelism
from traces.generate.run import Training

GPU, GLOO, LIVE = SAMPLES / "gpu-dp2-tp4", SAMPLES / "gloo-ddp-4", ROOT / "traces/live"
FACTORS = {"scale_out.latency": 0.5, "compute": 0.5, "host": 0.5}
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
        "live": (LIVE / "zero3-2", LIVE / "net250.yaml", None),
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


def by_moved_slider(trace, cluster, nodes, resource, folder):
    base = utility(trace, cluster, resources=[resource], nodes=nodes).base
    answer = Session(trace, cluster, base).resting(State(factors=((resource, 2.0),)))
    return SimpleNamespace(step_s=answer.step_s, utility_pct=answer.gain_pct)


def by_study(trace, cluster, nodes, resource, folder):
    level = 2.0
    if "." in resource:
        value = resource_values(other_cluster(cluster, resource, nodes))[resource]
        unit = {"latency": " s", "bandwidth": " B/s"}.get(resource.rpartition(".")[2])
        level = f"{value!r}{unit}" if unit else value
    text = {
        "name": "one",
        "workloads": [{"plan" if trace.suffix == ".yaml" else "trace": str(trace)}],
        "cluster": str(cluster),
        "settings": {"nodes": nodes, "engine": "flow"},
        "space": {resource: [level]},
        "objectives": {"step_s": "min"},
        "confirm": "none",
    }
    declared = declare(text)
    bases, _ = read_workloads(declared)
    results = study(text, cache=False).explored.results
    (details,) = details_of(declared, bases, results, [0])
    (step,) = results.steps(0)
    assert details.timeline.makespan == step
    row = SimpleNamespace(step_s=step, utility_pct=details.saved_pct)
    if details.interval is not None:
        names = (*OPEN, "interval_pct")
        vars(row).update({name: getattr(details.interval, name) for name in names})
    return row


COMMANDS = {
    "every utility": by_all_utilities,
    "sweep": by_sweep,
    "curve": by_curve,
    "compare": by_compare,
    "compared file": by_compared_file,
    "what-if": by_what_if,
    "what-if of a value": by_value,
    "explore": by_explore,
    "moved slider": by_moved_slider,
    "study": by_study,
}
CHANGES = (
    ("gpu", "scale_out.bandwidth"),
    ("gpu", "scale_up.bandwidth"),
    ("gpu", "scale_out.latency"),
    ("gpu", "scale_up.size"),
    ("gpu", "compute"),
    ("gloo", "scale_out.bandwidth"),
    ("gloo", "host"),
    ("live", "scale_out.bandwidth"),
    ("plan", "scale_up.bandwidth"),
)
USUAL = {CHANGES[0], CHANGES[-1]}
"""Changes that every command is asked of in ``make test``; of the others these are."""
FEW = ("every utility", "what-if", "moved slider")
OF_CLUSTERS = ("compare", "compared file", "what-if of a value")
CASES = [
    pytest.param(
        *(command, trace, resource),
        marks=() if (trace, resource) in USUAL or command in FEW else pytest.mark.slow,
    )
    for trace, resource in CHANGES
    for command in COMMANDS
    if ("." in resource or command not in OF_CLUSTERS)
    and (command, resource) != ("curve", "scale_up.size")  # a curve is of numbers
]
SAME = ("step_s", "utility_pct", "interval_pct")
OPEN = ("scatter_pct", "prior_pct", "prediction_pct", "generated_pct", "kernels_pct")


@pytest.fixture(scope="module")
def by_the_first():
    return {}


@pytest.mark.parametrize(("command", "trace", "resource"), CASES)
def test_one_change_has_one_interval(command, trace, resource, plan, tmp_path, by_the_first):
    question = (*asked(trace, plan), resource, tmp_path)
    if (trace, resource) not in by_the_first:
        by_the_first[trace, resource] = by_utility(*question)
    first, row = by_the_first[trace, resource], COMMANDS[command](*question)
    assert None not in [getattr(first, name) for name in SAME]
    answered = SAME + (() if command == "explore" else OPEN)
    if command == "moved slider":  # the page shows no interval of what is set
        answered = SAME[:2]
    if (command, trace) == ("study", "plan"):  # there is no recorded step that it saves of
        answered = SAME[:1]
    expected = {name: getattr(first, name) for name in answered}
    expected["step_s"] = pytest.approx(first.step_s, rel=1e-12)  # times are added in another order
    if "utility_pct" in expected:
        expected["utility_pct"] = pytest.approx(first.utility_pct, abs=1e-9)
    assert {name: getattr(row, name) for name in answered} == expected


DEPLOYMENTS = {
    "one instance": "model: llama-3.1-8b, rate: 20/s, tp: 2",
    "pools": "model: llama-3.1-8b, rate: 20/s, decode: 1 x tp 1",
    "experts": "model: mixtral-8x7b, concurrency: 4, tp: 2",
}


@pytest.mark.parametrize(
    ("deployed", "resource"),
    [
        pytest.param(
            *(name, resource),
            marks=[pytest.mark.slow] if name != "one instance" and resource != "compute" else [],
        )
        for name in DEPLOYMENTS
        if name != "pools"
        for resource in ("compute", "host", "scale_up.bandwidth")
    ]
    + [
        pytest.param("pools", resource, marks=pytest.mark.slow)
        for resource in ("compute", "host", "scale_up.bandwidth")
    ],
)
def test_one_change_of_a_deployment_has_the_same_latencies(deployed, resource, tmp_path):
    file, cluster = tmp_path / "chat.yaml", "hgx-h100"
    fields = f"{DEPLOYMENTS[deployed]}, input: 256, output: 16, count: 40, seeds: 1"
    file.write_text(f"deployment: {{{fields}}}")
    plan = read_serving_plan(file)
    deployment, load = instances_of(plan, cluster), load_of(plan)
    report = serving(deployment, load, seeds=plan.seeds, resources=[resource])
    (saved,) = report.utilities
    gains = {"ttft": saved.ttft_p99_pct, "tpot": saved.tpot_p99_pct}
    expected = pytest.approx(
        [report.metric(name).p99 * (1 - gain[0] / 100) for name, gain in gains.items()], rel=1e-12
    )
    (point,) = serving_sweep(deployment, load, resource, ["2"], seeds=plan.seeds).points
    assert [point.ttft_p99, point.tpot_p99] == expected
    session = ServingSession(file, cluster)
    for answers in (session.moving, session.resting):
        answer = answers(session.parse(f"{resource}=2"))
        assert [answer.ttft_p99_s, answer.tpot_p99_s] == expected
    content = {
        "name": "one",
        "workloads": [{"serving": str(file)}],
        "cluster": cluster,
        "space": {resource: {"factors": [2]} if "." in resource else [2]},
        "objectives": {"ttft_p99": "min", "tpot_p99": "min"},
    }
    figures = study(content, cache=False).explored.results.row(0).figures
    assert [figures["ttft_p99"], figures["tpot_p99"]] == expected


def utilities_in(html):
    """The card of utilities on a page."""
    _, title, card = html.partition("What doubling buys")
    assert title
    return card.partition("</section>")[0]


def test_the_page_of_a_deployment_at_rest_has_the_intervals_of_utility(tmp_path):
    file = tmp_path / "chat.yaml"
    file.write_text("deployment: {model: llama-3.1-8b, rate: 20/s, count: 40, seeds: 3}")
    plan = read_serving_plan(file)
    report = serving(instances_of(plan, "hgx-h100"), load_of(plan), seeds=plan.seeds)
    assert None not in [row.tpot_p99_pct[1] for row in report.utilities]
    session = ServingSession(file, "hgx-h100")
    answer = session.resting(session.parse(""))
    of_command, of_page = map(utilities_in, (fragment(report.document())[0], answer.html))
    assert "±" in of_command
    assert of_page == of_command
