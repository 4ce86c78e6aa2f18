"""What the figures of an answer have to do with one another, worked out again from its rows."""

import math
import re
from collections import Counter, defaultdict

import numpy as np
import pytest

from topologies import catalog, load_cluster

ERRORS = {
    "error_pct": (
        *("predicted_step_s", "predicted_s", "modelled_s", "predicted_ratio", "simulated_end_s"),
    ),
    "baseline_error_pct": ("simulated_step_s",),
    "calibrated_error_pct": ("calibrated_s",),
    "network_only_error_pct": ("network_only_s",),
    "model_pct": ("simulated_s",),
    "cluster_pct": ("cluster_s",),
    "fitted_pct": ("fitted_s",),
    "ttft_error_pct": ("ttft_s",),
    "tpot_error_pct": ("tpot_s",),
}
"""What is predicted less what was measured, in % of that: errors, and the fields they are of."""
MEASURED = {
    "predicted_ratio": "measured_ratio",
    "simulated_end_s": "measured_end_s",
    "predicted_step_s": "measured_step_s",
    "simulated_step_s": "measured_step_s",
    "ttft_s": "measured_ttft_s",
    "tpot_s": "measured_tpot_s",
}
SOURCES = ("scatter_pct", "prior_pct", "prediction_pct", "generated_pct", "kernels_pct")
"""Independent parts of an interval."""
BUS = {"all_reduce": lambda n: 2 * (n - 1) / n}
"""Factor from size over time to the bandwidth of the bus: nccl-tests, doc/PERFORMANCE.md."""


def obeys(answer):
    """Hold an answer to the laws of all answers, and to those of its own schema."""
    for row in rows_in(answer):
        of_row(row)
    LAWS.get(answer["schema"].split("/")[1], lambda _: None)(answer)


def rows_in(part):
    """Yield every record of an answer."""
    if isinstance(part, dict):
        yield part
    for value in part.values() if isinstance(part, dict) else part:
        if isinstance(value, dict | list):
            yield from rows_in(value)


def of_row(row):
    for name, fields in ERRORS.items():
        for field in fields:
            measured = row.get(MEASURED.get(field, "measured_s"))
            if row.get(name) is not None and row.get(field) is not None and measured:
                assert row[name] == about(100 * (row[field] / measured - 1)), name
    for fields, law in OF_ROWS.items():
        if all(row.get(field) is not None for field in fields):
            law(row)


def is_ordered(row):
    assert row["p50"] <= row["p90"] <= row["p95"] <= row["p99"]


def is_an_interval(row):
    assert row["interval_pct"] == about(math.hypot(*(row[part] or 0.0 for part in SOURCES)))


def is_apart(row):
    apart = row["utility_predicted_pct"] - row["utility_measured_pct"]
    assert row["points_apart"] == about(apart)


def is_a_difference(row):
    assert row["difference_s"] == about(row["b_adds_s"] - row["a_adds_s"])


def is_a_path(row):
    step = row["changed_step_s"] or row["simulated_step_s"]
    assert sum(row["critical_path_s"].values()) == about(step)


def has_causes(row):
    assert row["pinned_pct"] == about(sum(row["pinned_by_cause_pct"].values()))


def has_bandwidths(row):
    for side in ("measured", "modelled"):
        if row["kind"] in BUS and row[f"{side}_busbw_GBps"] is not None:
            speed = BUS[row["kind"]](row["ranks"]) * row["size_bytes"] / row[f"{side}_s"]
            assert row[f"{side}_busbw_GBps"] == about(speed / 1e9)


OF_ROWS = {
    ("p50", "p90", "p95", "p99"): is_ordered,
    ("interval_pct", "scatter_pct", "prior_pct"): is_an_interval,
    ("points_apart",): is_apart,
    ("a_adds_s", "b_adds_s"): is_a_difference,
    ("critical_path_s", "simulated_step_s"): is_a_path,
    ("pinned_pct", "pinned_by_cause_pct"): has_causes,
    ("measured_busbw_GBps", "modelled_busbw_GBps"): has_bandwidths,
}
"""Laws of records that have all of these fields, whatever the question."""


