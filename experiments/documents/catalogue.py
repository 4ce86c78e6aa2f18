"""Documents of the catalogue, bills and plugins, which need no trace and no simulation."""

from typing import TYPE_CHECKING

from experiments.output.document import Document, Row, Section, Table, Trust
from experiments.output.words import plural, say_time
from simulator.support.quantities import format_quantity

if TYPE_CHECKING:
    from experiments.questions.clusters import BillReport, ClustersReport, PluginsReport


def clusters(report: "ClustersReport") -> Document:
    """List the catalogue, or one cluster's numbers with their sources, or its links."""
    if report.ranks:
        return _links(report)
    if report.quantities:
        cluster = report.clusters[0]
        rows = [
            Row((quantity.quantity, str(quantity), quantity.source))
            for quantity in report.quantities
        ]
        table = Table(("quantity", ">value", "|source"), rows)
        return Document(
            title=f"Cluster: {cluster.cluster}",
            headline=f"{cluster.cluster}: {cluster.network}.",
            cause=cluster.description,
            sections=(Section("quantities", "Quantities", [table], wide=True),),
            next_steps=(f"twofold clusters {cluster.cluster} --links",),
        )
    rows = [
        Row(
            (
                quantity.cluster,
                quantity.accelerator,
                str(quantity.ranks_per_node),
                str(quantity.nodes),
                quantity.network,
            )
        )
        for quantity in report.clusters
    ]
    columns = ("cluster", "accelerator", ">ranks\nper node", ">nodes", "|network")
    return Document(
        title="Clusters: the catalogue",
        headline=f"{plural(len(rows), 'cluster')} in the catalogue"
        + (f" with {report.accelerator}." if report.accelerator else "."),
        sections=(Section("clusters", "Clusters", [Table(columns, rows)], wide=True),),
        next_steps=("twofold clusters NAME", "twofold clusters NAME --links"),
    )


def _links(report: "ClustersReport") -> Document:
    """List the links of a cluster by sort, each sort with its first and last name."""
    sorts: dict[tuple[str, str, float | None, float], list[str]] = {}
    for link in report.links:
        key = link.sort, link.resource, link.bandwidth, link.latency
        sorts.setdefault(key, []).append(link.link)
    rows = []
    for (_, resource, bandwidth, latency), names in sorts.items():
        ends = names if len(names) == 1 else [names[0], names[-1]]
        speed = "unlimited" if bandwidth is None else format_quantity(bandwidth, "B/s")
        cells = " … ".join(ends), f"{len(names):,}", resource, speed, say_time(latency)
        rows.append(Row(cells))
    foot = (
        "a link is a cable, both directions; bandwidth: payload in one direction; -o csv and"
        " -o json list every link"
    )
    columns = ("|links", ">count", "resource", ">bandwidth", ">latency")
    name, first = report.clusters[0].cluster, report.links[0].link
    return Document(
        title=f"Links of {name} for {report.ranks:,} ranks",
        headline=f"{name} has {plural(len(report.links), 'link')} for {report.ranks:,} ranks.",
        sections=(Section("links", "Links", [Table(columns, rows, foot=foot)], wide=True),),
        next_steps=(f"twofold what-if TRACE -c {name} 'link {first} x0.5'",),
    )


def bill(report: "BillReport") -> Document:
    """List the parts of a job's share of a cluster, with their cost and power."""
    bill, cost, spread = report.bill, report.cost_usd, report.cost_spread_usd
    idle, active = report.idle_w, report.active_w
    where = f"{report.ranks:,} ranks on {plural(report.nodes, 'node')}"
    sentences = []
    if cost is not None and spread is not None:
        sentences.append(f"cost {_money(cost)} ± {_money(spread)}")
    if active is not None:
        sentences.append(f"draw {format_quantity(active, 'W')}")
    headline = f"{where[0].upper()}{where[1:]} of {report.cluster.name}"
    headline += (
        f" {' and '.join(sentences)}." if sentences else ": no price and no power is published."
    )
    missing = f"no published {', '.join(bill.missing)}: add it to the cluster file"
    power = ""
    if idle is not None and active is not None:
        watts = f"{format_quantity(idle, 'W')} idle, {format_quantity(active, 'W')} active"
        power = f"{watts} for the site, at a PUE of {bill.overhead:g}"
    rows = []
    for row in report.rows:
        half = f" ± {100 * row.price_spread:.0f} %" if row.price_spread else ""
        price = "?" if row.price_usd is None else _money(row.price_usd) + half
        whole = "?" if row.cost_usd is None else _money(row.cost_usd)
        drawn = [
            "?" if watts is None else format_quantity(watts, "W")
            for watts in (row.idle_w, row.active_w)
        ]
        rows.append(Row((row.what, f"{row.count:,}", price, whole, *drawn)))
    foot = "price, idle and active power: per piece; ±: spread of public prices"
    columns = ("part", ">count", ">price", ">cost", ">idle", ">active")
    return Document(
        title=f"Bill: {report.cluster.name}, {where}",
        headline=headline,
        trust=None if not bill.missing else Trust(missing, "fair"),
        facts={"network": report.where, "switches": f"{bill.switches:,}", "power": power},
        sections=(Section("bill", "Bill", [Table(columns, rows, foot=foot)], wide=True),),
        details={
            row.part.replace("_", " "): f"{row.price_source or 'no price'}; "
            + (f"power: {row.power_source}" if row.power_source else "no power")
            for row in report.rows
        },
        next_steps=("twofold utility TRACE … --per cost", "--verbose"),
    )


def _money(value: float) -> str:
    return format_quantity(value, "USD")


def plugins(report: "PluginsReport") -> Document:
    """List what installed distributions add."""
    rows = [
        Row((row.adds, row.distribution, row.version, row.group, row.refused))
        for row in report.rows
    ]
    columns = ("adds", "distribution", "version", "group", "|refused")
    headline = f"{plural(len(rows), 'plugin')} installed."
    if not rows:
        headline = "No plugin is installed."
    return Document(
        title="Plugins",
        headline=headline,
        sections=(Section("plugins", "Plugins", [Table(columns, rows, keys=2)]),),
    )
