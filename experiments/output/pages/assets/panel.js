// A point of a study closely: its values, and where they are in the page bill, utilities, timeline.
"use strict";

twofold.panel = (element, study) => {
  const { spec } = study;
  let drawn = [], shownPoint = null;

  const table = (heads, rows, foot = null) => twofold.make("div", { class: "scroll" }, twofold.make("table", {},
    twofold.make("thead", {}, twofold.make("tr", {}, ...heads.map(([text, kind]) => twofold.make("th", { class: kind }, text)))),
    twofold.make("tbody", {}, ...rows.map((row) => twofold.make("tr", {}, ...row.map((cell, at) => twofold.make("td", { class: heads[at][1] }, cell))))),
    foot ? twofold.make("tfoot", {}, twofold.make("tr", {}, ...foot.map((cell, at) => twofold.make("td", { class: heads[at][1] }, cell)))) : null));

  const values = (point) => {
    const told = study.axes.map((axis) => [axis.name, axis.say(axis.cell(point))]).filter(([, text]) => text !== "");
    const again = spec.confirmed[point];
    if (again) told.push([`step by ${spec.confirm}`, `${twofold.say(again[0], "s")} (${again[1] >= 0 ? "+" : ""}${again[1].toFixed(2)} %)`]);
    if (spec.kept[point] !== undefined) told.push(["on the front in", `${twofold.say(spec.kept[point], "%")} of draws`]);
    const why = study.refused.levels[study.refused.codes[point]];
    if (why) told.push(["refused by", why]);
    return twofold.make("dl", { class: "facts values" }, ...told.flatMap(([name, text]) => [twofold.make("dt", {}, name), twofold.make("dd", {}, text)]));
  };

  const utilities = (one) => {
    const known = one.utilities.filter((row) => row.pct !== null);
    const most = Math.max(1e-9, ...known.map((row) => row.pct));
    const bar = (pct) => {
      const made = twofold.make("span", { class: "meter", "aria-hidden": "true" });
      made.style.width = `${Math.max(0, (100 * pct) / most)}%`;
      return made;
    };
    return [twofold.make("h3", {}, "What twice of each resource would save"),
      table([["resource", ""], ["now", "number"], ["doubled", "number"], ["step saved", "number"], ["", "rest"]],
        known.map((row) => [row.resource, row.now, row.doubled, twofold.say(row.pct, "%"), bar(row.pct)])),
      twofold.make("p", { class: "note" }, "By the analytic engine, without contention.")];
  };

  const bill = (one) => {
    if (!one.bill) return [twofold.make("h3", {}, "Bill"), twofold.make("p", { class: "note" }, "This network has no bill of materials.")];
    const money = (value) => (value === null ? "no price" : twofold.say(value, "USD"));
    const power = (value) => (value === null ? "" : twofold.say(value, "W"));
    const missing = one.bill.missing.length ? twofold.make("p", { class: "note" }, `not known: ${one.bill.missing.join(", ")}`) : null;
    return [twofold.make("h3", {}, "Bill of materials"),
      table([["part", ""], ["count", "number"], ["each", "number"], ["cost", "number"], ["power", "number"]],
        one.bill.lines.map((line) => [line.what || line.part, line.count.toLocaleString("en"), money(line.price), money(line.cost), power(line.power)]),
        ["in all, of the site", "", "", money(one.bill.cost), power(one.bill.power)]), missing].filter(Boolean);
  };

  const close = async (one, box) => {
    const line = twofold.make("div", { class: "timeline" }), net = twofold.make("div", { class: "network" });
    const told = `${one.workload} on ${one.cluster}, ${one.ranks.toLocaleString("en")} ranks: step ${twofold.say(one.step_s, "s")}${one.saved}`;
    box.append(twofold.make("h3", { class: "workload" }, told),
      twofold.make("div", { class: "grid" }, twofold.make("div", {}, ...utilities(one)), twofold.make("div", {}, ...bill(one))),
      twofold.make("h3", {}, "Timeline of ranks"), one.folded ? twofold.make("p", { class: "note" }, one.folded) : "", line);
    drawn.push(twofold.timeline(line, one.timeline, await twofold.unpacked(one.slices)));
    if (one.network) {
      box.append(twofold.make("h3", {}, "Network"), net);
      drawn.push(twofold.network(net, one.network, await twofold.unpacked(one.nodes), await twofold.unpacked(one.links)));
    }
  };

  const open = async (point, scroll) => {
    shownPoint = point;
    drawn = [];
    const details = spec.details[point];
    const title = twofold.make("h3", { tabindex: "-1", class: "title" }, `Point ${point.toLocaleString("en")}${study.onFront[point] ? ", on the front" : ""}`);
    const closer = twofold.make("button", { type: "button", onclick: shut }, "Close");
    const box = twofold.make("div", {});
    const more = spec.directory ? `twofold study ${spec.directory} --write FILE.html --point ${point}` : "report(..., points=...)";
    const hint = details ? null : twofold.make("p", { class: "note" }, "This page lacks its bill, utilities and timeline; ", twofold.make("code", {}, more), " adds them.");
    element.replaceChildren(twofold.make("div", { class: "tools" }, title, closer, others(point)), values(point), ...(hint ? [hint] : []), box);
    element.dataset.open = point;
    for (const one of details ?? []) if (shownPoint === point) await close(one, box);
    if (scroll) {
      element.scrollIntoView({ block: "nearest" });
      title.focus({ preventScroll: true });
    }
  };
  const others = (point) => twofold.make("label", {}, "in detail", twofold.make("select", { "aria-label": "points in detail", onchange: (event) => study.choose(Number(event.target.value)) },
    ...[...new Set([String(point), ...Object.keys(spec.details)])].map((one) => twofold.make("option", { value: one, selected: one === String(point) }, `point ${one}`))));
  const shut = () => {
    shownPoint = null;
    drawn = [];
    delete element.dataset.open;
    element.replaceChildren();
  };
  const redraw = (what) => drawn.forEach((one) => one[what]?.());
  return { open, theme: () => redraw("theme"), resize: () => redraw("resize") };
};
