"""Upper bounds on utilities, of a scenario alone."""

from dataclasses import replace

from experiments.evaluate.design_points import DesignPoints
from experiments.intervals.interval import bounds
from experiments.scenario.resources import better, check_resource, check_resources, every_resource


def most_utility(base, *, factor=2.0, resources=()):
    """Upper bound on the utility of each resource (% of the simulated step).

    Resources of which the cluster has none, or cannot have ``factor`` times as much, are left out.
    """
    names = tuple(map(check_resource, resources)) or every_resource(base.cluster)
    check_resources(names, base.cluster)
    changes = {name: better(name, factor) for name in names}
    costed = DesignPoints(replace(base, slow_down=0.0)).ask(changes)
    changed = {name: change.apply(costed.design.base).scenario for name, change in changes.items()}
    return bounds(base.run().makespan, costed, dict.fromkeys(changes, base.engine), changed)
