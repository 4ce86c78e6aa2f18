// The points of a study: front, parallel coordinates, filters and table, which follow each other.
"use strict";

twofold.views.study = (element, spec, tables) => twofold.study(element, spec, tables.points);

twofold.study = (element, spec, points) => {
  const axes = twofold.axes(spec.columns, points);
  const by = (name) => axes.find((one) => one.name === name);
  const shown = axes.filter((one) => one.shown);
  const goals = Object.keys(spec.objectives);
  const refused = points.columns.refused_by;
  const feasible = Uint8Array.from(refused.codes, (code) => refused.levels[code] === "");
  const onFront = new Uint8Array(points.rows);
  for (const point of spec.front) onFront[point] = 1;
  const state = { filters: new Map(), show: "feasible", reason: null, chosen: null, mask: feasible, rows: [], count: 0 };
  const listeners = [];
  const allowed = {
    feasible: () => feasible, front: () => onFront, all: () => new Uint8Array(points.rows).fill(1),
    refused: () => Uint8Array.from(refused.codes, (code) => {
      const why = refused.levels[code];
      return why !== "" && (state.reason === null || why === state.reason);
    }),
  };

  // Ask the filters again, and tell everything that is drawn.
  const apply = (source = null) => {
    const begun = performance.now();
    state.mask = twofold.left(axes, state.filters, allowed[state.show]());
    const rows = [];
    for (let row = 0; row < points.rows; row++) if (state.mask[row]) rows.push(row);
    state.count = rows.length;
    state.rows = rows;
    for (const listener of listeners) listener(source);
    element.dataset.count = state.count;
    element.dataset.took = performance.now() - begun;
  };
  const filter = (name, value, source = null) => {
    if (value === null) state.filters.delete(name); else state.filters.set(name, value);
    apply(source);
  };
  const choose = (point, scroll = true) => {
    state.chosen = point;
    element.dataset.point = point;
    for (const listener of listeners) listener("choice");
    panel.open(point, scroll);
  };
  const lines = (point) => [
    `Point ${point.toLocaleString("en")}${onFront[point] ? ", on the front" : ""}`,
    ...shown.map((one) => `${one.name}: ${one.say(one.cell(point))}`),
    refused.levels[refused.codes[point]] ? `refused by ${refused.levels[refused.codes[point]]}` : null,
  ];
  const all = { element, spec, points, axes, by, shown, goals, state, onFront, feasible, refused, filter, apply, choose, lines, listeners };

  const tools = twofold.make("div", { class: "tools" });
  const top = twofold.make("div", { class: "study-top" });
  const [front, filters, coordinates, table, detail] = ["front", "filters", "coordinates", "rows", "panel"].map((name) => twofold.make("div", { class: `study-${name}` }));
  top.append(front, filters);
  element.replaceChildren(tools, top, coordinates, table, detail);
  const panel = twofold.panel(detail, all);
  twofold.studyTools(tools, all);
  twofold.filters(filters, all);
  const views = [twofold.front(front, all), twofold.coordinates(coordinates, all), twofold.rows(table, all)];
  apply();
  for (const button of document.querySelectorAll("[data-reason]")) {
    button.addEventListener("click", () => {
      Object.assign(state, { show: "refused", reason: refused.levels.includes(button.dataset.reason) ? button.dataset.reason : null });
      state.filters.clear();
      apply();
      element.scrollIntoView();
    });
  }
  return {
    theme: () => { views.forEach((one) => one.theme?.()); panel.theme(); },
    resize: () => { views.forEach((one) => one.resize?.()); panel.resize(); },
  };
};

