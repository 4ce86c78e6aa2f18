"""What would doubling it buy us? What-ifs for distributed machine learning, from Python.

::

    import twofold as tf

    report = tf.utility("traces/samples/gpu-dp2-tp4", "dgx-a100", nodes=2)
    report                      # one line; in a notebook the table
    report.to_pandas()          # rows with their units; also to_json(), to_csv(), record()
    report.base.error           # how far the replay is from what was measured
    tf.sweep("traces/samples/gpu-dp2-tp4", "dgx-a100", "compute").figure()

Every question takes ``settings=tf.Settings(...)`` or the settings one by one as keywords. Whatever
is wrong with an input is a :class:`tf.errors.TwofoldError` of one clear line.

Names are loaded when they are first used, so that ``import twofold`` takes no time. The command
line is ``python -m twofold``, too.
"""

from importlib import import_module

TYPE_CHECKING = False
"""Type checkers take it to be true; importing ``typing`` for it would take most of the time."""
if TYPE_CHECKING:
    from experiments.baseline import Baseline as Baseline
    from experiments.baseline import baseline as baseline
    from experiments.evaluate.design_points import DesignPoints as DesignPoints
    from experiments.evaluate.design_points import grid as grid
    from experiments.evaluate.design_points import steps_at as steps
    from experiments.explore.explore import explore as explore
    from experiments.points.compare import compare as compare
    from experiments.points.sweep import curve as curve
    from experiments.points.sweep import sweep as sweep
    from experiments.points.utility import utility as utility
    from experiments.points.what_if import what_ifs as what_if
    from experiments.questions.calibrate import calibrate as calibrate
    from experiments.questions.calibrate import calibrate_logs as calibrate_logs
    from experiments.questions.calibrate import calibrate_steps as calibrate_steps
    from experiments.questions.clusters import bill as bill
    from experiments.questions.clusters import clusters as clusters
    from experiments.questions.clusters import list_plugins as plugins
    from experiments.questions.collective import collective as collective
    from experiments.questions.collective_calls import collective_calls as collective_calls
    from experiments.questions.collective_compare import collective_compare as collective_compare
    from experiments.questions.convert import convert as convert
    from experiments.questions.convert import package as package
    from experiments.questions.diff import diff as diff
    from experiments.questions.explain import explain as explain
    from experiments.questions.explain import replay as replay
    from experiments.questions.generate import generate as generate
    from experiments.questions.generate import launch_file as launch_file
    from experiments.questions.generate import memory as memory
    from experiments.questions.generate import plan_on as plan_on
    from experiments.questions.generate import write_plan as write_plan
    from experiments.questions.inspect_trace import look as inspect
    from experiments.questions.metrics import metrics as metrics
    from experiments.questions.serving import serving as serving
    from experiments.questions.serving_points import serving_rate as serving_rate
    from experiments.questions.serving_points import serving_sweep as serving_sweep
    from experiments.questions.share import share as share
    from experiments.questions.topology import topology as topology
    from experiments.questions.validation.ratios import validate_ratios as validate_ratios
    from experiments.questions.validation.recordings import validate as validate
    from experiments.questions.validation.serving import validate_serving as validate_serving
    from experiments.questions.validation.serving import (
        validate_serving_log as validate_serving_log,
    )
    from experiments.questions.validation.steps import validate_steps as validate_steps
    from experiments.scenario.scenario import Scenario as Scenario
    from experiments.settings import Settings as Settings
    from experiments.studies.atlas.atlas import atlas as atlas
    from experiments.studies.cache import cache as cache
    from experiments.studies.report import report as report
    from experiments.studies.study import study as study
    from simulator.builder import WorkloadBuilder as WorkloadBuilder
    from simulator.engine.simulate import simulate as simulate
    from simulator.schedule import Plan as Plan
    from simulator.schedule import Schedule as Schedule
    from simulator.support import errors as errors
    from simulator.timeline import Timeline as Timeline
    from simulator.topology import Link as Link
    from simulator.topology import Topology as Topology
    from simulator.workload import What as What
    from simulator.workload import Workload as Workload
    from topologies.cluster.catalog import load_cluster as load_cluster
    from topologies.cluster.catalog import parse_cluster as parse_cluster
    from topologies.cluster.schema import Cluster as Cluster
    from topologies.spec import parse_topology as parse_topology
    from traces.card.package import load_package as load
    from traces.generate.model import Model as Model
    from traces.generate.parallelism import Parallelism as Parallelism
    from traces.generate.plan import GenerationPlan as GenerationPlan
    from traces.generate.run import Serving as Serving
    from traces.generate.run import Training as Training

    __version__: str

