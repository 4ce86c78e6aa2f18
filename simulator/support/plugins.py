"""Extensions of other distributions by entry points: families, algorithms, trace formats, clusters.

A distribution declares them in its metadata (``[project.entry-points."twofold.topologies"]`` in
``pyproject.toml``). They are neither searched nor imported before a name is asked for that twofold
does not have: an unused plugin costs no time, and a broken one breaks nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from simulator.support.errors import PluginError, TwofoldError
from simulator.support.names import same_name

TOPOLOGIES, ALGORITHMS = "twofold.topologies", "twofold.algorithms"
TRACE_FORMATS, CLUSTERS = "twofold.formats", "twofold.clusters"
GROUPS = (TOPOLOGIES, ALGORITHMS, TRACE_FORMATS, CLUSTERS)
"""Groups of entry points."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point: its ``name`` in a group, its distribution, and its target."""

    group: str
    name: str
    distribution: str
    version: str
    target: str

    def __str__(self) -> str:
        """Name it as errors do."""
        return f"{self.distribution} {self.version}: {self.name} of {self.group}"


def plugins(group: str) -> tuple[Plugin, ...]:
    """List the entry points of a group in installed distributions, without importing them; by name.

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

    installed = {
        Plugin(group, point.name, point.dist.name, point.dist.version, point.value)
        if point.dist is not None
        else Plugin(group, point.name, "an unnamed distribution", "", point.value)
        for point in entry_points(group=group)
    }
    return tuple(sorted(installed, key=lambda plugin: (plugin.name, plugin.distribution)))


def plugin_named(group: str, name: str) -> Plugin | None:
    """Return the plugin whose name a text spells; None if there is none."""
    installed = plugins(group)
    spelt = same_name(name, dict.fromkeys(plugin.name for plugin in installed))
    matches = [plugin for plugin in installed if plugin.name == spelt]
    if len(matches) > 1:
        of = " and ".join(plugin.distribution for plugin in matches)
        raise PluginError(f"{spelt} of {group} is added by {of}: uninstall one of them")
    return matches[0] if matches else None


def load_plugin(plugin: Plugin, check: Callable[[object], Value]) -> Value:
    """Import the target of a plugin.

    Parameters
    ----------
    plugin
        One of those listed.
    check
        Returns the imported object as the required type; raises TwofoldError, ``TypeError`` or
        ``ValueError`` if it is not one.

    Raises
    ------
    PluginError
        If the import or the check fails: one line that names the distribution.
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
    """Return the names that distributions add to twofold's own.

    ``reserved`` are names of twofold itself, which no plugin can have.
    """
    names = dict.fromkeys(plugin.name for plugin in plugins(group))
    return tuple(name for name in names if name not in reserved)