def about(number):
    return pytest.approx(number, rel=1e-9, abs=1e-10)


def off(rows, name="error_pct"):
    """List the errors of rows that have one."""
    return [row[name] for row in rows if row.get(name) is not None]


def summarises(summary, errors):
    """Hold a summary to the errors it is of: absolute median and 90 %, bias, the worst first."""
    assert (summary is None) == (not errors)
    if errors:
        assert summary["rows"] == len(errors)
        assert summary["median_pct"] == about(np.median(np.abs(errors)))
        assert summary["p90_pct"] == about(np.quantile(np.abs(errors), 0.9))
        assert summary["bias_pct"] == about(np.median(errors))
        worst = sorted(errors, key=abs, reverse=True)[: len(summary["worst"])]
        assert [row[1] for row in summary["worst"]] == about(worst)


def group_is(row, errors):
    """Hold a group's row to the errors of its members."""
    expected = {
        "median_pct": np.median(np.abs(errors)) if errors else None,
        "p90_pct": np.quantile(np.abs(errors), 0.9) if errors else None,
        "worst_pct": np.max(np.abs(errors)) if errors else None,
        "signed_pct": np.median(errors) if errors else None,
    }
    for name in expected.keys() & row.keys():
        assert row[name] == (None if expected[name] is None else about(expected[name])), row


def of_utilities(answer):
    base = answer["changed_step_s"] or answer["simulated_step_s"]
    for row in answer.get("utilities", answer.get("points", ())):
        if row.get("utility_pct") is not None and row.get("step_s") is not None:
            assert row["utility_pct"] == about(100 * (1 - row["step_s"] / base))
        if row.get("utility_pct") is not None and row.get("bound_pct") is not None:
            assert row["utility_pct"] <= row["bound_pct"] + 1e-9
        if row.get("changed_value") and row["unit"] != "s":
            assert row["changed_value"] == about(answer["factor"] * row["baseline_value"])
        elif row.get("changed_value"):
            assert row["changed_value"] == about(row["baseline_value"] / answer["factor"])
    if (failing := answer.get("failures")) is not None:
        of_failures(failing, base)


def of_failures(failing, step):
    parts = [failing[f"{part}_pct"] for part in ("productive", "checkpoints", "redone", "restarts")]
    assert sum(parts) == about(100)
    assert failing["step_s"] == about(step / (failing["productive_pct"] / 100))
    assert failing["steps_a_month"] == about(30 * 86400 / failing["step_s"])
    (checkpoint,) = (row["now_s"] for row in failing["better"] if row["what"] == "checkpoint")
    assert parts[1] / parts[0] == about(checkpoint / failing["every_s"])
    (restart,) = (row["now_s"] for row in failing["better"] if row["what"] == "restart")
    assert parts[3] / 100 == pytest.approx(restart / failing["mtbf_s"], rel=1e-4)
    for row in failing["better"]:
        assert row["utility_pct"] == about(100 * (1 - parts[0] / row["productive_pct"]))


def of_share(answer):
    for job in answer["jobs"]:
        assert job["slow_down"] == about(job["step_s"] / job["alone_step_s"])
        assert job["worst_slow_down"] == about(job["worst_step_s"] / job["alone_step_s"])
        assert job["least_step_s"] <= job["step_s"] <= job["worst_step_s"]
        assert job["deviation_s"] <= job["worst_step_s"] - job["least_step_s"]

    for link in answer["links"]:
        for figure in ("lost_s", "utilisation"):
            assert link[figure] == about(sum(part[figure] for part in link["jobs"]))
        assert all(part["bytes_per_step"] > 0 for part in link["jobs"])


