"""The command that serves requests: a deployment under a load, and what doubling would buy."""

import math
import re
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
    quantity,
)
from experiments.cli.show import check_figure, check_html, check_perfetto, say, show

if TYPE_CHECKING:
    from collections.abc import Iterable

    from experiments.evaluate.serving_fleets import Instances, Outage
    from experiments.evaluate.serving_instances import Deployment
    from experiments.questions.serving import Load, ServingReport, Slo

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
    max_tokens: Annotated[
        int | None, typer.Option(min=1, rich_help_panel=_ENGINE, help="Tokens of an iteration.")
    ] = None,
    max_sequences: Annotated[
        int | None, typer.Option(min=1, rich_help_panel=_ENGINE, help="Requests at once.")
    ] = None,
    blocks: Annotated[
        int | None, typer.Option(min=1, rich_help_panel=_ENGINE, help="Blocks of the cache.")
    ] = None,
    instances: Annotated[
        int, typer.Option(min=1, rich_help_panel=_POOLS, help="How many there are, all alike.")
    ] = 1,
    router: Annotated[
        str, typer.Option(**choice(_routers), rich_help_panel=_POOLS, help="Who gets a request.")
    ] = "least-load",
    prefix_cache: Annotated[
        bool, typer.Option(rich_help_panel=_POOLS, help="Keep prompts for those that begin alike.")
    ] = True,
    decode: Annotated[
        str | None,
        typer.Option(
            metavar="'N x tp 8, dp 2, ep 16 on CLUSTER'",
            rich_help_panel=_POOLS,
            help="Decode in a pool of N instances; degrees and accelerator as the others'.",
        ),
    ] = None,
    down: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'N from T to T'",
            rich_help_panel=_POOLS,
            help="When instance N is down: it failed, or starts later; may be repeated.",
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
        typer.Option(metavar="N/s", rich_help_panel=_LOAD, help="Requests a second, Poisson."),
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
        list[str] | None, typer.Option(help="Double these only; may be repeated.")
    ] = None,
    factor: Annotated[float, typer.Option(help="How much more of a resource.")] = 2.0,
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
            help="How to print the answer; or N: tokens made for each request.",
        ),
    ] = None,
) -> None:
    """Serve requests by a deployment: TTFT, TPOT, goodput, and what doubling would buy.

    Instances are simulated iteration by iteration, as their engine schedules them; prompts go to a
    pool that decodes over the cluster's network.
    """
    from experiments.evaluate.serving_fleets import Instances
    from experiments.output.progress import watching
    from experiments.questions import serving as questions

    check_figure(figure)
    check_html(html)
    check_perfetto(perfetto)
    form, output_tokens = _form_and_tokens(output or [], output_tokens)
    precisions = (weights, experts or weights, cache)
    where = (str(cluster), engine, engine_version)
    deployment = _deployment(model, where, (tp, dp, ep), precisions)
    deployment = _with_limits(deployment, max_tokens, max_sequences, blocks)
    decode_count, pool = 0, None
    if decode is not None:
        decode_count, degrees, machine = _pool(decode, (tp, dp, ep))
        pool = _deployment(
            model, (machine or str(cluster), engine, engine_version), degrees, precisions
        )
        pool = _with_limits(pool, max_tokens, max_sequences, blocks)
    served_by = Instances(
        deployment=deployment,
        count=instances,
        router=router,
        caches_prefixes=prefix_cache,
        decode=pool,
        decode_count=decode_count,
        outages=tuple(map(_outage, down or [])),
    )
    if _scales_rate(find, sweep, concurrency) and rate is None and requests is None:
        rate = "1/s"
    load = _load(requests, rate, concurrency, (input_tokens, output_tokens, count), client)
    if find is not None:
        _show_rate(served_by, load, (_slo(slo), seeds, resource, factor), (form, figure, html))
        return
    if sweep is not None:
        _show_sweep(served_by, load, sweep, (_slo(slo), seeds), (form, figure, html))
        return
    with watching("points") as watch:
        report = questions.serving(
            served_by,
            load,
            slo=_slo(slo),
            seeds=seeds,
            resources=resource,
            factor=factor,
            watch=watch,
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
    from experiments.evaluate.serving_clients import Closed
    from experiments.output.progress import watching
    from experiments.questions.serving import Slo
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
        raise typer.BadParameter(f"--sweep {text!r}: write such as rate=1/s,2/s,4/s.")
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
                f"--output {value!r} is none of {', '.join(Output)}, and no number of tokens."
            )
    return form, tokens


