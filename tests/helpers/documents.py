"""Parts of a document, as tests name them."""

from experiments.output.document import Chart, Table


def table_of(document, begins):
    """Return the only table whose first column begins so, and the cells of its rows."""
    (table,) = (each for each in document.blocks(Table) if each.columns[0].startswith(begins))
    return table, [row.cells for row in table.rows]


def chart_of(document, anchor):
    """Return the chart that has an anchor; series have all of their values, bars begin at 0."""
    (chart,) = (each for each in document.blocks(Chart) if each.anchor == anchor)
    for series in chart.series:
        for values in (series.y, series.errors, series.labels, series.hints):
            assert len(values) in (0, len(series.x))
        if series.kind == "bars" and not series.starts:
            assert chart.x.zero or chart.y.zero
    return chart
