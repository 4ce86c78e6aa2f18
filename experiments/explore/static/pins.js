// Two settings that stay beside what is set now: A and B, each with its step, cause, price and timeline.
"use strict";

// `ask(query)` answers a setting, `go(query)` sets it, `changed()` is called when a pin comes or goes.
twofold.pins = ({ ask, go, changed }) => {
  const { make } = twofold;
  const at = (id) => document.getElementById(id);
  const pinned = new Map(); // by name: { query, answer, error, strips, place }
  let now = null;

  const title = (name) => (name === "now" ? "Now" : name.toUpperCase());
  const settings = (answer) => (answer.changes.length ? answer.changes.map((one) => one.change).join(", ") : "as recorded");

  // Steps are compared by one engine: while sliders move, by the one without contention.
  const step = (answer, engine) => (answer.engine === engine || answer.analytic_step_s === null ? answer.step_s : answer.analytic_step_s);
  const compared = (first, second) => {
    const analytic = first.engine === "analytic" || second.engine === "analytic";
    const engine = analytic ? "analytic" : second.engine;
    return 100 * (step(second, engine) / step(first, engine) - 1);
  };
  const sentence = () => {
    const [first, second] = [...shown()].filter(([, one]) => one.answer);
    if (!first || !second) return "";
    const more = compared(first[1].answer, second[1].answer);
    const size = Math.abs(more) < 0.005 ? "as long as" : `${Math.abs(more).toFixed(2)} % ${more > 0 ? "longer" : "shorter"} than`;
    return `${title(second[0])} takes ${second[1].answer.step}, ${size} ${title(first[0])}.`;
  };
  // A before B; what is set now stands for one that is not pinned.
  const shown = () => {
    const rows = twofold.state.PINS.filter((name) => pinned.has(name)).map((name) => [name, pinned.get(name)]);
    return rows.length < 2 && now ? [...rows, ["now", { answer: now }]] : rows;
  };

  const row = ([name, one], most) => {
    const bar = make("i", { class: "pin-bar" });
    bar.style.setProperty("--long", one.answer ? one.answer.step_s / most : 0);
    const buttons = name === "now" ? [] : [
      make("button", { type: "button", onclick: () => go(one.query) }, "Set"),
      make("button", { type: "button", "aria-label": `unpin ${title(name)}`, onclick: () => { remove(name); changed(); } }, "✕"),
    ];
    const about = one.error ? make("p", { class: "refused" }, one.error) : one.answer
      ? make("p", { class: "pin-about" }, make("b", {}, settings(one.answer)), ` ${one.answer.cause}`, one.answer.price ? ` The job’s nodes and network cost ${one.answer.price}.` : "")
      : make("p", { class: "pin-about" }, "…");
    return make("div", { class: "pin", "data-pin": name },
      make("b", { class: "pin-name" }, title(name)), make("span", { class: "pin-step" }, one.answer?.step ?? "…"), make("span", { class: "pin-track" }, bar),
      make("span", { class: "actions" }, ...buttons), about);
  };
  const draw = () => {
    const rows = shown();
    at("pins-card").hidden = !pinned.size;
    if (!pinned.size) return;
    const most = Math.max(1e-12, ...rows.map(([, one]) => one.answer?.step_s ?? 0));
    at("pins-sentence").textContent = sentence();
    at("pins").replaceChildren(...rows.map((entry) => row(entry, most)));
    const places = [];
    const reach = Math.max(...[...pinned.values()].map((one) => one.answer?.step_s ?? 0));
    for (const name of twofold.state.PINS) {
      const one = pinned.get(name);
      if (!one?.answer) continue;
      one.strips.update(one.answer.timeline, reach);
      places.push(make("h3", {}, title(name)), one.place);
    }
    at("pin-timelines").replaceChildren(...places);
    twofold.drawn.forEach((view) => view.resize?.());
  };

  const remove = (name) => {
    const one = pinned.get(name);
    if (one) twofold.drawn.splice(twofold.drawn.indexOf(one.strips), 1);
    pinned.delete(name);
    draw();
  };
  const pin = async (name, query) => {
    if (pinned.get(name)?.query === query) return;
    remove(name);
    const place = make("div", { class: "pin-timeline" });
    const one = { query, answer: null, error: "", strips: twofold.strips(place, null), place };
    pinned.set(name, one);
    twofold.drawn.push(one.strips);
    draw();
    const found = await ask(query).catch((error) => ({ error: error.message }));
    if (pinned.get(name) !== one) return;
    if (found.error) one.error = found.error; else one.answer = found;
    draw();
  };
  // What the address says: pins that it lacks go.
  const take = (queries) => {
    for (const name of twofold.state.PINS) {
      if (name in queries) pin(name, queries[name]); else if (pinned.has(name)) remove(name);
    }
  };
  const follow = (answer) => { now = answer; if (pinned.size) draw(); };
  const address = () => {
    const words = new URLSearchParams();
    for (const [name, one] of pinned) words.append(name, one.query);
    return words.toString();
  };
  return { pin, take, follow, address };
};
