"""Ways to search a space: on studies whose answers are known otherwise."""

from importlib.resources import files

import numpy as np
import pytest
import yaml

from experiments.studies.declaration import declare
from experiments.studies.figures import hypervolume
from experiments.studies.results import Row, values_at
from experiments.studies.search import METHODS
from experiments.studies.study import study
from helpers.studies import fields
from helpers.work import python_calls
from simulator.support.errors import StudyError

SAMPLES = files("experiments.studies") / "samples"


def asked(content, formula):
    """Feed a method with a formula of a point's values; return points, rows and what it found."""
    declared = declare(content)
    method = METHODS[declared.file.search.method](declared)
    rows = {}
    try:
        batch = next(method)
        while True:
            told = []
            for at in batch:
                assert at not in rows  # no point is asked for twice
                figures = formula(
                    **{
                        k.replace(".", "_"): v
                        for k, v in values_at(declared.dimensions, at).items()
                    }
                )
                refused = figures.pop("refused", "")
                rows[at] = Row(at, (), figures, refused, figures.pop("excess", 0.0))
                told.append(rows[at])
            batch = method.send(told)
    except StopIteration as end:
        return declared, rows, end.value


CUBE = {"compute": {"linear": [1, 2], "steps": 7}, "host": [1, 2, 3], "cluster": ["dgx-a100", "x"]}


def test_a_grid_has_every_combination_once_the_last_fastest():
    declared, rows, _ = asked(fields(CUBE, {"method": "grid"}), lambda **_: {"step_s": 1.0})
    points = [tuple(values_at(declared.dimensions, at).values()) for at in rows]
    assert len(points) == len(set(points)) == 42
    assert points[0] == (1.0, 1.0, "dgx-a100")
    assert points[1] == (1.0, 1.0, "x")


@pytest.mark.parametrize("method", ["random", "sobol"])
def test_samples_are_distinct_seeded_and_no_more_than_there_are(method):
    def draw(seed, trials):
        search = {"method": method, "trials": trials, "seed": seed}
        return list(asked(fields(CUBE, search), lambda **_: {"step_s": 1.0})[1])

    assert draw(1, 20) == draw(1, 20)
    assert draw(1, 20) != draw(2, 20)
    assert len(draw(1, 20)) == 20
    assert len(draw(1, 1000)) == 42


def test_a_sobol_sequence_fills_a_continuum_evenly():
    """Of 2^m points of it each of 2^m equal intervals has one (a (t, m, s)-net, t = 0)."""
    space = {"scale_up.bandwidth": {"linear": ["1 GB/s", "2 GB/s"]}}
    search = {"method": "sobol", "trials": 64, "seed": 5}
    values = [at[0] for at in asked(fields(space, search), lambda **_: {"step_s": 1.0})[1]]
    assert sorted(np.floor((np.array(values) - 1e9) / 1e9 * 64)) == list(range(64))


@pytest.mark.parametrize(("method", "trials"), [("nsga2", 150), ("tpe", 60)])
def test_a_sampler_finds_a_bowl_that_it_is_not_told(method, trials):
    def bowl(compute, host):
        return {"step_s": (compute - 1.5) ** 2 + (host - 2) ** 2}

    space = {"compute": {"linear": [1, 2]}, "host": {"linear": [1, 3], "steps": 21}}
    search = {"method": method, "trials": trials, "seed": 3}
    _, rows, _ = asked(fields(space, search), bowl)
    assert len(rows) == trials
    assert min(row.figures["step_s"] for row in rows.values()) < 5e-3
    again = asked(fields(space, search), bowl)[1]
    assert list(again) == list(rows)


def test_a_sampler_keeps_away_from_what_is_refused():
    def walled(compute, host):
        excess = max(0.0, 1.5 - compute)
        return {"step_s": compute + host, "excess": excess, "refused": "wall" * bool(excess)}

    space = {"compute": {"linear": [1, 2]}, "host": {"linear": [1, 3]}}
    search = {"method": "nsga2", "trials": 300, "seed": 3, "batch": 20}
    rows = list(asked(fields(space, search), walled)[1].values())
    assert np.mean([bool(row.refused) for row in rows[:20]]) > 0.25
    assert np.mean([bool(row.refused) for row in rows[-100:]]) < 0.4
    assert min(row.figures["step_s"] for row in rows if not row.refused) < 2.6