def _deployment(
    model: str,
    where: tuple[str, str, str],
    degrees: tuple[int, int, int],
    recipes: tuple[str, str, str],
) -> "Deployment":
    from experiments.evaluate.serving_instances import deployment_of

    cluster, engine, version = where
    return deployment_of(
        model, cluster, degrees=degrees, recipes=recipes, engine_name=engine, version=version
    )


def _pool(text: str, usual: tuple[int, int, int]) -> tuple[int, tuple[int, int, int], str]:
    """Read a pool that decodes: how many, degrees, and whose accelerators."""
    words = re.fullmatch(
        r"(\d{1,18})(?:\s*x\s*((?:(?:tp|dp|ep)\s*\d{1,18}[\s,]*)*))?(?:on\s+(\S+))?", text.strip()
    )
    if words is None:
        raise typer.BadParameter(f"--decode {text!r}: write such as '4 x tp 8, dp 2 on hgx-h200'.")
    degrees = dict(zip(("tp", "dp", "ep"), usual, strict=True))
    for name, count in re.findall(r"(tp|dp|ep)\s*(\d{1,18})", words[2] or ""):
        degrees[name] = int(count)
    if not min(int(words[1]), *degrees.values()):
        raise typer.BadParameter(f"--decode {text!r}: a pool has at least 1 of each.")
    return int(words[1]), (degrees["tp"], degrees["dp"], degrees["ep"]), words[3] or ""


def _outage(text: str) -> "Outage":
    from experiments.evaluate.serving_fleets import Outage
    from simulator.support.quantities import parse_quantity

    words = re.fullmatch(r"(\d{1,6})\s+from\s+(.+?)(?:\s+to\s+(.+))?", text.strip())
    if words is None:
        raise typer.BadParameter(f"--down {text!r}: write such as '2 from 10 s to 40 s'.")
    begin, end = (
        math.inf if time is None else parse_quantity(quantity("s")(time), "s")
        for time in words.groups()[1:]
    )
    return Outage(int(words[1]) - 1, begin, end)


def _with_limits(
    deployment: "Deployment", tokens: int | None, sequences: int | None, blocks: int | None
) -> "Deployment":
    from dataclasses import replace

    engine = deployment.engine
    engine = replace(
        engine, tokens=tokens or engine.tokens, sequences=sequences or engine.sequences
    )
    return replace(deployment, engine=engine, blocks=blocks)


def _load(
    requests: Path | None,
    rate: str | None,
    concurrency: int | None,
    sizes: tuple[int, int, int],
    client: str,
) -> "Load":
    from experiments.evaluate.serving_clients import Closed
    from traces.requests.generators import generate_requests
    from traces.requests.readers import read_requests

    loads = [option for option in (requests, rate, concurrency) if option is not None]
    if len(loads) != 1:
        raise typer.BadParameter("give one of --requests, --rate and --concurrency.")
    if client not in ("fixed", "inferencex"):
        raise typer.BadParameter(f"--client {client!r} is not fixed or inferencex.")
    spread = 0.8 if client == "inferencex" else 1.0
    prompt, output, count = sizes
    if requests is not None:
        return read_requests(requests)
    if concurrency is not None:
        return Closed(concurrency, prompt, output, spread=spread)
    per_second = _rate(rate or "")
    return lambda seed: generate_requests(
        count, per_second, prompt, output, seed=seed, spread=spread
    )


def _rate(text: str) -> float:
    number, _, unit = text.partition("/")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if unit.strip() not in ("s", "min") or not 0 < value < float("inf"):
        raise typer.BadParameter(f"--rate {text!r}: write requests per second, such as 10/s.")
    return value / (60.0 if unit.strip() == "min" else 1.0)


def _slo(text: str | None) -> "Slo | None":
    from experiments.questions.serving import Slo

    if text is None:
        return None
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, time = part.strip().partition(" ")
        if name not in ("ttft", "tpot"):
            raise typer.BadParameter(f"--slo {part.strip()!r}: write 'ttft 500 ms, tpot 50 ms'.")
        seconds = quantity("s")(time)
        from simulator.support.quantities import parse_quantity

        limits[name] = parse_quantity(seconds, "s")
        if not limits[name] > 0:
            raise typer.BadParameter(f"--slo {name}: {time} is never met.")
    return Slo(**limits)