_QUESTIONS = "experiments.questions"
_PLACES = {
    "load": "traces.card.package:load_package",
    "inspect": f"{_QUESTIONS}.inspect_trace:look",
    "utility": "experiments.points.utility:utility",
    "sweep": "experiments.points.sweep:sweep",
    "curve": "experiments.points.sweep:curve",
    "compare": "experiments.points.compare:compare",
    "what_if": "experiments.points.what_if:what_ifs",
    "replay": f"{_QUESTIONS}.explain:replay",
    "explain": f"{_QUESTIONS}.explain:explain",
    "explore": "experiments.explore.explore:explore",
    "diff": f"{_QUESTIONS}.diff:diff",
    "metrics": f"{_QUESTIONS}.metrics:metrics",
    "share": f"{_QUESTIONS}.share:share",
    "study": "experiments.studies.study:study",
    "atlas": "experiments.studies.atlas.atlas:atlas",
    "report": "experiments.studies.report:report",
    "cache": "experiments.studies.cache:cache",
    "calibrate": f"{_QUESTIONS}.calibrate:calibrate",
    "calibrate_logs": f"{_QUESTIONS}.calibrate:calibrate_logs",
    "calibrate_steps": f"{_QUESTIONS}.calibrate:calibrate_steps",
    "validate": f"{_QUESTIONS}.validation.recordings:validate",
    "validate_serving": f"{_QUESTIONS}.validation.serving:validate_serving",
    "validate_serving_log": f"{_QUESTIONS}.validation.serving:validate_serving_log",
    "validate_ratios": f"{_QUESTIONS}.validation.ratios:validate_ratios",
    "validate_steps": f"{_QUESTIONS}.validation.steps:validate_steps",
    "serving": f"{_QUESTIONS}.serving:serving",
    "serving_rate": f"{_QUESTIONS}.serving_points:serving_rate",
    "serving_sweep": f"{_QUESTIONS}.serving_points:serving_sweep",
    "convert": f"{_QUESTIONS}.convert:convert",
    "package": f"{_QUESTIONS}.convert:package",
    "plugins": f"{_QUESTIONS}.clusters:list_plugins",
    "generate": f"{_QUESTIONS}.generate:generate",
    "plan_on": f"{_QUESTIONS}.generate:plan_on",
    "write_plan": f"{_QUESTIONS}.generate:write_plan",
    "memory": f"{_QUESTIONS}.generate:memory",
    "launch_file": f"{_QUESTIONS}.generate:launch_file",
    "GenerationPlan": "traces.generate.plan:GenerationPlan",
    "clusters": f"{_QUESTIONS}.clusters:clusters",
    "bill": f"{_QUESTIONS}.clusters:bill",
    "collective": f"{_QUESTIONS}.collective:collective",
    "collective_calls": f"{_QUESTIONS}.collective_calls:collective_calls",
    "collective_compare": f"{_QUESTIONS}.collective_compare:collective_compare",
    "topology": f"{_QUESTIONS}.topology:topology",
    "baseline": "experiments.baseline:baseline",
    "grid": "experiments.evaluate.design_points:grid",
    "steps": "experiments.evaluate.design_points:steps_at",
    "DesignPoints": "experiments.evaluate.design_points:DesignPoints",
    "Settings": "experiments.settings:Settings",
    "Baseline": "experiments.baseline:Baseline",
    "Scenario": "experiments.scenario.scenario:Scenario",
    "Cluster": "topologies.cluster.schema:Cluster",
    "load_cluster": "topologies.cluster.catalog:load_cluster",
    "parse_cluster": "topologies.cluster.catalog:parse_cluster",
    "Topology": "simulator.topology:Topology",
    "Link": "simulator.topology:Link",
    "parse_topology": "topologies.spec:parse_topology",
    "Workload": "simulator.workload:Workload",
    "WorkloadBuilder": "simulator.builder:WorkloadBuilder",
    "What": "simulator.workload:What",
    "simulate": "simulator.engine.simulate:simulate",
    "Timeline": "simulator.timeline:Timeline",
    "Schedule": "simulator.schedule:Schedule",
    "Plan": "simulator.schedule:Plan",
    "Model": "traces.generate.model:Model",
    "Parallelism": "traces.generate.parallelism:Parallelism",
    "Training": "traces.generate.run:Training",
    "Serving": "traces.generate.run:Serving",
    "errors": "simulator.support.errors:",
    "__version__": "experiments.provenance:version",
}
"""Where each name is, as ``module:name``; the imports above say the same to type checkers."""