def stuck(compute, host):
    """Nearly all is refused, by as much: a population becomes one point, and is bred again."""
    good = compute == host == 1
    return {"step_s": 1.0, "refused": "" if good else "wall", "excess": 0.0 if good else 1.0}


LEVELS = list(range(1, 31))


def test_a_generation_has_a_quarter_of_new_points_while_there_are_some():
    content = fields(
        {"compute": LEVELS[:20], "host": LEVELS[:20]},
        {"method": "nsga2", "trials": 280, "seed": 1, "batch": 20},
    )
    declared, rows, _ = asked(content, stuck)
    method, left = METHODS["nsga2"](declared), list(rows.values())
    batch, sizes = next(method), []
    while left:
        sizes.append(len(batch))
        told, left = left[: len(batch)], left[len(batch) :]
        batch = method.send(told) if left else []
    assert sum(sizes) == 280
    assert min(sizes[:-1]) >= 5


def test_twice_the_trials_are_twice_the_work_of_nsga2():
    """Optuna alone goes over all trials that ever were for each new one."""

    def search(trials):
        search = {"method": "nsga2", "trials": trials, "seed": 1, "batch": 20}
        space = {"compute": {"linear": [1, 2]}, "host": {"linear": [1, 2]}}
        return asked(fields(space, search), stuck)

    search(40)  # what is loaded and remembered once
    once, twice = (python_calls(lambda trials=trials: search(trials)) for trials in (300, 600))
    assert twice < 2.2 * once


@pytest.mark.parametrize("loss", [1, 2, 10])
@pytest.mark.parametrize("tolerance", [1, 0.1])
def test_bisect_is_right_to_its_tolerance(loss, tolerance):
    """Of ``1 + 1/b`` the least b within the loss p of the value at B is 1/(p + (1 + p)/B)."""
    search = {"method": "bisect", "over": "scale_up.bandwidth"}
    search |= {"loss": f"{loss} %", "tolerance": f"{tolerance} %"}
    space = {"host": [1, 2], "scale_up.bandwidth": {"log": ["1 MB/s", "1 TB/s"]}}

    def step(host, scale_up_bandwidth):
        return {"step_s": 1 + host * 1e9 / scale_up_bandwidth}

    _, rows, found = asked(fields(space, search), step)
    assert len(found.thresholds) == 2
    for threshold, host in zip(found.thresholds, (1, 2), strict=True):
        least = host / (loss / 100 + (1 + loss / 100) * host / 1e3) * 1e9
        assert least <= threshold.value <= least * (1 + tolerance / 100)
        assert threshold.step <= (1 + loss / 100) * threshold.best_step
    assert len(rows) < 2 * 30


def test_bisect_along_levels_finds_the_first_that_keeps_the_loss():
    levels = [8, 16, 32, 64, 128]
    search = {"method": "bisect", "over": "scale_up.size", "loss": "10 %"}

    def step(cluster, scale_up_size):
        if cluster == "flat":
            return {"step_s": 1.0}
        if cluster == "broken":
            return {"refused": "no such cluster"}
        return {"step_s": 1 + 8 / scale_up_size}

    space = {"cluster": ["steep", "flat", "broken"], "scale_up.size": levels}
    _, _, found = asked(fields(space, search), step)
    steep, flat, broken = found.thresholds
    expected = next(one for one in levels if 1 + 8 / one <= 1.1 * (1 + 8 / 128))
    assert steep.value == expected
    assert (flat.value, flat.at_end) == (8, True)
    assert broken.value is None


