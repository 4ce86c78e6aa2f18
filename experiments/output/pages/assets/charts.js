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

// Names along an axis, shortened in the middle to the part of the width that they may take; hovering shows all.
twofold.shortened = (name, width) => {
  const most = Math.max(14, Math.floor((0.36 * width) / 6.8));
  if (typeof name !== "string" || name.length <= most) return name;
  const tail = Math.floor(0.35 * most);
  return `${name.slice(0, most - tail - 1)}…${name.slice(-tail)}`;
};
twofold.named = (spec, width) => {
  const names = [...new Set(spec.data.filter((one) => one.orientation === "h").flatMap((one) => one.y ?? []))];
  if (!names.some((name) => twofold.shortened(name, width) !== name)) return {};
  return { tickmode: "array", tickvals: names, ticktext: names.map((name) => twofold.shortened(name, width)) };
};

// An axis' title on two lines where it would be wider than the axis.
twofold.broken = (axis, width) => {
  const text = axis?.title?.text;
  if (typeof text !== "string" || text.includes("<br>") || 6.8 * text.length < 0.5 * width) return axis ?? {};
  const spaces = [...text.matchAll(/ /g)].map((one) => one.index);
  const middle = spaces.sort((a, b) => Math.abs(a - text.length / 2) - Math.abs(b - text.length / 2))[0];
  if (middle === undefined) return axis;
  return { ...axis, title: { ...axis.title, text: `${text.slice(0, middle)}<br>${text.slice(middle + 1)}` } };
};

// Numbers along an axis that would lie over the one before are left out.
twofold.thinned = (element) => {
  for (const axis of ["xaxislayer-above", "xaxislayer-below"]) {
    const ends = [];
    for (const text of element.querySelectorAll(`.${axis} .xtick text`)) {
      text.style.visibility = "";
      const box = text.getBoundingClientRect();
      const covered = ends.some((one) => box.left < one.right + 4 && one.left < box.right + 4 && box.top < one.bottom && one.top < box.bottom);
      if (covered) text.style.visibility = "hidden"; else ends.push(box);
    }
  }
};

// What the colours mean, as text below the chart: it never lies over what is drawn, and clicks hide and show.
twofold.key = (element, spec) => {
  const entries = spec.data.map((trace, place) => [trace, place]).filter(([trace]) => trace.name && trace.showlegend !== false);
  if (spec.layout?.showlegend === false || entries.length < 2) return () => {};
  const key = twofold.make("div", { class: "legend key" });
  element.after(key);
  const plain = (text) => text.replace(/<[^>]*>/g, "");
  const colour = (trace) => [trace.line?.color, trace.marker?.color, trace.marker?.line?.color].find((one) => typeof one === "string") ?? "@blue";
  const paint = () => key.replaceChildren(...entries.map(([trace, place]) => {
    const hidden = element.data?.[place]?.visible === "legendonly";
    const swatch = twofold.make("i", { class: trace.mode === "lines" ? "stroke" : trace.mode === "markers" ? "round" : "" });
    swatch.style.setProperty("--swatch", twofold.painted(colour(trace)));
    const toggle = () => { Plotly.restyle(element, { visible: hidden ? true : "legendonly" }, [place]).then(paint); };
    return twofold.make("button", { type: "button", "aria-pressed": String(!hidden), onclick: toggle }, swatch, plain(trace.name));
  }));
  return paint;
};

twofold.views.chart = (element, spec) => {
  const sized = () => ({ height: spec.height ?? 320, width: Math.max(240, element.clientWidth) });
  const layout = () => {
    const size = sized(), own = spec.layout ?? {};
    const named = twofold.named(spec, size.width);
    const made = twofold.layout({ ...own, showlegend: false, xaxis: twofold.broken(own.xaxis, size.width), yaxis: { ...own.yaxis, ...named } });
    return { ...made, ...size };
  };
  const key = twofold.key(element, spec);
  const paint = () => Plotly.react(element, twofold.painted(spec.data), layout(), twofold.config).then(() => { twofold.thinned(element); key(); });
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", spec.label);
  paint();
  element.on?.("plotly_afterplot", () => twofold.thinned(element));
  return { theme: paint, resize: paint };
};
