"""What other distributions add: families, algorithms, trace formats and clusters, by entry points.

A distribution names what it adds in its metadata (``[project.entry-points."twofold.topologies"]``
in ``pyproject.toml``), and nothing of it is looked for, let alone imported, before a name is asked
for that nobody here has: what is not used costs no time, and what is broken breaks nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from simulator.support.errors import PluginError, TwofoldError
from simulator.support.names import same_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

TOPOLOGIES, ALGORITHMS = "twofold.topologies", "twofold.algorithms"
TRACE_FORMATS, CLUSTERS = "twofold.formats", "twofold.clusters"
GROUPS = (TOPOLOGIES, ALGORITHMS, TRACE_FORMATS, CLUSTERS)
"""Groups of entry points that are read."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point: its ``name`` in a group, the distribution it is of, and where it points."""

    group: str
    name: str
    distribution: str
    version: str
    target: str

    def __str__(self) -> str:
        """Say it as errors do."""
        return f"{self.distribution} {self.version}: {self.name} of {self.group}"


def plugins(group: str) -> tuple[Plugin, ...]:
    """List what installed distributions add to a group, without importing any of it.

    Parameters
    ----------
    group
        One of :data:`GROUPS`.

    Returns
    -------
    tuple of Plugin
        By name, then by distribution.

    Examples
    --------
    >>> plugins("twofold.nothing")
    ()
    """
    import sys

    return _listed(group, tuple(sys.path))


@lru_cache(maxsize=32)
def _listed(group: str, path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Read the metadata of all that is on the path, once for each path."""
    del path
    from importlib.metadata import entry_points

    installed = {_plugin(group, point) for point in entry_points(group=group)}
    return tuple(sorted(installed, key=lambda plugin: (plugin.name, plugin.distribution)))


def _plugin(group: str, point: "EntryPoint") -> Plugin:
    of = point.dist
    distribution = (of.name, of.version) if of is not None else ("an unnamed distribution", "")
    return Plugin(group, point.name, *distribution, point.value)


def plugin_named(group: str, name: str) -> Plugin | None:
    """Find the one that a name spells; None if none does.

    Raises
    ------
    PluginError
        If two distributions use the name.
    """
    installed = plugins(group)
    spelt = same_name(name, dict.fromkeys(plugin.name for plugin in installed))
    matches = [plugin for plugin in installed if plugin.name == spelt]
    if len(matches) > 1:
        of = " and ".join(plugin.distribution for plugin in matches)
        raise PluginError(f"{spelt} of {group} is added by {of}: uninstall one of them")
    return matches[0] if matches else None


def load_plugin(plugin: Plugin, check: Callable[[object], Value]) -> Value:
    """Import what a plugin points to.

    Parameters
    ----------
    plugin
        One of those listed.
    check
        Returns what was imported as what it has to be; raises TwofoldError, ``TypeError`` or
        ``ValueError`` if it is not.

    Returns
    -------
    Value
        What ``check`` returns.

    Raises
    ------
    PluginError
        If it cannot be imported or is not what it has to be: one line with the distribution.
    """
    from importlib.metadata import EntryPoint  # slow to load, and few have plugins

    try:
        loaded = EntryPoint(plugin.name, plugin.target, plugin.group).load()
    except Exception as error:  # whatever a stranger's module does when it is imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PluginError(f"{plugin} ({plugin.target}) cannot be imported: {reason}") from error
    try:
        return check(loaded)
    except (TwofoldError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise PluginError(f"{plugin} ({plugin.target}) cannot be used: {reason}") from error


def names_added(group: str, reserved: Sequence[str] = ()) -> tuple[str, ...]:
    """Names that distributions add to those that are there already.

    Parameters
    ----------
    group
        One of :data:`GROUPS`.
    reserved
        Names of twofold itself, which nobody else's can have.
    """
    names = dict.fromkeys(plugin.name for plugin in plugins(group))
    return tuple(name for name in names if name not in reserved)
