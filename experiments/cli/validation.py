"""Validate: predictions beside what was measured."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli import options
from experiments.cli.options import (
    OF_LOGS,
    Options,
    Output,
    OutputOption,
    is_given,
    kind_of,
    of_settings,
    of_table,
    option,
    refuse_given,
    settings_of,
    with_files,
    with_options,
)
from experiments.cli.show import show
from experiments.output.progress import watching

if TYPE_CHECKING:
    from experiments.questions.validation.ratios import RatiosReport
    from experiments.questions.validation.recordings import ValidationReport
    from experiments.questions.validation.serving import ServingLogReport, ValidateServingReport
    from experiments.questions.validation.steps import StepsReport
    from experiments.report import Report
    from experiments.settings import Watch

_LOG = "serving-log"
_OPTIONS: Options = {
    "read_as": option(
        str,
        "Read all sources as tables of this kind.",
        "--as",
        **options.choice(options.names_in("experiments.validation.tables:KINDS")),
        show_default="by the columns of the file",
    ),
    "predict": option(
        list[str],
        "Predict this recording of the same program from the traces; may be repeated.",
        metavar="TRACE@CLUSTER",
    ),
    "predictions": option(
        Path,
        "Predictions of other tools for a table of what-ifs or ratios, scored beside those of "
        "Twofold and of a roofline; columns: row (its line in the table), predicted, tool.",
        metavar="FILE.csv",
    ),
    **OF_LOGS,
    **of_settings(only=("engine", "nodes", "algorithm")),
    "workers": of_table(int, "Processes that predict the steps of a table.", default=1, min=1),
}


@with_options(_OPTIONS, before="brief")
@with_files("figure")
def validate(
    ctx: typer.Context,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE|LOG|TRACE",
            show_default=False,
            help="Tables of measured what-ifs (CSV with trace, cluster, what_if or resource and "
            "factor, measured_step_s), of training steps (model, cluster, tp, pp, dp, sequence, "
            "global_batch, step_s), of ratios of two settings that others measured (model, "
            "hardware or cluster, knob, both settings, step_ratio_b_over_a_measured), of serving "
            "(engine, model, machine, tp, isl, osl, concurrency, ttft_ms, tpot_ms) or of "
            "collectives (kind, ranks, size_bytes, time_us); logs of benchmarks, as of nccl-tests; "
            "a serving log (a directory with meta.json and requests.jsonl), answered on --cluster; "
            "or traces, of which TRACE@CLUSTER names its cluster.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        options.of_cluster(
            help=f"For sources that do not name their cluster. {options.CLUSTER_HELP}"
        ),
    ] = None,
    *,
    brief: Annotated[
        bool, typer.Option("--brief", help="Omit the tables of single what-ifs or steps.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Report the errors of predictions of measured what-ifs, steps and collectives.

    Every step of a trace is replayed; with --predict a trace predicts another
    recording of the same program. An error is predicted less measured, in % of
    what was measured.
    """
    kind = _kind_of(ctx, sources or [])
    refuse_given(ctx, _MEANINGLESS[kind], f"for {'a serving log' if kind == _LOG else kind}")
    if kind in _NEED_CLUSTER and cluster is None:
        raise typer.BadParameter(f"{_NEED_CLUSTER[kind]}: --cluster C.")
    with watching("rows" if kind == "serving" else "calls") as watch:
        report = _ASK[kind](ctx, sources or [], watch)
    changes: dict[str, Any] = {"brief": brief} if brief and kind != _LOG else {}
    show(replace(report, **changes), output)


def _kind_of(ctx: typer.Context, sources: Sequence[str]) -> str:
    """Return what all sources are: the kind of their tables, or traces."""
    if not sources:
        raise typer.BadParameter("name a table, a log or a trace.")
    from experiments.validation.tables import table_kind

    kinds = {source: ctx.params["read_as"] or table_kind(source) for source in sources}
    first, *rest = kinds
    for source in rest:
        if kinds[source] != kinds[first]:
            raise typer.BadParameter(
                f"{first} is {_words_of(kinds[first])} and {source} {_words_of(kinds[source])}: "
                "validate them separately, or name the kind of both with --as."
            )
    return kinds[first] or "traces"


def _words_of(kind: str | None) -> str:
    return {None: "a trace", _LOG: "a serving log"}.get(kind, f"a table of {kind}")


