// The network on a canvas: links coloured by how busy they were, nodes in their places.
//
// twofold.network(element, about, nodes, links) draws what experiments/output/pages/links.py makes,
// and returns {update(about, nodes, links), theme(), resize()}.
"use strict";

twofold.network = (element, about, nodes, links) => {
  const EDGE = 26;
  const state = { scale: 1, x: 0, y: 0, drag: null, hovered: -1 };
  let context = null, width = 0, height = 0, most = 0, box = null;

  const canvas = twofold.make("canvas", { tabindex: "0", role: "application", "aria-label": "network with utilisation of links: plus and minus zoom, arrows move, N and P go through the busiest links, Home shows all" });
  const told = twofold.telling();
  const tools = twofold.make("div", { class: "tools", role: "toolbar", "aria-label": "network" });
  const legend = twofold.make("div", { class: "legend" });
  element.replaceChildren(tools, canvas, legend, told);

  const take = () => {
    const { x, y } = nodes.columns;
    const range = (values) => values.reduce(([least, top], one) => [Math.min(least, one), Math.max(top, one)], [Infinity, -Infinity]);
    const [left, right] = range(x.values), [low, high] = range(y.values);
    box = { left, low, wide: Math.max(right - left, 1e-9), tall: Math.max(high - low, 1e-9) };
    most = links.columns.use.values.reduce((top, one) => Math.max(top, one), 0);
    state.order = [...links.columns.use.values.keys()].sort((a, b) => links.columns.use.values[b] - links.columns.use.values[a]);
  };

  const place = (node) => [
    EDGE + ((nodes.columns.x.values[node] - box.left) / box.wide) * (width - 2 * EDGE) * state.scale + state.x,
    height - EDGE - ((nodes.columns.y.values[node] - box.low) / box.tall) * (height - 2 * EDGE) * state.scale + state.y,
  ];
  const hexes = (text) => text.match(/[0-9a-f]{2}/gi).map((one) => parseInt(one, 16));
  const ramp = () => ["use-0", "use-1", "use-2", "use-3"].map((one) => hexes(twofold.colour(one)));
  const shade = (colours, share) => {
    const at = Math.min(0.9999, Math.max(0, share)) * (colours.length - 1);
    const [one, other] = [colours[Math.floor(at)], colours[Math.floor(at) + 1]];
    return `rgb(${one.map((value, part) => Math.round(value + (other[part] - value) * (at % 1))).join(",")})`;
  };

  const draw = () => {
    width = Math.max(260, element.clientWidth - 2);
    height = Math.min(520, Math.max(260, width * 0.5));
    context = twofold.sharpen(canvas, width, height);
    context.fillStyle = twofold.colour("card");
    context.fillRect(0, 0, width, height);
    const colours = ramp();
    const { a, b, use } = links.columns;
    for (const link of [...state.order].reverse()) {
      const [x0, y0] = place(a.values[link]), [x1, y1] = place(b.values[link]);
      const share = Math.min(1, use.values[link]); // of the step, not of the busiest link: 6 % busy is nearly idle
      context.strokeStyle = link === state.hovered ? twofold.colour("accent") : shade(colours, share);
      context.lineWidth = (link === state.hovered ? 3 : 0.8) + 2.4 * share;
      context.beginPath();
      context.moveTo(x0, y0);
      context.lineTo(x1, y1);
      context.stroke();
    }
    const few = nodes.rows <= 160;
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let node = 0; node < nodes.rows; node++) {
      const kind = twofold.cell(nodes.columns.kind, node), name = String(twofold.cell(nodes.columns.name, node));
      const [x, y] = place(node);
      const size = (kind === "rank" ? 8 : kind === "nic" ? 4 : 9) * (few ? 1 : 0.45) * Math.min(2, Math.sqrt(state.scale));
      context.fillStyle = twofold.colour(kind === "rank" ? "node" : kind === "nic" ? "soft" : "card");
      context.strokeStyle = twofold.colour("node");
      context.lineWidth = 1;
      context.beginPath();
      if (kind === "rank") context.arc(x, y, size, 0, 2 * Math.PI);
      else context.rect(x - size, y - size * 0.8, 2 * size, 1.6 * size);
      context.fill();
      context.stroke();
      if (few && kind === "rank") { context.fillStyle = twofold.colour("card"); context.fillText(name, x, y + 0.5); }
      else if (few && kind === "switch" && nodes.rows < 60) { context.fillStyle = twofold.colour("soft"); context.fillText(name, x, y - 15); }
    }
  };
  const redraw = twofold.framed(draw);

  const say = (link) => {
    const { a, b, use, bytes, bandwidth, resource } = links.columns;
    const names = [a, b].map((end) => twofold.cell(nodes.columns.name, end.values[link]));
    return [
      `${names[0]} – ${names[1]}`,
      `${about.resources[resource.values[link]]}, ${twofold.say(bandwidth.values[link], "B/s")}`,
      `busy ${(100 * use.values[link]).toPrecision(3)} % of the step, ${twofold.say(bytes.values[link], "B")} in both directions`,
    ];
  };
  const nearest = (event) => {
    const room = canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - room.left, event.clientY - room.top];
    let found = -1, least = 8;
    for (let link = 0; link < links.rows; link++) {
      const [x0, y0] = place(links.columns.a.values[link]), [x1, y1] = place(links.columns.b.values[link]);
      const long = (x1 - x0) ** 2 + (y1 - y0) ** 2 || 1;
      const along = Math.min(1, Math.max(0, ((px - x0) * (x1 - x0) + (py - y0) * (y1 - y0)) / long));
      const off = Math.hypot(px - x0 - along * (x1 - x0), py - y0 - along * (y1 - y0));
      if (off < least) { least = off; found = link; }
    }
    return found;
  };
  const choose = (link) => {
    state.hovered = link;
    told.textContent = say(link).join(" · ");
    redraw();
  };
  const step = (by) => {
    const at = state.order.indexOf(state.hovered);
    choose(state.order[Math.min(state.order.length - 1, Math.max(0, at + by))]);
  };
  const zoom = (factor, px = width / 2, py = height / 2) => {
    const scale = Math.min(40, Math.max(1, state.scale * factor));
    const grown = scale / state.scale;
    state.x = scale === 1 ? 0 : (px - EDGE) - (px - EDGE - state.x) * grown;
    state.y = scale === 1 ? 0 : (py - height + EDGE) - (py - height + EDGE - state.y) * grown;
    state.scale = scale;
    redraw();
  };
  const move = (x, y) => { if (state.scale > 1) { state.x += x; state.y += y; redraw(); } };
  const fit = () => { Object.assign(state, { scale: 1, x: 0, y: 0 }); redraw(); };
  const keys = {
    "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), Home: fit, Escape: fit, n: () => step(1), p: () => step(-1),
    ArrowLeft: () => move(40, 0), ArrowRight: () => move(-40, 0), ArrowUp: () => move(0, 40), ArrowDown: () => move(0, -40),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const room = canvas.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY / 300), event.clientX - room.left, event.clientY - room.top);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    state.drag = { x: event.clientX, y: event.clientY };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (state.drag) {
      move(event.clientX - state.drag.x, event.clientY - state.drag.y);
      state.drag = { x: event.clientX, y: event.clientY };
      return;
    }
    const link = nearest(event);
    if (link !== state.hovered) { state.hovered = link; redraw(); }
    if (link >= 0) twofold.tip.show(event, say(link)); else twofold.tip.hide();
  });
  canvas.addEventListener("pointerup", () => {
    state.drag = null;
    if (state.hovered >= 0) choose(state.hovered);
  });
  canvas.addEventListener("pointerleave", () => { twofold.tip.hide(); });

  const equip = () => {
    const button = (text, label, run) => twofold.make("button", { type: "button", title: label, "aria-label": label, onclick: run }, text);
    tools.replaceChildren(button("+", "zoom in", () => zoom(1.6)), button("−", "zoom out", () => zoom(1 / 1.6)), button("Fit", "show all", fit), twofold.make("span", { class: "hint" }, `${about.name} · Ctrl + wheel zooms, drag moves`));
    legend.replaceChildren(
      twofold.make("span", {}, "busy 0 %"), twofold.make("i", { class: "ramp" }), twofold.make("span", {}, "100 % of the step"),
      twofold.make("span", {}, most ? `busiest link: ${(100 * most).toPrecision(3)} %` : "nothing crossed any link"),
      twofold.make("span", {}, twofold.make("i", { class: "round" }), "rank"), twofold.make("span", {}, twofold.make("i", { class: "square" }), "switch"),
    );
  };
  const update = (newAbout, newNodes, newLinks) => {
    [about, nodes, links] = [newAbout, newNodes, newLinks];
    take();
    equip();
    redraw();
  };
  take();
  equip();
  draw();
  return { update, theme: redraw, resize: draw };
};

twofold.views.network = (element, about, tables) => twofold.network(element, about, tables.nodes, tables.links);