def of_metrics(answer):
    for run in ("measured", "simulated"):
        values = {(row["metric"], row["of"]): row[run] for row in answer["metrics"]}
        step = answer.get(f"{run}_step_s")
        if step and not answer["what_ifs"]:
            assert values["step_time", ""] == about(step)
        sizes = {of: value for (name, of), value in values.items() if name == "collective_size"}
        kinds = [value for of, value in sizes.items() if " " not in of and of != "total"]
        if sizes.get("total") is not None:
            assert sizes["total"] == about(sum(filter(None, kinds)))
        for (name, of), volume in values.items():
            group = re.fullmatch(r"all_reduce .*\[(\d+)\]", of)
            if name == "collective_volume" and group and volume is not None:
                assert volume == about(BUS["all_reduce"](int(group[1])) * sizes[of])


def of_diff(answer):
    a, b = answer["a"], answer["b"]
    differences = {
        run: b[f"{run}_step_s"] - a[f"{run}_step_s"]
        for run in ("measured", "simulated")
        if a.get(f"{run}_step_s") and b.get(f"{run}_step_s")
    }
    for run in {row["run"] for row in answer["uses"]}:
        uses = [row["difference_s"] for row in answer["uses"] if row["run"] == run]
        assert sum(uses) == pytest.approx(differences[run], abs=1e-9)
    for row in answer["parts"]:
        if row["difference_pct"] is not None:
            before = a[f"{row['run']}_step_s"]
            assert row["difference_pct"] == about(100 * row["difference_s"] / before)
    for row in [*answer["what_ifs"], *([answer["together"]] if answer["together"] else ())]:
        assert row["difference_s"] == about(row["step_s"] - a["simulated_step_s"])


def of_inspect(answer):
    ops, coverage = Counter(answer["ops"]), answer["coverage"]
    if ops["collective"] == ops.total() - ops["host"] - ops["compute"] - ops["copy"]:
        started = ops["compute"] + ops["copy"] + ops["collective"]
        assert sum(answer["starts"].values()) in (0, started)
    assert sum(call["count"] for call in answer["calls"]) == coverage["collectives"]
    assert coverage["collectives_matched"] <= coverage["collectives"]


def of_memory(answer):
    parts = ("weights", "gradients", "optimiser", "gathered", "activations")
    parts += ("working", "kv_cache", "buffers", "reserve")
    for stage in answer["stages"]:
        assert stage["total_bytes"] == about(sum(stage[f"{part}_bytes"] for part in parts))
    assert answer["total_bytes"] == max(stage["total_bytes"] for stage in answer["stages"])
    assert answer["fits"] == (answer["total_bytes"] <= answer["accelerator_memory_bytes"])
    for change in answer["would_fit"]:
        assert change["total_bytes"] <= answer["accelerator_memory_bytes"]


def of_bill(answer):
    parts = answer["parts"]
    priced = [part for part in parts if part["price_usd"] is not None]
    for part in priced:
        assert part["cost_usd"] == about(part["count"] * part["price_usd"])
    assert all(part["price_source"] for part in priced)
    assert all(part["power_source"] for part in parts if part["active_w"])
    assert (answer["cost_usd"] is None) == any("prices." in name for name in answer["missing"])
    if answer["cost_usd"] is not None:
        assert answer["cost_usd"] == about(sum(part["cost_usd"] for part in priced))
        spread = math.hypot(*(part["price_spread"] * part["cost_usd"] for part in priced))
        assert answer["cost_spread_usd"] == about(spread)
    for watts in ("idle_w", "active_w"):
        drawn = sum(part["count"] * part[watts] for part in parts)
        assert answer[watts] == about(answer["overhead"] * drawn)
    nodes = sum(part["count"] for part in parts if part["part"] == "node")
    assert nodes in (0, answer["nodes"])


