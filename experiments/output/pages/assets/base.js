// What all parts of a page share: tables, numbers as text, elements, colours, and the start.
"use strict";

const twofold = { views: {}, drawn: [] };

// -- tables ------------------------------------------------------------------------------------

twofold.inflate = async (base64) => {
  const letters = atob(base64);
  const packed = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) packed[at] = letters.charCodeAt(at);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};

// A table as experiments/output/pages/columns.py writes it: {rows, columns: {name: {unit, values,
// codes, levels}}}. `values` is a typed array, or an array of texts; `codes` index `levels`.
twofold.table = async (packed) => {
  const bytes = await twofold.inflate(packed.bytes);
  const columns = {};
  for (const told of packed.columns) {
    const items = twofold.items(bytes, told, packed.rows);
    if (told.texts) {
      const [from, long] = told.texts;
      told.words = JSON.parse(new TextDecoder().decode(bytes.subarray(from, from + long)));
    }
    columns[told.name] = twofold.column(items, told);
  }
  return { rows: packed.rows, columns };
};

twofold.items = (bytes, told, rows) => {
  const arrays = { f8: Float64Array, u4: Uint32Array, u2: Uint16Array, u1: Uint8Array };
  const array = arrays[told.type];
  const size = array.BYTES_PER_ELEMENT;
  const raw = bytes.subarray(told.offset, told.offset + rows * size);
  if (!told.shuffled) return new array(raw.slice().buffer);
  const mixed = new Uint8Array(rows * size);
  for (let byte = 0; byte < size; byte++) {
    for (let row = 0; row < rows; row++) mixed[row * size + byte] = raw[byte * rows + row];
  }
  return new array(mixed.buffer);
};

twofold.column = (items, told) => {
  const found = { name: told.name, unit: told.unit, values: items };
  if (told.sums) {
    let sum = 0;
    for (let row = 0; row < items.length; row++) {
      sum = (sum + items[row]) >>> 0;
      items[row] = sum;
    }
  } else if (told.words) {
    found.codes = items;
    found.levels = told.words;
    found.text = true;
    found.values = null;
  } else if (told.levels) {
    const numbers = { inf: Infinity, "-inf": -Infinity };
    const levels = told.levels.map((one) => (one === null ? NaN : one in numbers ? numbers[one] : one));
    found.codes = items;
    found.levels = levels;
    found.values = Float64Array.from(items, (code) => levels[code]);
  }
  return found;
};

// The cell of a column: a text, or a number.
twofold.cell = (column, row) => (column.text ? column.levels[column.codes[row]] : column.values[row]);

// -- numbers as text ---------------------------------------------------------------------------

const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];

twofold.digits = (value, digits = 4) => {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "-∞" : "";
  const text = String(Number(value.toPrecision(digits)));
  return Math.abs(value) >= 1e4 && Math.abs(value) < 1e15 ? Number(text).toLocaleString("en") : text;
};

// A quantity as tables say it: 0.0272 in "s" is "27.2 ms".
twofold.say = (value, unit = "", digits = 4) => {
  if (value === null || Number.isNaN(value)) return "";
  if (!unit || !Number.isFinite(value)) return twofold.digits(value, digits);
  if (unit === "%") return `${value.toFixed(2)} %`;
  const prefixes = unit === "USD" ? PREFIXES.slice(3) : PREFIXES;  // nobody says GUSD
  const scale = unit === "s" ? TIMES : prefixes.map(([factor, prefix]) => [factor, prefix + unit]);
  const size = Math.abs(value) * (1 + 1e-12);
  const [factor, name] = scale.find(([one]) => one <= size) ?? scale[scale.length - 1];
  if (value === 0) return `0 ${unit}`;
  return `${twofold.digits(value / factor, digits)} ${name}`;
};

// -- elements ----------------------------------------------------------------------------------

// Make an element; text is set as text, so nothing that was read becomes markup.
twofold.make = (name, attributes = {}, ...content) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...content.filter((one) => one !== null && one !== undefined));
  return made;
};

// A line that screen readers tell when it changes.
twofold.telling = (text = "") => twofold.make("p", { class: "told", "aria-live": "polite" }, text);