__all__ = [
    "Baseline",
    "Cluster",
    "DesignPoints",
    "GenerationPlan",
    "Link",
    "Model",
    "Parallelism",
    "Plan",
    "Scenario",
    "Schedule",
    "Serving",
    "Settings",
    "Timeline",
    "Topology",
    "Training",
    "What",
    "Workload",
    "WorkloadBuilder",
    "__version__",
    "atlas",
    "baseline",
    "bill",
    "cache",
    "calibrate",
    "calibrate_logs",
    "calibrate_steps",
    "clusters",
    "collective",
    "collective_calls",
    "collective_compare",
    "compare",
    "convert",
    "curve",
    "diff",
    "errors",
    "explain",
    "explore",
    "generate",
    "grid",
    "inspect",
    "launch_file",
    "load",
    "load_cluster",
    "memory",
    "metrics",
    "package",
    "parse_cluster",
    "parse_topology",
    "plan_on",
    "plugins",
    "replay",
    "report",
    "serving",
    "serving_rate",
    "serving_sweep",
    "share",
    "simulate",
    "steps",
    "study",
    "sweep",
    "topology",
    "utility",
    "validate",
    "validate_ratios",
    "validate_serving",
    "validate_serving_log",
    "validate_steps",
    "what_if",
    "write_plan",
]


def _loaded(name: str) -> object:
    """Import a name when it is first used, and keep it (PEP 562)."""
    if name not in _PLACES:
        from difflib import get_close_matches

        near = get_close_matches(name, _PLACES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    module, _, inner = _PLACES[name].partition(":")
    try:
        value: object = import_module(module)
    except ImportError as error:
        raise ImportError(_foreign_package() or str(error)) from error
    if inner:
        value = getattr(value, inner)
    if name == "__version__":
        value = import_module(module).version()
    if callable(value) and not isinstance(value, type) and not hasattr(value, "__wrapped__"):
        value = import_module("experiments.report").typed(name, value)
    globals()[name] = value
    return value


def _foreign_package() -> str:
    """Say which package of another project is imported in place of ours; "" if none is."""
    from importlib.util import find_spec
    from pathlib import Path

    for package in ("simulator", "topologies", "collectives", "traces", "experiments"):
        spec = find_spec(package)
        origin = "missing" if spec is None else spec.origin or str(spec.submodule_search_locations)
        if Path(origin).parent.parent != Path(__file__).parents[1]:
            return (
                f"the package {package!r} comes from {origin} and hides twofold's own: rename it, "
                "run python with -P, or run it in another directory"
            )
    return ""


if not TYPE_CHECKING:
    __getattr__ = _loaded  # hidden from type checkers, which would believe any name


def __dir__() -> list[str]:
    """List what is there, loaded or not."""
    return sorted(_PLACES)


def main() -> None:
    """Run the command line, which ends with one line if another project's package is in its way."""
    import os

    try:
        from experiments.cli.main import main as answer

        answer()
    except ImportError as error:
        if os.environ.get("TWOFOLD_TRACEBACK"):
            raise
        raise SystemExit(f"error: {_foreign_package() or error}") from error
    except KeyboardInterrupt:  # before a command began, or beneath it
        import sys

        sys.stderr.write("interrupted: there is no complete answer\n")
        raise SystemExit(130) from None