def of_generated(answer):
    assert sum(answer["kernel_times"].values()) == about(1)
    cluster, degrees = (answer["cluster"] or {}).get("name"), answer["parallelism"]
    if answer["what_ifs"]:
        return
    if answer["mfu"] is not None and cluster in catalog():
        ranks = math.prod(degrees[degree] for degree in ("tp", "cp", "pp", "dp"))
        dtype = "fp8" if "fp8" in answer["command"] else "bf16"
        peak = load_cluster(cluster).accelerator.peak[dtype]
        flops = answer["model_flops"] / (ranks * answer["simulated_step_s"])
        assert answer["mfu"] == about(flops / peak)
    assert answer["likely_step_s"] is None or answer["steps_like_it"]["signed_pct"] == about(
        100 * (answer["simulated_step_s"] / answer["likely_step_s"] - 1)
    )


def is_in(call, group):
    """Whether a call is of a group's kind and class of sizes."""
    classes = {
        "below 64 KiB": (0, 2**16),
        "64 KiB to 16 MiB": (2**16, 2**24),
        "16 MiB and more": (2**24, math.inf),
    }
    least, most = classes.get(group["sizes"], (0, math.inf))
    return call["kind"] == group["kind"] and least <= call["size_bytes"] < most


def of_validation(answer):
    steps, points, calls = answer["steps"], answer["points"], answer["calls"]
    for name in ("model", "trace", "left_out"):
        errors = off(steps, f"{name}_pct")
        assert answer[f"median_{name}_pct"] == (
            about(np.median(np.abs(errors))) if errors else None
        )
    for name in ("error", "calibrated_error", "network_only_error"):
        errors = off(points, f"{name}_pct")
        of_points = about(np.median(np.abs(errors))) if errors else None
        assert answer[f"median_{name}_pct"] == of_points
    for row in answer["call_errors"]:
        members = [call for call in calls if is_in(call, row)]
        assert row["calls"] == len(members)
        group_is(row, off(members))
    of_calls = off(calls) or off(points) or off(steps, "model_pct")
    summarises(answer["error_summary"], of_calls)


def of_grouped(rows):
    """Return the law of answers with errors by groups of their rows, named by a field of these."""

    def law(answer):
        for group in answer["errors"]:
            by, value = group.get("by", ""), group.get("value")
            if by in ("", "all", "framework", "cluster", "model", "accelerator"):
                members = [row for row in answer[rows] if by in ("", "all") or row[by] == value]
                if "knob" in group:
                    members = [row for row in members if group["knob"] in ("all", row["knob"])]
                    assert group["ratios"] == len(members)
                group_is(group, off(members))
                assert group["refused"] == sum(bool(row["refused"]) for row in members)
        assert answer["median_error_pct"] == answer["errors"][0]["median_pct"]
        summarises(answer["error_summary"], off(answer[rows]))

    return law


def of_served(answer):
    whole = answer["errors"][0]
    assert (whole["rows"], whole["answered"]) == (
        len(answer["rows"]),
        len(off(answer["rows"], "tpot_s")),
    )
    for metric in ("ttft", "tpot"):
        errors = off(answer["rows"], f"{metric}_error_pct")
        assert whole[f"{metric}_median_pct"] == about(np.median(np.abs(errors)))
        assert whole[f"{metric}_p90_pct"] == about(np.quantile(np.abs(errors), 0.9))
        assert whole[f"{metric}_ratio"] == about(1 + np.median(errors) / 100)
    first, second = answer["rows"]
    measured = second["measured_tpot_s"] / first["measured_tpot_s"]
    (pair,) = answer["pairs"]
    predicted = second["tpot_s"] / first["tpot_s"]
    apart = 100 * abs(predicted / measured - 1), 100 * abs(measured / predicted - 1)
    assert any(pair["median_pct"] == about(each) for each in apart)
    assert pair["p90_pct"] == pair["median_pct"]


def of_serving(answer):
    means = {row["metric"]: row["mean"] for row in answer["metrics"]}
    parts = answer["parts_s"]
    if not {"slot", "transfer"} & set(parts):
        assert parts["queue"] + parts["prefill"] == about(means["ttft"])
    assert sum(parts.values()) == about(means["e2e"])
    if answer["goodput_per_s"] is not None:
        assert answer["goodput_per_s"] == about(
            answer["goodput_fraction"] * answer["requests_per_s"]
        )
    assert 0 <= answer["peak_cache"] <= 1


