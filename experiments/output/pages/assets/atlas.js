// The overview of an atlas: a matrix of models and clusters, and a table of the same cells.
"use strict";

twofold.ATLAS_COLOURS = ["blue", "orange", "green", "pink", "yellow", "sky"];

twofold.views.atlas = (element, spec) => {
  const state = { show: "most", model: "", cluster: "", gpus: "", resource: "", order: "given", sort: null, down: true };
  const names = Object.keys(spec.resources);
  const colour = Object.fromEntries(names.map((name, at) => [name, `var(--${twofold.ATLAS_COLOURS[at % twofold.ATLAS_COLOURS.length]})`]));
  const each = (field) => [...new Set(spec.cells.map((cell) => cell[field]))];

  // The resource that a cell shows: the one that pays most, of all or of the network, or the chosen one.
  const shown = (cell) => {
    const few = state.show === "most" ? names : state.show === "network" ? spec.network : [state.show];
    const paying = few.filter((name) => cell.saves[name]);
    return paying.reduce((most, name) => (most === null || cell.saves[name][0] > cell.saves[most][0] ? name : most), null);
  };
  const saves = (cell) => (shown(cell) === null ? -Infinity : cell.saves[shown(cell)][0]);
  const kept = () => spec.cells.filter((cell) =>
    (!state.model || cell.model === state.model) && (!state.cluster || cell.cluster === state.cluster)
    && (!state.gpus || String(cell.gpus) === state.gpus) && (!state.resource || shown(cell) === state.resource));

  const tools = twofold.make("div", { class: "tools" });
  const count = twofold.telling();
  const matrix = twofold.make("div", { class: "scroll atlas-matrix", tabindex: "0", role: "region", "aria-label": "matrix of cells" });
  const legend = twofold.make("p", { class: "legend" });
  const rows = twofold.make("div", { class: "scroll rows", tabindex: "0", role: "region", "aria-label": "table of cells" });
  element.replaceChildren(tools, count, matrix, legend, rows);

  const select = (label, field, options) => {
    const made = twofold.make("select", { "aria-label": label, onchange: () => { state[field] = made.value; draw(); } });
    for (const [value, text] of options) made.append(twofold.make("option", { value }, text));
    tools.append(twofold.make("label", {}, label, made));
  };
  const resources = names.map((name) => [name, spec.resources[name]]);
  select("show", "show", [["most", "what pays most"], ["network", "what pays most in the network"], ...resources]);
  select("model", "model", [["", "all"], ...each("model").map((name) => [name, name])]);
  select("cluster", "cluster", [["", "all"], ...each("cluster").map((name) => [name, name])]);
  if (each("gpus").length > 1) select("GPUs", "gpus", [["", "all"], ...each("gpus").map((size) => [size, size.toLocaleString("en")])]);
  select("resource", "resource", [["", "any"], ...resources]);
  select("order", "order", [["given", "as declared"], ["saves", "by saving"], ["name", "by name"]]);

  // Names in the chosen order: by saving, the ones whose best cell saves most come first.
  const ordered = (cells, of) => {
    const best = new Map();
    for (const cell of cells) best.set(of(cell), Math.max(best.get(of(cell)) ?? -Infinity, saves(cell)));
    const found = [...best.keys()];
    if (state.order === "saves") found.sort((a, b) => best.get(b) - best.get(a));
    if (state.order === "name") found.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    return found;
  };

  const face = (cell) => {
    if (cell.refused) return twofold.make("td", {}, twofold.make("a", { href: cell.page, class: "none", title: cell.refused }, cell.refused.startsWith("does not fit into memory") ? "no fit" : "none"));
    const name = shown(cell);
    if (name === null) return twofold.make("td", {}, twofold.make("a", { href: cell.page, class: "none" }, "unused"));
    const [value, text] = cell.saves[name];
    const shade = `background:color-mix(in srgb, ${colour[name]} ${Math.round(8 + 0.72 * Math.max(0, Math.min(60, value)))}%, var(--card))`;
    const hint = `${cell.model} on ${cell.cluster}, ${cell.gpus.toLocaleString("en")} GPUs (${cell.plan}): ${spec.resources[name]} saves ${text} of ${cell.step[1]}`;
    return twofold.make("td", {}, twofold.make("a", { href: cell.page, style: shade, title: hint },
      twofold.make("b", {}, `${twofold.digits(value, value < 10 ? 2 : 3)} %`), twofold.make("span", {}, spec.resources[name])));
  };

  const drawMatrix = (cells) => {
    const several = each("gpus").length > 1;
    const lines = ordered(cells, (cell) => JSON.stringify([cell.model, cell.gpus]));
    const columns = ordered(cells, (cell) => cell.cluster);
    const at = new Map(cells.map((cell) => [JSON.stringify([cell.model, cell.gpus, cell.cluster]), cell]));
    const head = twofold.make("tr", {}, twofold.make("th", { scope: "col" }, "model"), ...columns.map((name) => twofold.make("th", { scope: "col" }, name)));
    const body = lines.map((line) => {
      const [model, gpus] = JSON.parse(line);
      const label = several ? `${model} × ${gpus.toLocaleString("en")}` : model;
      return twofold.make("tr", {}, twofold.make("th", { scope: "row" }, label), ...columns.map((name) => {
        const cell = at.get(JSON.stringify([model, gpus, name]));
        return cell === undefined ? twofold.make("td") : face(cell);
      }));
    });
    matrix.replaceChildren(twofold.make("table", {}, twofold.make("thead", {}, head), twofold.make("tbody", {}, ...body)));
    const there = names.filter((name) => cells.some((cell) => !cell.refused && shown(cell) === name));
    legend.replaceChildren(...there.map((name) => twofold.make("span", {}, twofold.make("i", { style: `background:${colour[name]}` }), spec.resources[name])));
  };

  const COLUMNS = [
    ["model", false, (cell) => cell.model], ["cluster", false, (cell) => cell.cluster], ["GPUs", true, (cell) => [cell.gpus, cell.gpus.toLocaleString("en")]],
    ["plan", false, (cell) => cell.plan || cell.refused], ["resource", false, (cell) => (shown(cell) === null ? "" : spec.resources[shown(cell)])],
    ["saves", true, (cell) => (shown(cell) === null ? [null, ""] : cell.saves[shown(cell)])],
    ["step", true, (cell) => cell.step], ["tokens/s", true, (cell) => cell.tokens], ["cost", true, (cell) => cell.cost], ["power", true, (cell) => cell.power],
    ["trust", false, (cell) => cell.trust],
  ];
  const drawRows = (cells) => {
    const column = COLUMNS.find(([name]) => name === state.sort);
    const listed = [...cells];
    if (column) {
      const key = (cell) => (column[1] ? column[2](cell)[0] : column[2](cell));
      listed.sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === null || y === null) return (x === null) - (y === null);
        return (column[1] ? x - y : x.localeCompare(y, "en", { numeric: true })) * (state.down ? -1 : 1);
      });
    }
    const head = COLUMNS.map(([name, number]) => {
      const sorted = state.sort !== name ? null : state.down ? "descending" : "ascending";
      const turn = () => { state.down = state.sort === name ? !state.down : number; state.sort = name; draw(); };
      return twofold.make("th", { scope: "col", class: number ? "number" : "", "aria-sort": sorted }, twofold.make("button", { type: "button", onclick: turn }, name));
    });
    const body = listed.map((cell) => twofold.make("tr", {}, ...COLUMNS.map(([name, number, of]) => {
      const text = number ? of(cell)[1] : of(cell);
      return twofold.make("td", { class: number ? "number" : "", title: text }, name === "model" ? twofold.make("a", { href: cell.page }, text) : text);
    })));
    rows.replaceChildren(twofold.make("table", {}, twofold.make("thead", {}, twofold.make("tr", {}, ...head)), twofold.make("tbody", {}, ...body)));
  };

  const draw = () => {
    const cells = kept();
    element.dataset.count = cells.length;
    count.textContent = `${cells.length.toLocaleString("en")} of ${spec.cells.length.toLocaleString("en")} cells`;
    drawMatrix(cells);
    drawRows(cells);
  };
  draw();
  return {};
};