// Which points are shown, how many there are, and what makes a file of them.
twofold.studyTools = (element, study) => {
  const { state, points } = study;
  const word = { feasible: "feasible points", front: "the front", all: "all points", refused: "refused points" };
  const select = twofold.make("select", { "aria-label": "which points", onchange: () => { state.show = select.value; state.reason = null; study.apply(); } },
    ...Object.entries(word).map(([value, text]) => twofold.make("option", { value }, text)));
  const count = twofold.make("b", { "aria-live": "polite", class: "count" });
  const reset = twofold.make("button", { type: "button", onclick: () => { state.filters.clear(); state.show = "feasible"; state.reason = null; study.apply(); } }, "Reset filters");
  const save = twofold.make("button", { type: "button", onclick: () => twofold.saveCsv(study) }, "Save as CSV");
  element.append(twofold.make("label", {}, "Show", select), count, reset, save);
  study.listeners.push(() => {
    select.value = state.show;
    const why = state.reason ? `, refused by ${state.reason}` : "";
    count.textContent = `${state.count.toLocaleString("en")} of ${points.rows.toLocaleString("en")} points${why}`;
    reset.disabled = !state.filters.size && state.show === "feasible";
  });
};

twofold.saveCsv = (study) => {
  const cell = (value) => (/[",\n#]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  const heads = ["point", ...study.axes.map((one) => one.name), "refused_by"];
  const lines = study.state.rows.map((row) => [row, ...study.axes.map((one) => { const value = one.cell(row); return Number.isNaN(value) ? "" : value; }), study.refused.levels[study.refused.codes[row]]].map(cell).join(","));
  const url = URL.createObjectURL(new Blob([[heads.map(cell).join(","), ...lines, ""].join("\n")], { type: "text/csv" }));
  twofold.make("a", { href: url, download: "points.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
};

// A filter for each column: levels to tick, or a range between two sliders.
twofold.filters = (element, study) => {
  const CHIPS = 10, STEPS = 1000;
  const updates = [];
  const chips = (axis) => {
    const boxes = axis.levels.map((level, place) => twofold.make("input", { type: "checkbox", checked: true, "aria-label": `${axis.name} ${level}`, onchange: () => {
      const set = new Set(boxes.flatMap((box, at) => (box.checked ? [at] : [])));
      study.filter(axis.name, set.size === boxes.length ? null : { set }, "filters");
    } }));
    updates.push(() => {
      const kept = study.state.filters.get(axis.name);
      boxes.forEach((box, place) => { box.checked = !kept || (kept.set ? kept.set.has(place) : place >= kept.low && place <= kept.high); });
    });
    return twofold.make("div", { class: "chips" }, ...boxes.map((box, place) => twofold.make("label", {}, box, axis.levels[place])));
  };
  const range = (axis) => {
    const steps = axis.levels ? axis.levels.length - 1 : STEPS;
    const at = (slider) => axis.low + ((axis.high - axis.low) * Number(slider.value)) / steps;
    const told = twofold.make("output", {});
    const change = () => {
      const [low, high] = [Math.min(at(from), at(to)), Math.max(at(from), at(to))];
      const whole = Number(from.value) === 0 && Number(to.value) === steps;
      const slack = axis.levels ? 0.01 : (axis.high - axis.low) * 1e-9;
      study.filter(axis.name, whole ? null : { low: low - slack, high: high + slack }, "filters");
    };
    const slider = (which, value) => twofold.make("input", { type: "range", min: 0, max: steps, value, "aria-label": `${axis.name} ${which}`, "data-axis": axis.name, oninput: change });
    const [from, to] = [slider("from", 0), slider("to", steps)];
    updates.push((source) => {
      const kept = study.state.filters.get(axis.name);
      const ends = kept?.set ? { low: Math.min(...kept.set), high: Math.max(...kept.set) } : kept;
      const place = (position) => Math.round(((position - axis.low) / (axis.high - axis.low)) * steps);
      if (source !== "filters") { from.value = ends ? place(ends.low) : 0; to.value = ends ? place(ends.high) : steps; }
      told.textContent = ends ? `${axis.say(axis.back(Math.max(axis.low, ends.low)))} to ${axis.say(axis.back(Math.min(axis.high, ends.high)))}` : "any";
    });
    return twofold.make("div", { class: "sliders" }, from, to, told);
  };
  const rows = study.shown.filter((axis) => !axis.constant).map((axis) => twofold.make("fieldset", {},
    twofold.make("legend", { title: axis.about }, axis.name, axis.goal ? twofold.make("em", {}, ` ${axis.goal}`) : null),
    axis.levels && axis.levels.length <= CHIPS ? chips(axis) : range(axis)));
  element.append(twofold.make("h3", {}, "Filters"), ...rows);
  study.listeners.push((source) => { if (source !== "choice") updates.forEach((update) => update(source)); });
};

// The table of points that are left, of which only the rows in view are there.
twofold.rows = (element, study) => {
  const { state, shown, onFront } = study;
  const TALL = 30, ROOM = 12;
  const order = { name: study.goals[0], down: study.spec.objectives[study.goals[0]] === "max" };
  const body = twofold.make("tbody");
  const heads = [{ name: "point" }, ...shown].map((axis) => {
    const sort = twofold.make("button", { type: "button", onclick: () => { Object.assign(order, { down: order.name === axis.name && !order.down, name: axis.name }); arrange(); } }, axis.name);
    return twofold.make("th", { scope: "col", "data-column": axis.name, class: axis.column?.text ? "" : "number" }, sort);
  });
  const scroll = twofold.make("div", { class: "rows scroll", tabindex: "0", role: "group", "aria-label": "points: arrows choose, Enter opens" },
    twofold.make("table", {}, twofold.make("thead", {}, twofold.make("tr", {}, ...heads)), body));
  scroll.style.maxHeight = `${TALL * (ROOM + 1) + 8}px`;
  element.append(scroll);
  let sorted = [], cursor = 0;

  const arrange = () => {
    const axis = study.axes.find((one) => one.name === order.name);
    const key = axis ? axis.positions : null;
    const sign = order.down ? -1 : 1;
    const place = (row) => (key ? key[row] : row);
    sorted = Uint32Array.from(state.rows).sort((one, other) => {
      const [a, b] = [place(one), place(other)];
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b) || one - other;
      return sign * (a - b) || one - other;
    });
    heads.forEach((head, at) => head.setAttribute("aria-sort", (at ? shown[at - 1].name : "point") === order.name ? (order.down ? "descending" : "ascending") : "none"));
    cursor = Math.min(cursor, Math.max(0, sorted.length - 1));
    draw();
  };
  const draw = () => {
    const first = Math.max(0, Math.floor(scroll.scrollTop / TALL) - 4);
    const last = Math.min(sorted.length, first + ROOM + 10);
    const gap = (count) => { const row = twofold.make("tr", { class: "gap", "aria-hidden": "true" }, twofold.make("td", { colspan: shown.length + 1 })); row.style.height = `${count * TALL}px`; return row; };
    const made = [];
    for (let at = first; at < last; at++) {
      const point = sorted[at];
      made.push(twofold.make("tr", { "data-point": point, class: `${onFront[point] ? "on-front" : ""} ${at === cursor ? "cursor" : ""}`, "aria-selected": point === state.chosen ? "true" : "false", onclick: () => { cursor = at; study.choose(point); } },
        twofold.make("td", { class: "number" }, `${onFront[point] ? "◆ " : ""}${point.toLocaleString("en")}`),
        ...shown.map((axis) => twofold.make("td", { class: axis.column.text ? "" : "number" }, axis.say(axis.cell(point))))));
    }
    body.replaceChildren(gap(first), ...made, gap(sorted.length - last));
  };
  const move = (by) => {
    cursor = Math.min(sorted.length - 1, Math.max(0, cursor + by));
    const at = cursor * TALL;
    if (at < scroll.scrollTop) scroll.scrollTop = at;
    if (at > scroll.scrollTop + TALL * (ROOM - 1)) scroll.scrollTop = at - TALL * (ROOM - 1);
    draw();
  };
  const keys = { ArrowDown: () => move(1), ArrowUp: () => move(-1), PageDown: () => move(ROOM), PageUp: () => move(-ROOM), Home: () => move(-1e9), End: () => move(1e9), Enter: () => { if (sorted.length) study.choose(sorted[cursor]); } };
  scroll.addEventListener("keydown", (event) => {
    if (event.target !== scroll || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  scroll.addEventListener("scroll", twofold.framed(draw));
  const later = twofold.framed(arrange);
  study.listeners.push((source) => (source === "choice" ? draw() : later()));
  return { resize: draw };
};
