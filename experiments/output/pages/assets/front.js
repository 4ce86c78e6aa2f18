// The front of a study on a canvas: two figures against each other, coloured by a third.
//
// A canvas, for it has to draw a hundred thousand points also where WebGL is done in software.
"use strict";

twofold.front = (element, study) => {
  const TALL = 430, LEFT = 84, RIGHT = 16, TOP = 14, BOTTOM = 46, NEAR = 12;
  const { state, axes, goals, onFront } = study;
  const choices = axes.filter((one) => one.shown);
  const second = goals[1] ?? choices.find((one) => one.name !== goals[0])?.name ?? goals[0];
  const third = goals[2] ?? choices.find((one) => one.name !== goals[0] && one.name !== second)?.name ?? goals[0];
  const canvas = twofold.make("canvas", { tabindex: "0", role: "application", "aria-label": "points: left and right go along the front, Enter opens a point, Escape clears the box" });
  const told = twofold.telling();
  const legend = twofold.make("div", { class: "legend" });
  let context = null, width = 0, drag = null, hovered = null, ends = {}, along = [], box = null;

  const pick = (label, value) => twofold.make("label", {}, label, twofold.make("select", { onchange: () => redraw(), "data-axis": label },
    ...choices.map((one) => twofold.make("option", { value: one.name, selected: one.name === value }, one.name))));
  const [across, up, shade] = [pick("across", second), pick("up", goals[0]), pick("colour", third)];
  const near = twofold.make("input", { type: "checkbox", onchange: () => redraw() });
  const axisOf = (label) => study.by(label.querySelector("select").value);
  element.append(twofold.make("div", { class: "tools" }, across, up, shade, twofold.make("label", {}, near, "zoom to what is shown"),
    twofold.make("span", { class: "hint" }, "click opens a point, a box filters")), canvas, legend, told);

  // The ends of an axis: of the points that are shown, or of all that are feasible, refused ones
  // too where they are asked for.
  const endsOf = (axis) => {
    const whole = state.show === "all" || state.show === "refused";
    let [low, high] = [Infinity, -Infinity];
    const take = (row) => {
      const at = axis.positions[row];
      if (at < low) low = at;
      if (at > high) high = at;
    };
    if (near.checked) state.rows.forEach(take);
    else if (!whole) for (let row = 0; row < study.points.rows; row++) if (study.feasible[row]) take(row);
    return low <= high ? pad(axis, low, high) : pad(axis, axis.low, axis.high);
  };
  const pad = (axis, low, high) => {
    const room = (high - low || (axis.high - axis.low) / 10) * 0.04;
    return { low: low - room, high: high + room };
  };
  const x = (at) => LEFT + ((at - ends.x.low) / (ends.x.high - ends.x.low)) * (width - LEFT - RIGHT);
  const y = (at) => TALL - BOTTOM - ((at - ends.y.low) / (ends.y.high - ends.y.low)) * (TALL - TOP - BOTTOM);
  const placeOf = (row) => [x(axisOf(across).positions[row]), y(axisOf(up).positions[row])];
  const ticksOf = (axis, low, high) => {
    const whole = axis.ticks.filter(([at]) => at >= low && at <= high);
    if (axis.levels || whole.length === axis.ticks.length) return whole;
    return [0, 1, 2, 3, 4].map((step) => low + ((high - low) * (step + 0.5)) / 5).map((at) => [at, axis.say(Number(axis.back(at).toPrecision(3)))]);
  };
  const ramp = () => ["blue", "green", "yellow"].map((name) => twofold.colour(name).match(/[0-9a-f]{2}/gi).map((one) => parseInt(one, 16)));
  const BANDS = 24;
  const bandsOf = () => Array.from({ length: BANDS }, (_, band) => {
    const colours = ramp(), at = (band / (BANDS - 1)) * 1.999;
    const [one, other] = [colours[Math.floor(at)], colours[Math.floor(at) + 1]];
    return `rgb(${one.map((value, part) => Math.round(value + (other[part] - value) * (at % 1))).join(",")})`;
  });

  const drawGrid = (horizontal, vertical) => {
    context.font = "11.5px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const [at, text] of ticksOf(vertical, ends.y.low, ends.y.high)) {
      context.fillStyle = twofold.colour("line");
      context.fillRect(LEFT, Math.round(y(at)), width - LEFT - RIGHT, 1);
      context.fillStyle = twofold.colour("soft");
      context.fillText(text, LEFT - 8, y(at));
    }
    context.textAlign = "center";
    const ticks = ticksOf(horizontal, ends.x.low, ends.x.high);
    const every = Math.max(1, Math.ceil((ticks.length * 78) / (width - LEFT - RIGHT)));
    ticks.forEach(([at, text], place) => {
      context.fillStyle = twofold.colour("line");
      context.fillRect(Math.round(x(at)), TOP, 1, TALL - TOP - BOTTOM);
      context.fillStyle = twofold.colour("soft");
      if (place % every === 0) context.fillText(text, Math.min(width - RIGHT - 24, Math.max(LEFT, x(at))), TALL - BOTTOM + 14);
    });
    context.font = "600 12px system-ui, sans-serif";
    context.fillStyle = twofold.colour("text");
    context.fillText(said(horizontal), LEFT + (width - LEFT - RIGHT) / 2, TALL - 10);
    context.save();
    context.translate(11, TOP + (TALL - TOP - BOTTOM) / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(said(vertical), 0, 0);
    context.restore();
  };
  const said = (axis) => axis.name + (axis.goal ? ` (${axis.goal})` : "");

  const drawPoints = (horizontal, vertical, colour) => {
    const bands = Array.from({ length: BANDS + 1 }, () => []);
    for (const row of state.rows) {
      const share = (colour.positions[row] - colour.low) / (colour.high - colour.low);
      bands[Number.isNaN(share) ? BANDS : Math.min(BANDS - 1, Math.max(0, Math.floor(share * BANDS)))].push(row);
    }
    const styles = [...bandsOf(), twofold.colour("grey")];
    const size = state.count > 20000 ? 2 : state.count > 4000 ? 3 : 4.5;
    context.globalAlpha = state.count > 500 ? 0.62 : 0.85;
    bands.forEach((rows, band) => {
      context.fillStyle = styles[band];
      for (const row of rows) context.fillRect(x(horizontal.positions[row]) - size / 2, y(vertical.positions[row]) - size / 2, size, size);
    });
    context.globalAlpha = 1;
  };
  const diamond = (px, py, size) => {
    context.beginPath();
    context.moveTo(px, py - size);
    context.lineTo(px + size, py);
    context.lineTo(px, py + size);
    context.lineTo(px - size, py);
    context.closePath();
    context.fill();
    context.stroke();
  };
  const drawFront = (horizontal, vertical) => {
    along = state.rows.filter((row) => onFront[row]).sort((one, other) => horizontal.positions[one] - horizontal.positions[other] || one - other);
    context.strokeStyle = twofold.colour("accent");
    context.lineWidth = 1.6;
    if (goals.length === 2 && goals.includes(horizontal.name) && goals.includes(vertical.name)) {
      context.beginPath();
      along.forEach((row) => context.lineTo(...placeOf(row)));
      context.stroke();
    }
    context.fillStyle = twofold.colour("accent");
    context.strokeStyle = twofold.colour("card");
    context.lineWidth = 1;
    for (const row of along) diamond(...placeOf(row), 5);
    for (const [row, colour] of [[hovered, "text"], [state.chosen, "bad"]]) {
      if (row === null) continue;
      context.strokeStyle = twofold.colour(colour);
      context.lineWidth = 2.5;
      context.beginPath();
      context.arc(...placeOf(row), 9, 0, 2 * Math.PI);
      context.stroke();
    }
  };
  const draw = () => {
    const begun = performance.now();
    const [horizontal, vertical, colour] = [axisOf(across), axisOf(up), axisOf(shade)];
    ends = { x: endsOf(horizontal), y: endsOf(vertical) };
    width = Math.max(260, element.clientWidth);
    context = twofold.sharpen(canvas, width, TALL);
    context.fillStyle = twofold.colour("card");
    context.fillRect(0, 0, width, TALL);
    drawGrid(horizontal, vertical);
    context.save();
    context.beginPath();
    context.rect(LEFT - 8, TOP - 8, width - LEFT - RIGHT + 16, TALL - TOP - BOTTOM + 16);
    context.clip();
    drawPoints(horizontal, vertical, colour);
    drawFront(horizontal, vertical);
    context.restore();
    if (box) {
      context.fillStyle = twofold.colour("accent");
      context.globalAlpha = 0.18;
      context.fillRect(Math.min(box[0], box[2]), Math.min(box[1], box[3]), Math.abs(box[2] - box[0]), Math.abs(box[3] - box[1]));
      context.globalAlpha = 1;
    }
    const swatch = twofold.make("i", { class: "ramp points-ramp" });
    legend.replaceChildren(twofold.make("span", {}, twofold.make("b", { class: "diamond" }, "◆ "), "front"),
      twofold.make("span", {}, `${colour.name}: ${colour.ticks[0][1]}`), swatch, twofold.make("span", {}, colour.ticks[colour.ticks.length - 1][1]));
    element.dataset.points = state.rows.length;
    element.dataset.took = performance.now() - begun;
  };
  const redraw = twofold.framed(draw);

  const nearest = (px, py) => {
    const [horizontal, vertical] = [axisOf(across), axisOf(up)];
    let found = null, least = NEAR ** 2;
    for (const row of state.rows) {
      const off = (x(horizontal.positions[row]) - px) ** 2 + (y(vertical.positions[row]) - py) ** 2 - (onFront[row] ? 9 : 0);
      if (off < least) { least = off; found = row; }
    }
    return found;
  };
  const at = (event) => {
    const room = canvas.getBoundingClientRect();
    return [event.clientX - room.left, event.clientY - room.top];
  };
  const filterBox = ([x0, y0, x1, y1]) => {
    const value = (span, share) => span.low + (span.high - span.low) * share;
    const sides = [[axisOf(across), ends.x, [x0, x1].map((one) => (one - LEFT) / (width - LEFT - RIGHT))], [axisOf(up), ends.y, [y0, y1].map((one) => (TALL - BOTTOM - one) / (TALL - TOP - BOTTOM))]];
    for (const [axis, span, shares] of sides) state.filters.set(axis.name, { low: value(span, Math.min(...shares)), high: value(span, Math.max(...shares)) });
    study.apply();
    told.textContent = `${state.count.toLocaleString("en")} points in the box; double click or Escape clears it`;
  };
  const clear = () => {
    for (const axis of [axisOf(across), axisOf(up)]) state.filters.delete(axis.name);
    told.textContent = "";
    study.apply();
  };
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); drag = at(event); });
  canvas.addEventListener("pointermove", (event) => {
    const [px, py] = at(event);
    if (drag) {
      if (Math.hypot(px - drag[0], py - drag[1]) > 4) { box = [...drag, px, py]; redraw(); }
      return;
    }
    const found = nearest(px, py);
    if (found !== hovered) { hovered = found; redraw(); }
    if (found !== null) twofold.tip.show(event, study.lines(found)); else twofold.tip.hide();
  });
  canvas.addEventListener("pointerup", (event) => {
    const found = box ? null : nearest(...at(event));
    const chosen = box;
    [drag, box] = [null, null];
    if (chosen) filterBox(chosen); else if (found !== null) study.choose(found);
    redraw();
  });
  canvas.addEventListener("pointerleave", () => { twofold.tip.hide(); if (hovered !== null) { hovered = null; redraw(); } });
  canvas.addEventListener("dblclick", clear);
  const step = (by) => {
    if (!along.length) return;
    const place = along.indexOf(hovered);
    hovered = along[place < 0 ? 0 : Math.min(along.length - 1, Math.max(0, place + by))];
    told.textContent = study.lines(hovered).filter(Boolean).join(" · ");
    redraw();
  };
  const keys = { ArrowRight: () => step(1), ArrowLeft: () => step(-1), Enter: () => { if (hovered !== null) study.choose(hovered); }, Escape: clear };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  study.listeners.push(redraw);
  // Where a point is on the canvas, for tests and scripts.
  element.where = (row) => { const [px, py] = placeOf(row); return { x: px, y: py }; };
  return { theme: redraw, resize: redraw };
};
