// Parallel coordinates on a canvas: a line per point, an axis per column, dragging along it filters.
//
// Not Plotly's, which need WebGL: where that is done in software, ten thousand lines take seconds.
"use strict";

twofold.coordinates = (element, study) => {
  const MOST = 4000, AXES = 12, TOP = 34, BOTTOM = 14, TALL = 320, REACH = 22;
  const { state, shown, goals, onFront } = study;
  const axes = shown.filter((one) => !one.constant).slice(0, AXES);
  const canvas = twofold.make("canvas", { tabindex: "0", role: "application", "aria-label": "parallel coordinates: left and right choose an axis, up and down move its brush, plus and minus widen and narrow it, Delete takes it away" });
  const told = twofold.telling();
  const note = twofold.make("span", { class: "hint" });
  const scroll = twofold.make("div", { class: "coordinates scroll" }, canvas);
  element.append(twofold.make("h3", {}, "Parallel coordinates"), scroll, note, told);
  let context = null, width = 0, drag = null, chosen = 0, rows = [];

  const left = () => Math.min(110, 30 + 6 * Math.max(...axes[0].ticks.map(([, text]) => text.length)));
  const x = (place) => (axes.length === 1 ? width / 2 : left() + (place * (width - left() - 60)) / (axes.length - 1));
  const y = (axis, position) => TOP + (1 - (position - axis.low) / (axis.high - axis.low)) * (TALL - TOP - BOTTOM);
  const back = (axis, place) => axis.low + (1 - (place - TOP) / (TALL - TOP - BOTTOM)) * (axis.high - axis.low);
  const clamp = (axis, position) => Math.min(axis.high, Math.max(axis.low, position));

  // Points that are drawn: at most so many, evenly, and all of the front.
  const few = (found) => {
    if (found.length <= MOST) return found;
    const kept = new Set(twofold.spread(found.length, MOST).map((at) => found[at]));
    return found.filter((row) => kept.has(row) || onFront[row]);
  };
  // Lines of one colour are one path, and what falls together between two axes is drawn once:
  // strokes are what takes time.
  const BANDS = 12;
  const drawLines = (list, styles, thick) => {
    const key = study.by(goals[0]);
    const bands = Array.from({ length: styles.length }, () => []);
    for (const row of list) {
      const share = (key.positions[row] - key.low) / (key.high - key.low);
      bands[Math.min(styles.length - 1, Math.max(0, Math.floor((Number.isNaN(share) ? 1 : share) * styles.length)))].push(row);
    }
    const heights = axes.map((axis) => (row) => Math.round(2 * y(axis, axis.positions[row])));
    context.lineWidth = thick;
    for (let band = styles.length - 1; band >= 0; band--) {
      context.strokeStyle = styles[band];
      context.beginPath();
      for (let place = 0; place + 1 < axes.length; place++) {
        const there = new Set();
        for (const row of bands[band]) {
          const [one, other] = [heights[place](row), heights[place + 1](row)];
          if (!Number.isNaN(one) && !Number.isNaN(other)) there.add(one * 4096 + other);
        }
        for (const pair of there) {
          context.moveTo(x(place), Math.floor(pair / 4096) / 2);
          context.lineTo(x(place + 1), (pair % 4096) / 2);
        }
      }
      context.stroke();
    }
  };
  const shades = () => {
    const ends = ["accent", "green", "edge"].map((name) => twofold.colour(name).match(/[0-9a-f]{2}/gi).map((one) => parseInt(one, 16)));
    return Array.from({ length: BANDS }, (_, band) => {
      const at = (band / (BANDS - 1)) * 1.999;
      const [one, other] = [ends[Math.floor(at)], ends[Math.floor(at) + 1]];
      return `rgb(${one.map((value, part) => Math.round(value + (other[part] - value) * (at % 1))).join(",")})`;
    });
  };
  const rangeOf = (axis) => {
    const kept = state.filters.get(axis.name);
    if (!kept) return null;
    return kept.set ? [Math.min(...kept.set) - 0.35, Math.max(...kept.set) + 0.35] : [kept.low, kept.high];
  };

  // A name too long for one line breaks behind its tier: scale_up.bandwidth and scale_out.bandwidth have one end.
  const linesOf = (name, most) => {
    const dot = name.indexOf(".") + 1;
    const parts = name.length > most && dot ? [name.slice(0, dot), name.slice(dot)] : [name];
    return parts.map((part) => (part.length > most ? `…${part.slice(-most + 1)}` : part));
  };

  const drawAxes = () => {
    context.textBaseline = "middle";
    axes.forEach((axis, place) => {
      const at = x(place), range = rangeOf(axis);
      context.fillStyle = twofold.colour(place === chosen && document.activeElement === canvas ? "accent" : "soft");
      context.fillRect(at - 0.5, TOP, 1, TALL - TOP - BOTTOM);
      if (range) {
        const [high, low] = [y(axis, clamp(axis, range[1])), y(axis, clamp(axis, range[0]))];
        context.fillStyle = twofold.colour("accent");
        context.globalAlpha = 0.28;
        context.fillRect(at - 7, high - 2, 14, Math.max(4, low - high + 4));
        context.globalAlpha = 1;
        context.fillRect(at - 7, high - 2, 14, 2);
        context.fillRect(at - 7, low, 14, 2);
      }
      context.font = "600 12px system-ui, sans-serif";
      context.fillStyle = twofold.colour("text");
      context.textAlign = place === 0 ? "left" : place === axes.length - 1 ? "right" : "center";
      const room = (width - left() - 60) / Math.max(1, axes.length - 1);
      const most = Math.max(6, Math.floor(room / 7.4));
      const across = place === 0 ? Math.max(2, at - left() + 6) : place === axes.length - 1 ? width - 4 : at;
      const names = linesOf(axis.name, most);
      names.forEach((name, line) => context.fillText(name, across, 12 + 13 * (line - (names.length - 1) / 2)));
      context.font = "11px system-ui, sans-serif";
      context.textAlign = "right";
      context.lineWidth = 3.5;
      context.lineJoin = "round";
      context.strokeStyle = twofold.colour("card");
      for (const [position, text] of axis.ticks) {
        context.strokeText(text, at - 6, y(axis, position));
        context.fillStyle = twofold.colour("text");
        context.fillText(text, at - 6, y(axis, position));
      }
    });
  };

  const draw = () => {
    const begun = performance.now();
    width = Math.max(scroll.clientWidth - 2, axes.length * (axes.length > 5 ? 84 : 62));
    context = twofold.sharpen(canvas, width, TALL);
    context.fillStyle = twofold.colour("card");
    context.fillRect(0, 0, width, TALL);
    rows = few(state.rows);
    context.globalAlpha = rows.length > 2000 ? 0.3 : rows.length > 200 ? 0.55 : 0.9;
    drawLines(rows, shades(), 1);
    context.globalAlpha = 1;
    drawLines(rows.filter((row) => onFront[row]), [twofold.colour("accent")], 1.4);
    if (state.chosen !== null) drawLines([state.chosen], [twofold.colour("bad")], 3);
    drawAxes();
    const sideways = width > scroll.clientWidth ? `scroll sideways: ${axes.length} axes. ` : "";
    note.textContent = sideways + (rows.length < state.count ? `${rows.length.toLocaleString("en")} of ${state.count.toLocaleString("en")} points are drawn, the front among them` : "");
    element.dataset.lines = rows.length;
    element.dataset.took = performance.now() - begun;
  };
  const redraw = twofold.framed(draw);

  const brush = (axis, one, other) => {
    const [low, high] = [Math.min(one, other), Math.max(one, other)];
    const slack = axis.levels ? 0 : (axis.high - axis.low) * 1e-9;
    if (low <= axis.low && high >= axis.high) study.filter(axis.name, null);
    else if (axis.levels) {
      const set = new Set([...axis.levels.keys()].filter((place) => place >= low - 0.35 && place <= high + 0.35));
      study.filter(axis.name, set.size ? { set } : { low, high });
    } else study.filter(axis.name, { low: low - slack, high: high + slack });
    const range = rangeOf(axis);
    told.textContent = range ? `${axis.name} from ${axis.say(axis.back(clamp(axis, range[0])))} to ${axis.say(axis.back(clamp(axis, range[1])))}: ${state.count.toLocaleString("en")} points` : "";
  };
  const clear = (axis) => { study.filter(axis.name, null); told.textContent = `${axis.name}: any`; };
  const placeOf = (event) => {
    const box = canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const near = axes.map((_, place) => Math.abs(px - x(place)));
    const place = near.indexOf(Math.min(...near));
    return { place: near[place] <= REACH ? place : -1, py };
  };
  canvas.addEventListener("pointerdown", (event) => {
    const { place, py } = placeOf(event);
    if (place < 0) return;
    chosen = place;
    canvas.setPointerCapture(event.pointerId);
    drag = { axis: axes[place], from: back(axes[place], py), py, moved: false };
  });
  const follow = twofold.framed(() => { if (drag?.moved) brush(drag.axis, clamp(drag.axis, drag.from), clamp(drag.axis, drag.to)); });
  canvas.addEventListener("pointermove", (event) => {
    const { place, py } = placeOf(event);
    canvas.style.cursor = drag || place >= 0 ? "ns-resize" : "default";
    if (!drag) return;
    drag.to = back(drag.axis, py);
    drag.moved ||= Math.abs(py - drag.py) > 3;
    follow();
  });
  canvas.addEventListener("pointerup", () => {
    if (drag && !drag.moved) clear(drag.axis);
    else if (drag) brush(drag.axis, clamp(drag.axis, drag.from), clamp(drag.axis, drag.to));
    drag = null;
  });
  // By keys a brush begins as the better half of an axis.
  const moved = (low, high) => {
    const axis = axes[chosen];
    const kept = state.filters.get(axis.name) ? rangeOf(axis) : null;
    const span = axis.high - axis.low;
    const [from, to] = kept ? kept.map((one) => clamp(axis, one)) : [axis.low, axis.low + span / 2];
    brush(axis, clamp(axis, from + low * span), clamp(axis, to + high * span));
  };
  const keys = {
    ArrowLeft: () => { chosen = Math.max(0, chosen - 1); told.textContent = axes[chosen].name; redraw(); },
    ArrowRight: () => { chosen = Math.min(axes.length - 1, chosen + 1); told.textContent = axes[chosen].name; redraw(); },
    ArrowUp: () => moved(0.1, 0.1), ArrowDown: () => moved(-0.1, -0.1), "+": () => moved(-0.05, 0.05), "-": () => moved(0.05, -0.05),
    Delete: () => clear(axes[chosen]), Backspace: () => clear(axes[chosen]), Escape: () => clear(axes[chosen]),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  for (const name of ["focus", "blur"]) canvas.addEventListener(name, redraw);
  study.listeners.push(redraw);
  // What tests and scripts need to find an axis: where it is on the canvas.
  const where = (name) => { const place = axes.findIndex((one) => one.name === name); return { x: x(place), top: TOP, bottom: TALL - BOTTOM }; };
  element.where = where;
  return { theme: redraw, resize: redraw };
};
