// Charts by Plotly: figures come as JSON, with colours named "@blue" that the theme gives.
"use strict";

// Replace "@name" by the theme's colour, in everything a figure says.
twofold.painted = (value) => {
  if (typeof value === "string") return value.startsWith("@") ? twofold.colour(value.slice(1)) : value;
  if (Array.isArray(value)) return value.map(twofold.painted);
  if (value && typeof value === "object" && !ArrayBuffer.isView(value)) {
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, twofold.painted(one)]));
  }
  return value;
};

// What all charts look like; what a figure says of its own comes over it.
twofold.layout = (own = {}) => {
  const axis = { gridcolor: "@line", linecolor: "@line", zerolinecolor: "@edge", tickcolor: "@line", automargin: true, title: { standoff: 10 } };
  const { xaxis = {}, yaxis = {}, ...rest } = own;
  return twofold.painted({
    font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 12.5, color: "@text" },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 8, r: 12, t: 10, b: 8 }, hoverlabel: { bgcolor: "@card", bordercolor: "@edge", font: { color: "@text" }, align: "left" },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, colorway: ["@blue", "@orange", "@green", "@pink", "@yellow", "@sky"],
    ...rest,
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis },
  });
};

twofold.config = { displaylogo: false, responsive: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"], displayModeBar: "hover" };

twofold.views.chart = (element, spec) => {
  const sized = () => ({ height: spec.height ?? 320, width: Math.max(240, element.clientWidth) });
  const paint = () => Plotly.react(element, twofold.painted(spec.data), { ...twofold.layout(spec.layout), ...sized() }, twofold.config);
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", spec.label);
  paint();
  return { theme: paint, resize: () => Plotly.relayout(element, sized()) };
};