def of_study(answer):
    assert answer["computed"] + answer["stored"] + answer["cached"] == answer["points"]
    assert len(answer["front"]) <= answer["feasible"] <= answer["points"]
    if list(answer["objectives"].values()) == ["min"] and answer["front"]:
        (name,) = answer["objectives"]
        least = min(point["objectives"][name] for point in answer["front"])
        best = next(p for p in answer["front"] if p["point"] == answer["best"][name])
        assert best["objectives"][name] == least
        assert answer["hypervolume"] == about(answer["reference"][name] - least)
    for threshold in answer["thresholds"]:
        if threshold["step_s"] is not None:
            assert threshold["step_s"] >= threshold["best_step_s"]


def of_compared(answer):
    summarises(answer["error_summary"], off(answer["calls"]))


def of_fitted_logs(answer):
    for row in answer["errors"]:
        members = [call for call in answer["calls"] if is_in(call, row)]
        assert row["calls"] == len(members)
        for side in ("cluster", "fitted", "left_out"):
            errors = np.abs(off(members, f"{side}_pct"))
            assert row[f"{side}_median_pct"] == about(np.median(errors)), side
        assert row["left_out_p90_pct"] == about(np.quantile(errors, 0.9))
        assert row["left_out_worst_pct"] == about(errors.max())


def of_explanation(answer):
    step, path = answer["simulated_step_s"], answer["path"]
    assert sum(part["time_s"] for part in answer["critical_path"]) == about(step)
    ends = [part["start_s"] + part["duration_s"] for part in path]
    assert [part["start_s"] for part in path] == about([0.0, *ends[:-1]])
    assert ends[-1] == about(step)
    for what, mean in answer["mean_rank_s"].items():
        assert mean == about(np.mean([rank["time_s"][what] for rank in answer["ranks"]]))
    for rank in answer["ranks"]:
        assert sum(rank["time_s"].values()) == about(step)
    spent = defaultdict(float)
    for part in path:
        spent[part["what"]] += part["duration_s"]
    told = defaultdict(float)
    for part in answer["critical_path"]:
        told[part["what"]] += part["time_s"]
    assert spent == about(told)


def of_replay(answer):
    ranks = answer["ranks"]
    exposed = [rank["exposed_communication_s"] for rank in ranks]
    assert answer["exposed_communication_s"] == about(np.mean(exposed))
    for rank in ranks:
        assert rank["exposed_communication_s"] <= rank["communication_s"] + 1e-12


def of_curve(answer):
    base = answer["changed_step_s"] or answer["simulated_step_s"]
    assert [point["factor"] for point in answer["points"]] == sorted(
        {point["factor"] for point in answer["points"]}
    )
    for point in answer["points"]:
        assert point["utility_pct"] == about(100 * (1 - point["step_s"] / base))


def of_throughput(answer):
    carried = answer["throughput"]
    if carried is not None:
        assert carried["of_capacity"] == about(carried["per_rank"] / carried["ideal_per_rank"])


LAWS = {
    "utility": of_utilities,
    "sweep": of_utilities,
    "compare": of_utilities,
    "curve": of_curve,
    "explain": of_explanation,
    "metrics": of_metrics,
    "replay": of_replay,
    "serving": of_serving,
    "study": of_study,
    "share": of_share,
    "diff": of_diff,
    "inspect": of_inspect,
    "memory": of_memory,
    "bill": of_bill,
    "generate": of_generated,
    "validate": of_validation,
    "validate_ratios": of_grouped("ratios"),
    "validate_steps": of_grouped("steps"),
    "validate_serving": of_served,
    "collective_compare": of_compared,
    "calibrate_logs": of_fitted_logs,
    "topology": of_throughput,
}
