"""The command that serves requests: a deployment under a load, and what doubling would buy."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.options import (
    Cluster,
    Figure,
    Html,
    Output,
    choice,
    completed,
    models,
    refuse_given,
)
from experiments.cli.show import check_figure, check_html, check_perfetto, say, show

if TYPE_CHECKING:
    from collections.abc import Iterable

    from experiments.evaluate.serving_clients import Slo
    from experiments.evaluate.serving_fleets import Instances
    from experiments.evaluate.serving_plan import Load, ServingPlan
    from experiments.questions.serving import ServingReport

_LOAD = "Load"
_ENGINE = "Engine"
_POOLS = "Instances"


def _engines() -> "Iterable[str]":
    from simulator.serving.engines import engine_names

    return engine_names()


def _routers() -> "Iterable[str]":
    from simulator.serving.loop import ROUTERS

    return ROUTERS


def serving(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", autocompletion=completed(models), help="A model card or config.json."
        ),
    ],
    *,
    cluster: Cluster,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks of attention.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel ranks of attention.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Ranks over which experts are spread.")] = 1,
    weights: Annotated[str, typer.Option(help="Recipe of the weights: bf16, fp8, nvfp4.")] = "bf16",
    experts: Annotated[
        str | None, typer.Option(show_default="as weights", help="Recipe of the experts.")
    ] = None,
    cache: Annotated[str, typer.Option(help="Type of the cache: bf16 or fp8.")] = "bf16",
    engine: Annotated[
        str, typer.Option(**choice(_engines), rich_help_panel=_ENGINE, help="Serving engine.")
    ] = "vllm",
    engine_version: Annotated[
        str, typer.Option(rich_help_panel=_ENGINE, show_default="newest", help="As 0.19.0.")
    ] = "",
    speculation: Annotated[
        str | None,
        typer.Option(
            metavar="'mtp 3 accepts 2.5'",
            rich_help_panel=_ENGINE,
            help="Speculative decoding: method (mtp, ngram, draft MODEL), drafts, tokens per step.",
        ),
    ] = None,
    adapters: Annotated[
        str | None,
        typer.Option(
            metavar="'8 of rank 16'",
            rich_help_panel=_ENGINE,
            help="LoRA adapters; each request asks for any of them.",
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            **choice(lambda: ("fcfs", "priority", "slo")),
            rich_help_panel=_ENGINE,
            help="Who goes first of those waiting: by arrival, by the trace, or those in time.",
        ),
    ] = "fcfs",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, rich_help_panel=_ENGINE, help="Most tokens per iteration.")
    ] = None,
    max_sequences: Annotated[
        int | None, typer.Option(min=1, rich_help_panel=_ENGINE, help="Most concurrent requests.")
    ] = None,
    blocks: Annotated[
        int | None, typer.Option(min=1, rich_help_panel=_ENGINE, help="Blocks of the cache.")
    ] = None,
    instances: Annotated[
        int,
        typer.Option(min=1, rich_help_panel=_POOLS, help="How many identical instances there are."),
    ] = 1,
    router: Annotated[
        str, typer.Option(**choice(_routers), rich_help_panel=_POOLS, help="Who gets a request.")
    ] = "least-load",
    prefix_cache: Annotated[
        bool,
        typer.Option(
            rich_help_panel=_POOLS,
            help="Cache prompts for requests that begin with the same tokens.",
        ),
    ] = True,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="'from N at N requests, T to start'",
            rich_help_panel=_POOLS,
            help="Autoscale from N instances to all, by the requests that each has.",
        ),
    ] = None,
    host_cache: Annotated[
        str | None,
        typer.Option(
            metavar="100 GB",
            rich_help_panel=_POOLS,
            help="Host memory per accelerator for prompts that leave its cache.",
        ),
    ] = None,
    decode: Annotated[
        str | None,
        typer.Option(
            metavar="'N x tp 8, dp 2, ep 16 on CLUSTER'",
            rich_help_panel=_POOLS,
            help="Decode in a separate pool of N instances, by default like the others.",
        ),
    ] = None,
    down: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'N from T to T'",
            rich_help_panel=_POOLS,
            help="When instance N is down, because it failed or starts later; may be repeated.",
        ),
    ] = None,
    find: Annotated[
        str | None,
        typer.Option(
            metavar="rate",
            rich_help_panel=_LOAD,
            help="Find the rate at which the SLO is just met.",
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=V1,V2",
            rich_help_panel=_LOAD,
            help="Values of rate, concurrency, cluster, tp, instances or a resource.",
        ),
    ] = None,
    requests: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_LOAD,
            help="A request trace: of Azure, Vidur, BurstGPT, Mooncake, LLMServingSim or vLLM.",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="N/s", rich_help_panel=_LOAD, help="Requests per second, Poisson."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, rich_help_panel=_LOAD, help="Requests at a time, closed.")
    ] = None,
    input_tokens: Annotated[
        int, typer.Option("--input", min=1, rich_help_panel=_LOAD, help="Tokens of a prompt.")
    ] = 1024,
    output_tokens: Annotated[
        int, typer.Option("--output-tokens", min=1, rich_help_panel=_LOAD, help="Tokens made.")
    ] = 256,
    count: Annotated[
        int, typer.Option("--requests-count", min=2, rich_help_panel=_LOAD, help="How many.")
    ] = 500,
    client: Annotated[
        str,
        typer.Option(rich_help_panel=_LOAD, help="inferencex: lengths from 0.8 to 1.0 of these."),
    ] = "fixed",
    slo: Annotated[
        str | None, typer.Option(metavar="'ttft 500 ms, tpot 50 ms'", help="What counts as good.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, for intervals.")] = 5,
    resource: Annotated[
        list[str] | None, typer.Option(help="Double only this resource; may be repeated.")
    ] = None,
    factor: Annotated[float, typer.Option(help="How many times as much of a resource.")] = 2.0,
    figure: Figure = None,
    html: Html = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write requests and iterations for ui.perfetto.dev.")
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="table|json|csv|N",
            help="How to print the answer; or N: output tokens of each request.",
        ),
    ] = None,
) -> None:
    """Serve requests by a deployment: TTFT, TPOT, goodput, and what doubling would buy.

    Instances are simulated iteration by iteration, as their engine schedules them; prompts go to a
    pool that decodes over the cluster's network.
    """
    from experiments.evaluate.serving_plan import (
        check_plan,
        instances_of,
        load_of,
        serving_plan,
        slo_of,
    )
    from experiments.output.progress import watching
    from experiments.questions import serving as questions
    from simulator.support.errors import WorkloadError

    check_figure(figure)
    check_html(html)
    check_perfetto(perfetto)
    form, output_tokens = _form_and_tokens(output or [], output_tokens)
    if _scales_rate(find, sweep, concurrency) and rate is None and requests is None:
        rate = "1/s"
    plan = serving_plan(
        **{"model": model, "tp": tp, "dp": dp, "ep": ep},
        **{"weights": weights, "experts": experts, "cache": cache},
        **{"engine": engine, "version": engine_version},
        **{"speculation": speculation, "adapters": adapters, "policy": policy},
        **{"max_tokens": max_tokens, "max_sequences": max_sequences, "blocks": blocks},
        **{"instances": instances, "router": router, "prefix_cache": prefix_cache},
        **{"scale": scale, "host_cache": host_cache, "decode": decode, "down": tuple(down or ())},
        **{"requests": requests, "rate": rate, "concurrency": concurrency},
        **{"input": input_tokens, "output": output_tokens, "count": count, "client": client},
        **{"slo": slo, "seeds": seeds},
    )
    try:
        check_plan(plan)
    except WorkloadError as error:
        raise typer.BadParameter(f"{error}.") from error
    served_by, load, limits = instances_of(plan, str(cluster)), load_of(plan), slo_of(plan)
    if find is not None:
        _show_rate(served_by, load, (limits, seeds, resource, factor), (form, figure, html))
        return
    if sweep is not None:
        _show_sweep(served_by, load, sweep, (limits, seeds), (form, figure, html))
        return
    with watching("points") as watch:
        report = questions.serving(
            served_by, load, slo=limits, seeds=seeds, resources=resource, factor=factor, watch=watch
        )
    _draw_requests(report, perfetto)
    show(report, form, figure, html)


def _draw_requests(report: "ServingReport", perfetto: Path | None) -> None:
    if perfetto is not None:
        from experiments.output.perfetto import write_serving

        write_serving(report, perfetto)
        say(f"wrote {perfetto}; open it at https://ui.perfetto.dev")


def _scales_rate(find: str | None, sweep: str | None, concurrency: int | None) -> bool:
    """Check what is asked besides one load; return whether that sets the rate."""
    if find not in (None, "rate"):
        raise typer.BadParameter(f"--find {find!r} is not rate.")
    if find is not None and concurrency is not None:
        raise typer.BadParameter("--find rate needs an open loop: leave out --concurrency.")
    if find is not None and sweep is not None:
        raise typer.BadParameter("give one of --find and --sweep.")
    over_rate = concurrency is None and (sweep or "").partition("=")[0].strip() == "rate"
    return find is not None or over_rate


def _show_rate(
    served_by: "Instances",
    load: "Load",
    options: "tuple[Slo | None, int, list[str] | None, float]",
    forms: tuple[Output, Path | None, Path | None],
) -> None:
    from experiments.evaluate.serving_clients import Closed, Slo
    from experiments.output.progress import watching
    from experiments.questions.serving_rate import serving_rate

    slo, seeds, resources, factor = options
    assert not isinstance(load, Closed)  # noqa: S101 - refused before
    with watching("points") as watch:
        report = serving_rate(
            served_by,
            load,
            slo=slo or Slo(),
            seeds=seeds,
            resources=resources,
            factor=factor,
            watch=watch,
        )
    show(report, *forms)


def _show_sweep(
    served_by: "Instances",
    load: "Load",
    text: str,
    options: "tuple[Slo | None, int]",
    forms: tuple[Output, Path | None, Path | None],
) -> None:
    from experiments.output.progress import watching
    from experiments.questions.serving_sweep import serving_sweep

    varied, equals, values = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"--sweep {text!r}: write, for example, rate=1/s,2/s,4/s.")
    slo, seeds = options
    given = [value.strip() for value in values.split(",") if value.strip()]
    with watching("points") as watch:
        report = serving_sweep(
            served_by, load, varied.strip(), given, slo=slo, seeds=seeds, watch=watch
        )
    show(report, *forms)


def _form_and_tokens(output: list[str], tokens: int) -> tuple[Output, int]:
    """Tell a form from a number of tokens: clients of engines have ``--output`` for these."""
    form = Output.TABLE
    for value in output:
        if value.isdecimal() and len(value) < 10 and int(value) > 0:
            tokens = int(value)
        elif value in list(Output):
            form = Output(value)
        else:
            raise typer.BadParameter(
                f"--output {value!r} is neither one of {', '.join(Output)} nor a number of tokens."
            )
    return form, tokens


def is_deployment(trace: Path) -> bool:
    """Whether what stands for a trace is the file of a deployment."""
    if trace.suffix not in (".yaml", ".yml"):
        return False
    from experiments.evaluate.serving_plan import is_serving_plan

    return is_serving_plan(trace)


_SHOWN = ("trace", "cluster", "figure", "html", "output")
"""Options of questions about steps that those about a deployment have, too."""


def utility_of_deployment(
    ctx: typer.Context,
    file: Path,
    cluster: str | None,
    *,
    factor: float,
    resources: list[str] | None,
) -> None:
    """Say what a multiple of each resource would buy a deployment that a file has."""
    from experiments.evaluate.serving_plan import load_of, slo_of
    from experiments.output.progress import watching
    from experiments.questions.serving import serving as ask

    plan, served_by = _read(ctx, file, cluster, ("factor", "resource"))
    with watching("points") as watch:
        report = ask(
            served_by,
            load_of(plan),
            slo=slo_of(plan),
            seeds=plan.seeds,
            resources=resources,
            factor=factor,
            watch=watch,
        )
    show(report, *_forms(ctx))


def sweep_deployment(
    ctx: typer.Context, file: Path, cluster: str | None, resource: str, factors: list[float]
) -> None:
    """Say what requests see of a deployment at multiples of a resource."""
    plan, served_by = _read(ctx, file, cluster, ("resource", "factors"))
    _sweep(ctx, plan, served_by, resource, [f"{factor:g}" for factor in factors])


def compare_deployments(ctx: typer.Context, file: Path, clusters: list[str]) -> None:
    """Say what requests see of a deployment on several clusters."""
    plan, served_by = _read(ctx, file, clusters[0], ())
    _sweep(ctx, plan, served_by, "cluster", clusters)


def _read(
    ctx: typer.Context, file: Path, cluster: str | None, names: tuple[str, ...]
) -> "tuple[ServingPlan, Instances]":
    """Read a deployment, and refuse options that are of steps alone."""
    from experiments.evaluate.serving_plan import check_plan, instances_of, read_serving_plan

    if cluster is None:
        raise typer.BadParameter("Missing option '--cluster' / '-c'.")
    known = {*_SHOWN, *names}
    rest = [parameter.name or "" for parameter in ctx.command.params]
    refuse_given(ctx, [name for name in rest if name not in known], "on a deployment")
    check_figure(ctx.params.get("figure"))
    check_html(ctx.params.get("html"))
    plan = read_serving_plan(file)
    check_plan(plan)
    return plan, instances_of(plan, cluster)


def _sweep(
    ctx: typer.Context, plan: "ServingPlan", served_by: "Instances", varied: str, values: list[str]
) -> None:
    from experiments.evaluate.serving_plan import load_of, slo_of
    from experiments.output.progress import watching
    from experiments.questions.serving_sweep import serving_sweep

    with watching("points") as watch:
        report = serving_sweep(
            served_by,
            load_of(plan),
            varied,
            values,
            slo=slo_of(plan),
            seeds=plan.seeds,
            watch=watch,
        )
    show(report, *_forms(ctx))


def _forms(ctx: typer.Context) -> tuple[Output, Path | None, Path | None]:
    return ctx.params["output"], ctx.params.get("figure"), ctx.params.get("html")
