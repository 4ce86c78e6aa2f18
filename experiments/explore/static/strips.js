// The timeline of ranks as strips: a column a window, in it what share was spent on what. Beside a
// longer one it is drawn on the longer one's axis.
"use strict";

twofold.strips = (element, onPage) => {
  const { make } = twofold;
  const ROW = 22, PATH = 16, GAP = 7, AXIS = 20, THIN = 3;
  let drawn = null, rows = [], width = 0, height = 0, reach = 0;
  const canvas = make("canvas", { role: "img", tabindex: "0" });
  const pager = make("div", { class: "tools pager", hidden: true });
  const legend = make("div", { class: "legend" });
  element.replaceChildren(pager, canvas, legend);
  const label = () => (width < 480 ? 54 : 92);

  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const unpack = (strip) => ({
    rank: strip.rank,
    uses: Object.fromEntries(Object.entries(strip.uses).map(([use, text]) => [use, bytes(text)])),
    moving: strip.moving ? bytes(strip.moving) : null,
  });
  const pixels = () => ((width - label()) / drawn.windows) * (drawn.step_s / reach); // of a window
  const top = (number) => (number ? PATH + GAP + (number - 1) * (ROW + GAP) : 0);

  const strip = (context, row, at, tall, fills) => {
    const wide = pixels();
    const floor = new Float32Array(drawn.windows).fill(at + tall);
    for (const use of drawn.uses) {
      const shares = row.uses[use];
      if (!shares) continue;
      context.fillStyle = fills[use];
      // Windows that are alike are one rectangle: most are full of one use.
      for (let first = 0, next; first < drawn.windows; first = next) {
        const [share, below] = [shares[first], floor[first]];
        for (next = first + 1; next < drawn.windows && shares[next] === share && floor[next] === below;) next++;
        if (!share) continue;
        const high = (share / 255) * tall;
        floor.fill(below - high, first, next);
        context.fillRect(label() + first * wide, below - high, (next - first) * wide + 0.6, high);
      }
    }
  };

  const draw = () => {
    if (!drawn) return;
    width = Math.max(240, element.clientWidth);
    height = top(rows.length) + AXIS;
    const context = twofold.sharpen(canvas, width, height);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const fills = Object.fromEntries(drawn.uses.map((use) => [use, colour(`of-${use.split(" ")[0]}`)]));
    const wide = pixels();
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    rows.forEach((row, number) => {
      const tall = number ? ROW : PATH;
      context.fillStyle = colour("of-idle");
      context.fillRect(label(), top(number), wide * drawn.windows, tall);
      strip(context, row, top(number), tall, fills);
      context.fillStyle = colour(number ? "soft" : "text");
      context.fillText(number ? `rank ${row.rank}` : width < 480 ? "path" : "critical path", 0, top(number) + tall / 2);
      if (!row.moving) return;
      context.fillStyle = colour("orange");
      for (let at = 0; at < drawn.windows; at++) {
        if (row.moving[at] < 8) continue;
        context.globalAlpha = 0.35 + 0.65 * (row.moving[at] / 255);
        context.fillRect(label() + at * wide, top(number) + ROW + 1, wide + 0.6, THIN);
      }
      context.globalAlpha = 1;
    });
    const place = new Map(rows.map((row, number) => [row.rank, number]));
    context.fillStyle = colour("accent");
    drawn.path_rank.forEach((rank, at) => {
      const number = place.get(rank);
      if (rank >= 0 && number) context.fillRect(label() + at * wide, top(number) - 2, wide + 0.6, 2);
    });
    context.fillStyle = colour("soft");
    context.textAlign = "center";
    const count = width < 480 ? 3 : 6;
    for (let tick = 0; tick <= count; tick++) {
      const at = label() + (tick / count) * (width - label());
      context.textAlign = tick === 0 ? "left" : tick === count ? "right" : "center";
      context.fillText(twofold.say((tick / count) * reach, "s", 3), at, height - 7);
    }
    context.textAlign = "left";
  };

  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const at = Math.floor((event.clientX - box.left - label()) / pixels());
    const y = event.clientY - box.top;
    const number = rows.findIndex((_, row) => y >= top(row) - 2 && y < top(row) + (row ? ROW : PATH) + THIN + 1);
    return number >= 0 && at >= 0 && at < drawn.windows ? { row: rows[number], number, at } : null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const found = drawn && under(event);
    if (!found) { twofold.tip.hide(); return; }
    const { row, number, at } = found;
    const each = drawn.step_s / drawn.windows;
    const shares = drawn.uses.filter((use) => row.uses[use]?.[at]).map((use) => `${use} ${Math.round(row.uses[use][at] / 2.55)} %`);
    twofold.tip.show(event, [
      number ? `rank ${row.rank}` : `critical path${drawn.path_rank[at] >= 0 ? `, on rank ${drawn.path_rank[at]}` : ""}`,
      `${twofold.say(at * each, "s")} to ${twofold.say((at + 1) * each, "s")}`,
      shares.join(" · ") || "idle",
      row.moving?.[at] ? `communicating ${Math.round(row.moving[at] / 2.55)} %, hidden or not` : "",
    ]);
  });
  canvas.addEventListener("pointerleave", twofold.tip.hide);

  const page = () => {
    const many = drawn.ranks > rows.length - 1;
    pager.hidden = !many || !onPage;
    if (pager.hidden) return;
    const last = drawn.first_rank + rows.length - 1;
    pager.replaceChildren(
      make("button", { type: "button", disabled: drawn.first_rank === 0, onclick: () => onPage(Math.max(0, drawn.first_rank - 16)) }, "‹"),
      make("span", {}, `${drawn.first_rank + 1} to ${last} of ${drawn.ranks.toLocaleString("en")} ranks`),
      make("button", { type: "button", disabled: last >= drawn.ranks, onclick: () => onPage(drawn.first_rank + 16) }, "›"),
      make("span", { class: "hint" }, drawn.all_ranks > drawn.ranks ? `the job has ${drawn.all_ranks.toLocaleString("en")}: the others are copies` : ""),
    );
  };

  const update = (told, longest = told.step_s) => {
    drawn = told;
    reach = longest || 1;
    rows = [told.path, ...told.rows].map(unpack);
    canvas.setAttribute("aria-label", `${told.rows.length} ranks over ${twofold.say(told.step_s, "s")}`);
    legend.replaceChildren(...told.uses.filter((use) => rows.some((row) => row.uses[use])).map((use) => make("span", {}, make("i", { class: `use-${use.split(" ")[0]}` }), use)));
    page();
    draw();
  };
  return { update, theme: draw, resize: draw, windows: () => Math.round(Math.min(1200, Math.max(120, (element.clientWidth - label()) / 1.5))) };
};