def test_sobol_indices_of_a_sum_and_a_product_are_those_of_their_variances():
    """Of ``x + 2 y`` the shares are 1/5 and 4/5, alone and in all; of ``x y`` they interact."""
    space = {"compute": {"linear": [1, 2]}, "host": {"linear": [1, 2]}}
    search = {"method": "sensitivity", "trials": 4096 * 4, "seed": 1}

    def added(compute, host):
        return {"step_s": compute + 2 * host}

    _, _, found = asked(fields(space, search), added)
    (indices,) = found.sensitivity
    assert indices.first == pytest.approx({"compute": 0.2, "host": 0.8}, abs=0.02)
    assert indices.total == pytest.approx({"compute": 0.2, "host": 0.8}, abs=0.02)

    def multiplied(compute, host):
        return {"step_s": (compute - 1.5) * (host - 1.5)}

    (indices,) = asked(fields(space, search), multiplied)[2].sensitivity
    assert indices.first == pytest.approx({"compute": 0, "host": 0}, abs=0.03)
    assert indices.total == pytest.approx({"compute": 1, "host": 1}, abs=0.03)


def test_sensitivity_needs_a_box_in_which_every_point_can_be():
    search = {"method": "sensitivity", "trials": 200}
    space = {"compute": [1, 2], "host": [1, 2]}
    with pytest.raises(StudyError, match=r"of 4 points 2 are refused"):
        asked(
            fields(space, search),
            lambda compute, host: {"step_s": 1.0, "refused": "wall" if host > 1 else ""},
        )
    with pytest.raises(StudyError, match="needs 64 or more"):
        asked(fields(space, {"method": "sensitivity", "trials": 63}), lambda **_: {"step_s": 1.0})


def sample(name):
    """A shipped study in Python's words, its files found from anywhere."""
    content = yaml.safe_load((SAMPLES / f"{name}.yaml").read_text())
    content["confirm"] = "none"
    for entry in content["workloads"]:
        for key in entry.keys() & {"trace", "plan"}:
            entry[key] = str(SAMPLES / entry[key])
    return content


def share_of_the_grid(content, **search):
    """Hypervolume of a search with a tenth of the grid's points, as a share of the grid's."""
    whole = study(content)
    count = len(whole.explored.results) // 10
    part = study({**content, "search": {"method": "nsga2", "trials": count, **search}})
    assert len(part.explored.results) <= count
    values = [
        np.stack(
            [
                one.explored.results.column(name) * (1 if goal == "min" else -1)
                for name, goal in content["objectives"].items()
            ],
            axis=1,
        )[one.explored.results.feasible]
        for one in (whole, part)
    ]
    reference = values[0].max(axis=0)
    return hypervolume(values[1], reference) / hypervolume(values[0], reference)


def test_nsga2_finds_the_front_of_a_grid_with_a_tenth_of_its_points():
    content = sample("links")
    content["space"]["scale_up.latency"]["steps"] = 4
    content["space"]["scale_out.bandwidth"]["steps"] = 4
    assert share_of_the_grid(content, seed=1) >= 0.98


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["links", "fabrics", "plans"])
def test_nsga2_finds_the_front_of_each_shipped_space_whatever_its_seed(name):
    for seed in range(3):
        assert share_of_the_grid(sample(name), seed=seed) >= 0.98


def test_shipped_traces_are_replayed_where_they_were_recorded():
    """Without the nodes of the recording the sample is 2.8 % off, before anything is changed."""
    content = sample("links")
    content["space"] = {"nodes": [2]}
    content["objectives"] = {"step_s": "min"}
    (workload,) = study(content).workloads
    assert abs(workload["baseline_error_pct"]) < 0.01


def test_shipped_studies_can_be_read():
    names = [one.name for one in SAMPLES.iterdir() if one.name.endswith(".yaml")]
    assert len(names) == 6  # plans and the atlas among them
    for name in ("links", "fabrics", "plans"):
        assert 700 <= declare(sample(name)).points <= 10_000


def test_a_space_that_a_search_has_seen_ends_it():
    _, rows, _ = asked(
        fields({"compute": [1, 2], "host": [1]}, {"method": "nsga2", "trials": 50, "batch": 4}),
        lambda compute, host: {"step_s": compute / host},
    )
    assert len(rows) == 2
