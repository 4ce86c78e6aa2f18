"""The command that serves requests: a deployment under a load, and what doubling would buy."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli.options import (
    Cluster,
    Factor,
    Options,
    Output,
    choice,
    completed,
    in_panel,
    models,
    names_in,
    option,
    refuse_given,
    with_files,
    with_options,
)
from experiments.cli.show import show
from experiments.output.progress import watching

if TYPE_CHECKING:
    from experiments.evaluate.serving_fleets import Instances
    from experiments.evaluate.serving_plan import ServingPlan

_of_engine = in_panel("Engine")
_of_instances = in_panel("Instances")
_of_load = in_panel("Load")


_DEPLOYMENT: Options = {
    "tp": option(int, "Tensor-parallel ranks of attention.", default=1, min=1),
    "cp": _of_engine(int, "Ranks that share the tokens of each prompt.", default=1, min=1),
    "dp": option(int, "Data-parallel ranks of attention.", default=1, min=1),
    "ep": option(int, "Ranks over which experts are spread.", default=1, min=1),
    "pp": option(int, "Pipeline stages.", default=1, min=1),
    "dcp": _of_engine(
        int, "Tensor ranks that share the KV cache of each context.", default=1, min=1
    ),
    "weights": option(str, "Precision of the weights: bf16, fp8, nvfp4.", default="bf16"),
    "experts": _of_engine(str, "Precision of the experts.", show_default="as weights"),
    "cache": _of_engine(str, "Precision of the KV cache: bf16 or fp8.", default="bf16"),
    "engine": _of_engine(
        str,
        "Serving engine.",
        default="vllm",
        **choice(names_in("simulator.serving.engines:engine_names")),
    ),
    "version": _of_engine(
        str, "Such as 0.19.0.", "--engine-version", default="", show_default="newest"
    ),
    "speculation": _of_engine(
        str,
        "Speculative decoding: method (mtp, ngram, draft MODEL), drafts, tokens per step.",
        metavar="'mtp 3 accepts 2.5'",
    ),
    "adapters": _of_engine(
        str, "LoRA adapters; each request uses a random one.", metavar="'8 of rank 16'"
    ),
    "max_loras": _of_engine(
        int, "Most adapters on an accelerator; others wait in host memory.", min=1
    ),
    "encoder": _of_engine(
        str,
        "What encodes each request's images, by the instances or on accelerators of its own.",
        metavar="'vit-l-16, N images of N patches[, on N]'",
    ),
    "expert_imbalance": _of_engine(
        str,
        "How unevenly tokens choose experts: busiest rank over mean (1.5), zipf:1.2, or a CSV file"
        " with layer, expert, tokens.",
        show_default="as in the kernels' tables",
    ),
    "kernels_from": _of_engine(
        Path,
        "Kernel times of your own machine: a CSV with kernel, shape, seconds, a profile, a log.",
    ),
    "policy": _of_engine(
        str,
        "Which waiting request goes first: the earliest, the most urgent, or the one whose SLO can"
        " still be met.",
        default="fcfs",
        **choice(lambda: ("fcfs", "priority", "slo")),
    ),
    "max_tokens": _of_engine(int, "Most tokens per iteration.", min=1),
    "max_sequences": _of_engine(int, "Most concurrent requests.", min=1),
    "blocks": _of_engine(int, "Blocks of the KV cache.", min=1),
    "instances": _of_instances(int, "How many identical instances there are.", default=1, min=1),
    "router": _of_instances(
        str,
        "Which instance gets a request.",
        default="least-load",
        **choice(names_in("simulator.serving.loop:ROUTERS")),
    ),
    "prefix_cache": _of_instances(
        bool, "Reuse the KV cache of prompts that begin with the same tokens.", default=True
    ),
    "scale": _of_instances(
        str,
        "Scale from N instances up to all, by the requests on each.",
        metavar="'from N at N requests, T to start'",
    ),
    "host_cache": _of_instances(
        str,
        "Host memory per accelerator for prompts evicted from the KV cache; or one store of all.",
        metavar="'100 GB [shared]'",
    ),
    "decode": _of_instances(
        str,
        "Decode in a separate pool of N instances, by default like the others.",
        metavar="'N x tp 8, dp 2, ep 16, dcp 4 on CLUSTER'",
    ),
    "kv_transfer": _of_instances(
        str,
        "Send caches to that pool whole, or each layer once it is computed.",
        default="whole",
        **choice(lambda: ("whole", "layerwise")),
    ),
    "down": _of_instances(
        list[str],
        "When instance N is down, because it failed or starts later; may be repeated.",
        metavar="'N from T to T'",
    ),
    "beside": _of_instances(
        list[Path],
        "The file of another model's deployment on the same cluster, or on the same accelerators,"
        " with a part of their memory; or a trace or plan of a training step that repeats on the"
        " same network; may be repeated.",
        metavar="'FILE [shared [0.3]|training [from rank N]]'",
    ),
    "find": _of_load(str, "Find the rate at which the SLO is just met.", metavar="rate"),
    "sweep": _of_load(
        str,
        "Values of rate, concurrency, cluster, tp, pp, instances or a resource; with --resource,"
        " what that buys at each.",
        metavar="NAME=V1,V2",
    ),
    "requests": _of_load(
        Path,
        "A request trace: of Azure, Vidur, BurstGPT, Mooncake, LLMServingSim or vLLM; with --rate"
        " or --concurrency at other times than its own.",
    ),
    "rate": _of_load(str, "Requests per second (Poisson), or 2/s to 20/s.", metavar="N/s"),
    "concurrency": _of_load(int, "Requests in flight, a closed loop.", min=1),
    "input": _of_load(int, "Tokens of a prompt.", "--input", default=1024, min=1),
    "output_tokens": _of_load(
        int, "Output tokens of a request.", "--output-tokens", default=256, min=1
    ),
    "count": _of_load(
        int, "How many requests.", "--requests-count", show_default="500; 10 x concurrency", min=2
    ),
    "client": _of_load(
        str,
        "fixed: all have these lengths; inferencex: 0.8 to 1.0 of them; or a spread.",
        default="fixed",
    ),
    "slo": option(str, "Latencies that count as good.", metavar="'ttft 500 ms, tpot 50 ms'"),
    "seeds": _of_load(int, "Runs with other seeds, for intervals.", default=5, min=1),
}


@with_options(_DEPLOYMENT, before="resource")
@with_files("figure", "html", "perfetto")
def serving(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", autocompletion=completed(models), help="A model card or config.json."
        ),
    ],
    *,
    cluster: Cluster,
    resource: Annotated[
        list[str] | None,
        typer.Option("--resource", "-r", help="Double only this resource; may be repeated."),
    ] = None,
    factor: Factor = 2.0,
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
    """Serve requests on a deployment: TTFT, TPOT, goodput, and what doubling would buy.

    Instances are simulated iteration by iteration, as their engine schedules them. With --decode,
    KV caches cross the cluster's network to a second pool.
    """
    from experiments.evaluate.serving_plan import check_plan, instances_of
    from simulator.support.errors import WorkloadError

    form, tokens = _form_and_tokens(output or [], ctx.params["output_tokens"])
    plan = _plan_of(ctx, model, tokens)
    if ctx.params["sweep"] is not None and not resource:
        refuse_given(ctx, ["factor"], "with --sweep but without --resource")
    try:
        check_plan(plan)
    except WorkloadError as error:
        raise typer.BadParameter(f"{error}.") from error
    if ctx.params["find"] or ctx.params["sweep"]:
        refuse_given(ctx, ("perfetto",), "with --find or --sweep: one run has a timeline")
    served_by = instances_of(plan, str(cluster))
    if ctx.params["find"] is not None:
        report = _ask("serving_rate", plan, served_by, resources=resource, factor=factor)
    elif (sweep := ctx.params["sweep"]) is not None:
        varied, equals, values = sweep.partition("=")
        if not equals:
            raise typer.BadParameter(f"--sweep {sweep!r}: write, for example, rate=1/s,2/s,4/s.")
        given = [value.strip() for value in values.split(",") if value.strip()]
        about = {"resources": resource or (), "factor": factor}
        report = _ask("serving_sweep", plan, served_by, varied.strip(), given, **about)
    else:
        report = _ask("serving", plan, served_by, resources=resource, factor=factor)
    show(report, form)


def _plan_of(ctx: typer.Context, model: str, tokens: int) -> "ServingPlan":
    """Return the deployment and load that options describe, with so many output tokens."""
    from experiments.evaluate.serving_plan import serving_plan

    fields = {name: ctx.params[name] for name in _DEPLOYMENT if name not in _NOT_OF_PLANS}
    find, sweep, concurrency = (ctx.params[name] for name in ("find", "sweep", "concurrency"))
    if find not in (None, "rate"):
        raise typer.BadParameter(f"--find {find!r} is not rate.")
    if find is not None and concurrency is not None:
        raise typer.BadParameter("--find rate needs an open loop: leave out --concurrency.")
    if find is not None and sweep is not None:
        raise typer.BadParameter("give one of --find and --sweep.")
    requests = fields["requests"]
    if requests is not None and str(requests).isdecimal() and not requests.exists():
        raise typer.BadParameter(
            f"--requests {requests}: no such file; their number is --requests-count {requests}."
        )
    varied = (sweep or "").partition("=")[0].strip() if find is None else "rate"
    if varied in ("tp", "pp", "instances", "concurrency"):  # a rate has a shape that stays
        refuse_given(ctx, (varied,), f"with --sweep {varied}")
    if fields["rate"] is None and concurrency is None:
        # What is found or swept takes the place of these.
        if varied == "concurrency":
            fields["concurrency"] = 1
        elif varied == "rate" and fields["requests"] is None:
            fields["rate"] = "1/s"
    fields["down"] = tuple(fields["down"] or ())
    fields["beside"] = tuple(map(str, fields["beside"] or ()))
    return serving_plan(model=model, output=tokens, **fields)


_NOT_OF_PLANS = ("find", "sweep", "output_tokens")
"""Options that are no fields of a plan by these names."""


def _ask(
    question: str,
    plan: "ServingPlan",
    served_by: "Instances",
    *arguments: object,
    **options: object,
) -> Any:
    """Ask a question of this name about a plan's load on what serves it."""
    from experiments.evaluate.serving_plan import load_of, slo_of
    from experiments.questions import serving, serving_points

    ask: Any = getattr(serving_points, question, serving.serving)
    load, about = load_of(plan), {"slo": slo_of(plan), "seeds": plan.seeds}
    with watching("points") as watch:
        return ask(served_by, load, *arguments, **about, **options, watch=watch)


