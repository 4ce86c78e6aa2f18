"""Large jobs generated in part: replicas that stand for all, and it is said so."""

from dataclasses import dataclass

from experiments.scenario import FOLDING, Scenario
from simulator.copies import check
from simulator.errors import WhatIfError
from topologies import Cluster
from traces.model_card import Model
from traces.parallelism import Parallelism
from traces.phases import Serving, Training
from traces.replicated import copies, fewest_replicas
from traces.roofline import Accelerator
from traces.synthetic import generate


@dataclass(frozen=True, slots=True)
class Step:
    """What is generated: arguments of :func:`traces.synthetic.generate`."""

    model: Model
    parallelism: Parallelism
    run: Training | Serving
    accelerator: Accelerator
    launch: float | None = None

    def scenario(self, cluster: Cluster, engine: str, replicas: int | None = None) -> Scenario:
        """Generate all ranks, or those of so many replicas."""
        workload = generate(
            self.model,
            self.parallelism,
            self.run,
            self.accelerator,
            launch=self.launch,
            replicas=replicas,
        )
        return Scenario(workload, cluster, engine)


def representatives(step: Step, cluster: Cluster, engine: str = "flow") -> tuple[Scenario, str]:
    """Generate the fewest ranks that have, on this cluster, the times of the whole job.

    Returns all of them where no fewer do; the text says how many stand for all, or why not. Times
    of the scenario's ops are those of the whole job, bytes on links those of its calls alone.

    Raises
    ------
    TwofoldError
        As :func:`traces.synthetic.generate` does; WhatIfError for an engine that cannot.
    """
    replicas, text = replicas_enough(step, cluster, engine)
    return step.scenario(cluster, engine, replicas), text


def replicas_enough(step: Step, cluster: Cluster, engine: str = "flow") -> tuple[int | None, str]:
    """How many data-parallel replicas stand for all on this cluster; None if all are needed.

    The text says how many ranks that is, or why nothing can be folded; errors as
    :func:`representatives`.
    """
    _check_engine(engine)
    parallelism = step.parallelism
    replicas = fewest_replicas(parallelism, cluster.ranks_per_node)
    if replicas is None or replicas == parallelism.dp:
        reason = "its replicas do not fill whole nodes" if replicas is None else "it is no larger"
        return None, f"nothing is folded: {reason}"
    scenario = step.scenario(cluster, engine, replicas)
    stands = copies(scenario.workload, parallelism, replicas)
    reason = check(scenario.workload, stands, scenario.topology(), scenario.planner())
    if reason:
        return None, f"nothing is folded: {reason}"
    return replicas, f"{len(scenario.workload.ranks)} of {parallelism.ranks} ranks stand for all"


def _check_engine(engine: str) -> None:
    if engine not in FOLDING:
        choices = " and ".join(FOLDING)
        raise WhatIfError(f"engine {engine!r} simulates every transfer; {choices} can fold")
