// The timeline of ranks on a canvas: rows of slices, zoomed by wheel, keys and dragging.
//
// twofold.timeline(element, about, slices) draws what experiments/output/pages/ranks.py makes, and
// returns {update(about, slices), theme(), resize()}.
"use strict";

twofold.timeline = (element, about, slices) => {
  const ROW = 15, GAP = 3, AXIS = 24, LABEL = 118, TALL = 560;
  const state = { from: 0, to: 1, chosen: null, search: "", off: new Set(), drag: null };
  let rows = [], shown = [], starts = [], context = null, width = 0, height = 0;

  const told = twofold.telling("Select a slice to read about it.");
  const canvas = twofold.make("canvas", { tabindex: "0", role: "application", "aria-label": "timeline of ranks: arrows move, plus and minus zoom, N and P go from slice to slice, Home shows all" });
  const spacer = twofold.make("div", { class: "spacer" }, canvas);
  const scroll = twofold.make("div", { class: "lanes" }, spacer);
  const tools = twofold.make("div", { class: "tools", role: "toolbar", "aria-label": "timeline" });
  const legend = twofold.make("div", { class: "legend" });
  element.replaceChildren(tools, scroll, legend, told);

  // Slices of a row lie together and in order: where each row's begin and end.
  const take = () => {
    const { row } = slices.columns;
    rows = about.rows.map((one) => ({ ...one, first: 0, last: 0 }));
    let at = 0;
    for (let number = 0; number < rows.length; number++) {
      rows[number].first = at;
      while (at < slices.rows && row.values[at] === number) at++;
      rows[number].last = at;
    }
    state.to = about.span_s;
  };

  const arrange = () => {
    shown = rows.filter((one) => !state.off.has(one.run) && !(one.host && state.off.has("host")));
    starts = [];
    let top = AXIS, before = null;
    for (const one of shown) {
      const block = `${one.rank} ${one.run}`;
      if (before !== null && block !== before) top += GAP * (before.split(" ")[0] === String(one.rank) ? 1 : 3);
      before = block;
      starts.push(top);
      top += ROW;
    }
    height = Math.min(TALL, top + 8);
    spacer.style.height = `${top + 8}px`;
    scroll.style.maxHeight = `${height}px`;
  };

  const x = (time) => LABEL + ((time - state.from) / (state.to - state.from)) * (width - LABEL);
  const time = (place) => state.from + ((place - LABEL) / (width - LABEL)) * (state.to - state.from);
  const start = (at) => slices.columns.start.values[at] * about.tick_s;
  const end = (at) => (slices.columns.start.values[at] + slices.columns.length.values[at]) * about.tick_s;
  const name = (at) => slices.columns.name.levels[slices.columns.name.codes[at]];
  const kind = (at) => about.classes[slices.columns.class.values[at]];

  // The first slice of a row that ends after a time.
  const after = (row, moment) => {
    let low = row.first, high = row.last;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (end(middle) <= moment) low = middle + 1; else high = middle;
    }
    return low;
  };

  const ticks = (span) => {
    const step = 10 ** Math.floor(Math.log10(span / 5));
    return [1, 2, 5, 10].map((one) => one * step).find((one) => span / one <= Math.max(3, width / 130)) ?? 10 * step;
  };

  const drawAxis = (colours) => {
    context.fillStyle = colours.card;
    context.fillRect(0, 0, width, AXIS);
    const step = ticks(state.to - state.from);
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let at = Math.ceil(state.from / step) * step; at <= state.to; at += step) {
      context.fillStyle = colours.line;
      context.fillRect(Math.round(x(at)), AXIS - 5, 1, 5);
      context.fillStyle = colours.soft;
      if (x(at) > LABEL + 12 && x(at) < width - 26) context.fillText(twofold.say(Number(at.toPrecision(12)), "s"), x(at), 10);
    }
    context.fillStyle = colours.line;
    context.fillRect(LABEL, AXIS - 1, width - LABEL, 1);
  };

  // Slices narrower than a pixel that follow each other are one: a row of a million takes no longer.
  const drawRow = (row, top, fills, colours) => {
    const tall = ROW - 3;
    const seconds = (state.to - state.from) / (width - LABEL);
    let right = -1;
    for (let at = after(row, state.from); at < row.last && start(at) < state.to; at++) {
      const left = Math.max(LABEL, x(start(at)));
      const until = Math.min(width, x(end(at)));
      if (until - left < 0.7 && until <= right) continue;
      const dim = state.search && !name(at).toLowerCase().includes(state.search);
      context.globalAlpha = dim ? 0.15 : row.run === "measured" ? 0.72 : 1;
      context.fillStyle = fills[slices.columns.class.values[at]];
      right = Math.max(until, left + 0.8);
      context.fillRect(left, top, right - left, tall);
      if (until - left > 34 && !dim) {
        context.globalAlpha = 1;
        context.fillStyle = colours.ink;
        context.font = "10px system-ui, sans-serif";
        context.textAlign = "left";
        const room = Math.floor((until - left - 6) / 5.6);
        const text = name(at);
        context.fillText(text.length > room ? `${text.slice(0, room - 1)}…` : text, left + 3, top + tall / 2 + 0.5);
      }
      if (at === state.chosen) {
        context.globalAlpha = 1;
        context.strokeStyle = colours.text;
        context.lineWidth = 2;
        context.strokeRect(left, top - 0.5, Math.max(2, right - left), tall + 1);
      }
      if (end(at) - start(at) < seconds / 50) at = Math.max(at, after(row, time(right)) - 1);
    }
    context.globalAlpha = 1;
  };

  const drawLabels = (row, top, first, colours) => {
    context.font = first ? "600 11px system-ui, sans-serif" : "10px system-ui, sans-serif";
    context.textAlign = "left";
    context.fillStyle = colours.card;
    context.fillRect(0, top - GAP, LABEL - 2, ROW + GAP);
    context.fillStyle = first ? colours.text : colours.soft;
    const whole = row.rank === null ? row.label : first ? `rank ${row.rank} ${row.run}` : `  ${row.label}`;
    context.fillText(whole.length > 20 ? `${whole.slice(0, 19)}…` : whole, 4, top + ROW / 2 - 1);
  };

  const draw = () => {
    width = Math.max(280, element.clientWidth - 2);
    context = twofold.sharpen(canvas, width, height);
    const colours = { card: twofold.colour("card"), line: twofold.colour("line"), text: twofold.colour("text"), soft: twofold.colour("soft"), ink: twofold.colour("ink") };
    const fills = about.classes.map((one) => twofold.colour(`of-${one}`));
    context.fillStyle = colours.card;
    context.fillRect(0, 0, width, height);
    context.textBaseline = "middle";
    const scrolled = scroll.scrollTop;
    shown.forEach((row, number) => {
      const top = starts[number] - scrolled;
      if (top < AXIS - ROW || top > height) return;
      drawRow(row, top, fills, colours);
      const before = shown[number - 1];
      drawLabels(row, top, !before || before.rank !== row.rank || before.run !== row.run, colours);
    });
    drawAxis(colours);
    if (state.drag?.select) {
      context.fillStyle = twofold.colour("accent");
      context.globalAlpha = 0.2;
      context.fillRect(Math.min(state.drag.x, state.drag.now), 0, Math.abs(state.drag.now - state.drag.x), height);
      context.globalAlpha = 1;
    }
    element.dataset.from = state.from;
    element.dataset.to = state.to;
  };
  const redraw = twofold.framed(draw);

  const show = (from, to) => {
    const least = about.span_s * 1e-7;
    const span = Math.min(about.span_s, Math.max(least, to - from));
    state.from = Math.min(Math.max(0, from), about.span_s - span);
    state.to = state.from + span;
    redraw();
  };
  const zoom = (factor, around = (state.from + state.to) / 2) =>
    show(around - (around - state.from) / factor, around + (state.to - around) / factor);
  const pan = (share) => {
    const by = share * (state.to - state.from);
    show(state.from + by, state.to + by);
  };

  const rowAt = (place) => {
    const at = place + scroll.scrollTop;
    return shown[starts.findIndex((top) => at >= top - 1 && at < top + ROW)];
  };
  const sliceAt = (event) => {
    const box = canvas.getBoundingClientRect();
    const row = event.clientY - box.top > AXIS ? rowAt(event.clientY - box.top) : undefined;
    if (!row || event.clientX - box.left < LABEL) return null;
    const moment = time(event.clientX - box.left);
    const near = (state.to - state.from) / (width - LABEL);
    const at = after(row, moment - near);
    return at < row.last && start(at) <= moment + near ? { at, row } : null;
  };
  const describe = (at, row) => [
    name(at),
    `${kind(at)} · ${twofold.say(end(at) - start(at), "s")}`,
    `from ${twofold.say(start(at), "s")} to ${twofold.say(end(at), "s")}`,
    row.rank === null ? "critical path" : `rank ${row.rank}, ${row.label}, ${row.run}`,
  ];
  const choose = (at) => {
    state.chosen = at;
    const row = rows.find((one) => at >= one.first && at < one.last);
    told.textContent = describe(at, row).join(" · ");
    if (end(at) < state.from || start(at) > state.to) {
      const half = (state.to - state.from) / 2;
      show((start(at) + end(at)) / 2 - half, (start(at) + end(at)) / 2 + half);
    }
    redraw();
  };
  const step = (by) => {
    const row = rows.find((one) => state.chosen !== null && state.chosen >= one.first && state.chosen < one.last) ?? shown[0];
    if (!row || row.first === row.last) return;
    const at = state.chosen === null ? after(row, state.from) : state.chosen + by;
    choose(Math.min(row.last - 1, Math.max(row.first, at)));
  };

  const keys = {
    ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), a: () => pan(-0.15), d: () => pan(0.15),
    "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), w: () => zoom(1.5), s: () => zoom(1 / 1.5),
    ArrowUp: () => scroll.scrollBy(0, -ROW * 3), ArrowDown: () => scroll.scrollBy(0, ROW * 3),
    Home: () => show(0, about.span_s), Escape: () => show(0, about.span_s), n: () => step(1), p: () => step(-1),
    Enter: () => { if (state.chosen !== null) show(start(state.chosen) - (end(state.chosen) - start(state.chosen)), end(state.chosen) + (end(state.chosen) - start(state.chosen))); },
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  canvas.addEventListener("wheel", (event) => {
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !event.metaKey && !sideways) return;
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    if (sideways) pan((event.deltaX || event.deltaY) / 800);
    else zoom(Math.exp(-event.deltaY / 300), time(Math.max(LABEL, event.clientX - box.left)));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    const box = canvas.getBoundingClientRect();
    const place = event.clientX - box.left;
    canvas.setPointerCapture(event.pointerId);
    state.drag = { x: place, now: place, from: state.from, to: state.to, moved: false, select: event.shiftKey || event.clientY - box.top < AXIS };
  });
  canvas.addEventListener("pointermove", (event) => {
    const place = event.clientX - canvas.getBoundingClientRect().left;
    if (state.drag) {
      state.drag.now = place;
      state.drag.moved ||= Math.abs(place - state.drag.x) > 3;
      if (state.drag.select) { redraw(); return; }
      const by = ((state.drag.x - place) / (width - LABEL)) * (state.drag.to - state.drag.from);
      if (state.drag.moved) show(state.drag.from + by, state.drag.to + by);
      return;
    }
    const found = sliceAt(event);
    if (found) twofold.tip.show(event, describe(found.at, found.row)); else twofold.tip.hide();
  });
  canvas.addEventListener("pointerup", (event) => {
    const drag = state.drag;
    state.drag = null;
    if (drag?.select && drag.moved) {
      const [left, right] = [time(Math.min(drag.x, drag.now)), time(Math.max(drag.x, drag.now))];
      show(left, right);
    } else if (drag && !drag.moved) {
      const found = sliceAt(event);
      if (found) choose(found.at);
    }
    redraw();
  });
  canvas.addEventListener("pointerleave", twofold.tip.hide);
  canvas.addEventListener("dblclick", (event) => {
    const found = sliceAt(event);
    if (found) { choose(found.at); keys.Enter(); }
  });
  scroll.addEventListener("scroll", redraw);

  const button = (text, label, run) => twofold.make("button", { type: "button", title: label, "aria-label": label, onclick: run }, text);
  const toggle = (key, text) => twofold.make("label", {}, twofold.make("input", {
    type: "checkbox", checked: true, "data-rows": key,
    onchange: (event) => { if (event.target.checked) state.off.delete(key); else state.off.add(key); arrange(); redraw(); },
  }), text);
  const equip = () => {
    const runs = [...new Set(about.rows.map((one) => one.run))];
    tools.replaceChildren(
      button("+", "zoom in", () => zoom(2)), button("−", "zoom out", () => zoom(0.5)), button("Fit", "show all", () => show(0, about.span_s)),
      ...["measured", "simulated"].filter((one) => runs.length > 2 && runs.includes(one)).map((one) => toggle(one, one)),
      ...(about.rows.some((one) => one.host) ? [toggle("host", "host threads")] : []),
      twofold.make("input", { type: "search", placeholder: "Find an op", "aria-label": "find ops by name", oninput: (event) => { state.search = event.target.value.toLowerCase(); redraw(); } }),
      twofold.make("span", { class: "hint" }, "Ctrl + wheel or + and − zoom, drag moves, drag on the axis selects"),
    );
    legend.replaceChildren(...about.classes.map((one) => twofold.make("span", {}, twofold.make("i", { style: `background:var(--of-${one})` }), one)));
    if (about.left_out) legend.append(twofold.make("span", { class: "hint" }, about.left_out));
  };

  const update = (newAbout, newSlices) => {
    const whole = state.from === 0 && state.to === about.span_s;
    [about, slices] = [newAbout, newSlices];
    const [from, to] = [state.from, state.to];
    state.chosen = null;
    take();
    equip();
    arrange();
    if (whole) show(0, about.span_s); else show(from, to);
  };
  take();
  equip();
  arrange();
  draw();
  return { update, theme: redraw, resize: draw, show };
};

twofold.views.timeline = (element, about, tables) => twofold.timeline(element, about, tables.slices);