// A box beside the pointer, one for the page.
twofold.tip = (() => {
  let box = null;
  const hide = () => { if (box) box.hidden = true; };
  const show = (event, lines) => {
    if (!box) {
      box = twofold.make("div", { class: "tip", role: "tooltip" });
      document.body.append(box);
    }
    box.replaceChildren(...lines.filter(Boolean).map((line, at) => twofold.make(at ? "div" : "b", {}, line)));
    box.hidden = false;
    const room = box.getBoundingClientRect();
    const left = event.clientX + 14 + room.width > innerWidth ? event.clientX - room.width - 10 : event.clientX + 14;
    const top = event.clientY + 14 + room.height > innerHeight ? event.clientY - room.height - 10 : event.clientY + 14;
    box.style.left = `${Math.max(4, left)}px`;
    box.style.top = `${Math.max(4, top)}px`;
  };
  return { show, hide };
})();

// Run a function at most once a frame.
twofold.framed = (run) => {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; run(); });
  };
};

// A canvas as sharp as the screen, in CSS pixels.
twofold.sharpen = (canvas, width, height) => {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  // Drawn by the processor: many thin lines take a graphics card long, and its emulation longer.
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
};

// -- light and dark ----------------------------------------------------------------------------

twofold.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

twofold.theme = (() => {
  const root = document.documentElement;
  const asked = matchMedia("(prefers-color-scheme: dark)");
  const now = () => root.dataset.theme;
  const changed = () => {
    for (const button of document.querySelectorAll("[data-switch=theme]")) {
      button.textContent = now() === "dark" ? "☀ Light" : "☾ Dark";
      button.setAttribute("aria-label", `switch to ${now() === "dark" ? "light" : "dark"}`);
    }
    for (const view of twofold.drawn) view.theme?.();
  };
  const toggle = () => {
    root.dataset.theme = now() === "dark" ? "light" : "dark";
    try { localStorage.setItem("twofold-theme", root.dataset.theme); } catch { /* a file may keep nothing */ }
    changed();
  };
  asked.addEventListener("change", () => { root.dataset.theme = asked.matches ? "dark" : "light"; changed(); });
  return { now, toggle, changed };
})();

// -- the start ---------------------------------------------------------------------------------

twofold.read = (id) => JSON.parse(document.getElementById(id).textContent);

// A table of the page by its id, unpacked when it is first asked for.
twofold.unpacked = (() => {
  const tables = {};
  return (id) => (tables[id] ??= twofold.table(twofold.read(id)));
})();

// Run a library that the page carries packed; it stands as a script of its own, as written.
twofold.load = async (id) => {
  const packed = document.getElementById(id);
  if (!packed) return;
  const text = new TextDecoder().decode(await twofold.inflate(packed.textContent));
  document.head.append(twofold.make("script", {}, text));
};

// Draw every view: {at, kind, spec, tables: {name: id}}. Those without charts come first.
twofold.start = async () => {
  twofold.theme.changed();
  for (const button of document.querySelectorAll("[data-switch=theme]")) button.addEventListener("click", twofold.theme.toggle);
  if (typeof DecompressionStream === "undefined") {
    document.body.prepend(twofold.make("p", { class: "callout warning" }, "This browser is too old to unpack the page's data: Chrome 80, Firefox 113 or Safari 16.4 can."));
    return;
  }
  const views = twofold.read("views");
  const draw = async (view) => {
    const given = {};
    for (const [name, id] of Object.entries(view.tables ?? {})) given[name] = await twofold.unpacked(id);
    const at = document.getElementById(view.at);
    const made = twofold.views[view.kind](at, view.spec, given);
    if (made) twofold.drawn.push(made);
    at.dataset.drawn = "yes";
  };
  for (const view of views.filter((one) => !one.charts)) await draw(view);
  if (views.some((one) => one.charts)) {
    await new Promise((ready) => setTimeout(ready));
    await twofold.load("plotly");
    for (const view of views.filter((one) => one.charts)) await draw(view);
  }
  const resize = twofold.framed(() => twofold.drawn.forEach((view) => view.resize?.()));
  addEventListener("resize", resize);
  addEventListener("beforeprint", () => twofold.drawn.forEach((view) => view.resize?.()));
  document.documentElement.dataset.ready = "yes";
};