def _traces(ctx: typer.Context, sources: Sequence[str], watch: "Watch") -> "ValidationReport":
    from experiments.questions.validation.recordings import BETWEEN
    from experiments.questions.validation.recordings import validate as ask
    from experiments.settings import EVERY

    predict, cluster = ctx.params["predict"] or (), ctx.params["cluster"]
    if not predict:
        refuse_given(ctx, ("brief",), "for traces without --predict")
    if cluster is not None and all(
        BETWEEN in trace and not Path(trace).exists() for trace in (*sources, *predict)
    ):
        raise typer.BadParameter("--cluster has no effect: every trace names its own.")
    settings = replace(settings_of(ctx), step=EVERY)
    return ask(sources, cluster, predict=predict, settings=settings, watch=watch)


def _what_ifs(ctx: typer.Context, sources: Sequence[str], watch: "Watch") -> "ValidationReport":
    from experiments.questions.validation.recordings import validate as ask
    from experiments.settings import EVERY

    settings = replace(settings_of(ctx), step=EVERY)
    cluster, predictions = ctx.params["cluster"], ctx.params["predictions"]
    return ask(
        (), cluster, against=sources, predictions=predictions, settings=settings, watch=watch
    )


def _collectives(ctx: typer.Context, sources: Sequence[str], watch: "Watch") -> "ValidationReport":
    from collectives.files.measured_calls import Layout
    from experiments.questions.validation.recordings import validate as ask

    ranks, nodes, per_node = (ctx.params[name] for name in ("ranks", "nodes", "ranks_per_node"))
    layout = Layout(ranks, nodes, per_node, kind_of(ctx.params["kind"]))
    return ask((), ctx.params["cluster"], collectives=sources, layout=layout, watch=watch)


def _steps(ctx: typer.Context, sources: Sequence[str], watch: "Watch") -> "StepsReport":
    from experiments.questions.validation.steps import validate_steps as ask

    cluster, workers = ctx.params["cluster"], ctx.params["workers"]
    return ask(sources, cluster, workers=workers, watch=watch, **_engine_of(ctx))


def _ratios(ctx: typer.Context, sources: Sequence[str], watch: "Watch") -> "RatiosReport":
    from experiments.questions.validation.ratios import validate_ratios as ask

    return ask(sources, predictions=ctx.params["predictions"], watch=watch, **_engine_of(ctx))


def _engine_of(ctx: typer.Context) -> dict[str, str]:
    """Return the engine where one is given: generated steps have a default of their own."""
    return {"engine": ctx.params["engine"]} if is_given(ctx, "engine") else {}


def _serving(_: typer.Context, sources: Sequence[str], watch: "Watch") -> "ValidateServingReport":
    from experiments.questions.validation.serving import validate_serving as ask

    return ask(sources, watch=watch)


def _serving_log(ctx: typer.Context, sources: Sequence[str], _: "Watch") -> "ServingLogReport":
    from experiments.questions.validation.serving import validate_serving_log as ask

    if len(sources) > 1:
        raise typer.BadParameter(f"{', '.join(sources)}: validate serving logs one by one.")
    return ask(sources[0], ctx.params["cluster"])


_ASK: "dict[str, Callable[[typer.Context, Sequence[str], Watch], Report]]" = {
    "traces": _traces,
    "what-ifs": _what_ifs,
    "collectives": _collectives,
    "steps": _steps,
    "ratios": _ratios,
    "serving": _serving,
    _LOG: _serving_log,
}
"""What answers each kind of source."""
_OF_SERVING = (
    *(*OF_LOGS, "predictions", "predict"),
    *("engine", "nodes", "algorithm", "workers", "figure"),
)
_MEANINGLESS = {
    "traces": (*OF_LOGS, "predictions", "workers"),
    "what-ifs": (*OF_LOGS, "predict", "workers"),
    "collectives": ("predictions", "predict", "brief", "engine", "algorithm", "workers"),
    "steps": (*OF_LOGS, "predictions", "predict", "nodes", "algorithm", "figure"),
    "ratios": (*OF_LOGS, "predict", "cluster", "nodes", "algorithm", "workers", "figure"),
    "serving": (*_OF_SERVING, "cluster"),
    _LOG: _OF_SERVING,
}
"""Options that have no effect for a kind."""
_NEED_CLUSTER = {
    "collectives": "collectives need a cluster to model them on",
    _LOG: "a serving log needs the cluster it ran on",
}
