"""A workload on a network, as what an analytic pass takes and the engine it must agree with."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from helpers.strategies import plan
from simulator.analytic.longest_path import Points
from simulator.engine.simulate import Costs, simulate
from simulator.workload import What

OF_OPS = (What.HOST, What.COMPUTE, What.COPY)
"""Parts that every step has; the bus is a part of some only."""
factors = st.sampled_from([0.0, 0.25, 1.0, 1.0, 2.0, 7.3])
scales = st.fixed_dictionaries(dict.fromkeys(OF_OPS, factors))


def points(workload, network, scale=None, *, planner=plan):
    """One scenario: each call has a row of its own."""
    costs = Costs(network, planner)
    calls = range(len(workload.calls))
    idle = np.array([costs.idle_time(workload.call_view(call)) for call in calls])
    speed = {part: np.array([value]) for part, value in (scale or {}).items()}
    rows = np.arange(len(idle))
    return Points(idle.reshape(-1, 1), rows, workload.calls.factor, speed)


def scaled(workload, scale):
    """The workload with the parts of its local time multiplied, as what-ifs do it."""
    by = np.ones(len(What))
    for part, value in scale.items():
        by[part] = value
    edges = workload.edges
    host = workload.what[edges.source] == What.HOST
    lag = np.where(host, edges.lag * by[What.HOST], edges.lag)
    return replace(
        workload, duration=workload.duration * by[workload.what], edges=replace(edges, lag=lag)
    )


def timeline(workload, network, *, planner=plan, engine="analytic"):
    return simulate(workload, network, planner, engine=engine)
