"""What other distributions add, and whether it can be used."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from experiments.provenance import Head
from experiments.question import question
from experiments.report import Report, Rows
from simulator.errors import PluginError, ScheduleError, TwofoldError
from simulator.plugins import (
    ALGORITHMS,
    CLUSTERS,
    GROUPS,
    TOPOLOGIES,
    TRACE_FORMATS,
    Plugin,
    load_plugin,
    plugin_named,
    plugins,
)


@dataclass(frozen=True, slots=True)
class PluginRow:
    """One entry point of a distribution; ``adds`` is what it can be named by once it is there.

    ``refused`` says why it cannot be used, "" if it can.
    """

    group: str
    name: str
    distribution: str
    version: str
    target: str
    adds: str
    refused: str


class PluginsAnswer(Head):
    """What installed distributions add, by group and name."""

    plugins: list[PluginRow]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PluginsReport(Report):
    """Entry points of all groups, each loaded to see that it can be."""

    schema: ClassVar[str] = "twofold/plugins/1"
    printed_by: ClassVar[str] = "experiments.output.tables.files:print_plugins"

    rows: tuple[PluginRow, ...]

    def answer(self) -> "PluginsAnswer":
        """Return the JSON answer."""
        return {**self.head(), "plugins": list(self.rows)}

    def summary(self) -> str:
        """Say the answer in a few words."""
        refused = sum(bool(row.refused) for row in self.rows)
        return f"{len(self.rows)} plugins, {refused} of them refused"

    def table(self) -> Rows:
        """Return the CSV answer."""
        return PluginRow, self.rows


@question("plugins")
def list_plugins() -> PluginsReport:
    """List what installed distributions add, and load each to see that it can be used.

    Returns
    -------
    PluginsReport
        One that is broken, or whose name is taken, is a row that says why.
    """
    found = [one for group in GROUPS for one in plugins(group)]
    return PluginsReport(tuple(_row(one) for one in found))


def _row(plugin: Plugin) -> PluginRow:
    adds, refused = plugin.name, ""
    try:
        plugin_named(plugin.group, plugin.name)
        adds = _ADDS[plugin.group](plugin)
    except TwofoldError as error:
        refused = str(error)
    return PluginRow(
        plugin.group,
        plugin.name,
        plugin.distribution,
        plugin.version,
        plugin.target,
        adds,
        refused,
    )


def _family(plugin: Plugin) -> str:
    from topologies.families.table import FAMILIES, as_family

    _check_free(plugin, FAMILIES)
    return f"{load_plugin(plugin, as_family).form}"


def _algorithm(plugin: Plugin) -> str:
    from collectives.added import as_algorithm, prove
    from collectives.libraries.rules import known

    kind, _, name = plugin.name.partition(".")
    try:
        _check_free(plugin, known(kind), name)
        prove(kind, load_plugin(plugin, as_algorithm))
    except ScheduleError as error:
        raise PluginError(f"{plugin} ({plugin.target}) cannot be used: {error}") from error
    return f"{kind}={name}"


def _format(plugin: Plugin) -> str:
    from traces.load import FORMATS, as_format

    _check_free(plugin, FORMATS)
    load_plugin(plugin, as_format)
    return plugin.name


def _clusters(plugin: Plugin) -> str:
    from topologies.cluster.catalog import added_clusters, load_cluster

    names = [name for name, one in added_clusters().items() if one.plugin == plugin]
    for name in names:
        load_cluster(name)
    return ", ".join(names)


_ADDS: dict[str, Callable[[Plugin], str]] = {
    TOPOLOGIES: _family,
    ALGORITHMS: _algorithm,
    TRACE_FORMATS: _format,
    CLUSTERS: _clusters,
}


def _check_free(plugin: Plugin, taken: object, name: str | None = None) -> None:
    """Refuse a name that is twofold's own: a plugin adds, it replaces nothing."""
    name = name or plugin.name
    if isinstance(taken, dict | tuple) and name in taken:
        raise PluginError(f"{plugin}: {name} is twofold's own: give it another name")