def _form_and_tokens(output: list[str], tokens: int) -> tuple[Output, int]:
    """Tell a form from a number of tokens: clients of engines have ``--output`` for these."""
    from simulator.support.quantities import count_of

    form = Output.TABLE
    for value in output:
        if number := count_of(value):
            tokens = number
        elif value in list(Output):
            form = Output(value)
        else:
            raise typer.BadParameter(
                f"--output {value!r} is neither one of {', '.join(Output)} nor a number of tokens."
            )
    return form, tokens


_SHOWN = ("trace", "cluster", "write", "figure", "html", "output")
"""Options of questions about steps that those about a deployment have, too."""


def ask_of_deployment(
    ctx: typer.Context,
    cluster: str | None,
    question: str,
    *arguments: object,
    also: tuple[str, ...],
    **options: object,
) -> None:
    """Ask a question about the deployment that a command's trace is the file of.

    Options of steps alone are refused, but not those that the question has ``also``.
    """
    from experiments.evaluate.serving_plan import check_plan, instances_of, read_serving_plan

    if cluster is None:
        raise typer.BadParameter("Missing option '--cluster' / '-c'.")
    names = [parameter.name or "" for parameter in ctx.command.params]
    refuse_given(ctx, [name for name in names if name not in _SHOWN + also], "on a deployment")
    plan = read_serving_plan(ctx.params["trace"])
    check_plan(plan)
    report = _ask(question, plan, instances_of(plan, cluster), *arguments, **options)
    show(report, ctx.params["output"])
