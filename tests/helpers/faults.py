"""Networks with one cable slower or gone."""

from topologies import Fault, LinkNamed, broken


def slow(network, name, *, factor):
    """A network on which one cable, named by its ends, has this part of its bandwidth."""
    return broken(network, [Fault(LinkNamed(name), 1 / factor)]).network


def cut(network, *names):
    """A network without cables."""
    return broken(network, [Fault(LinkNamed(name), None) for name in names]).network
