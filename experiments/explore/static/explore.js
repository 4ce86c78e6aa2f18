// The page: what is set goes into the address and to the server, what comes back is shown.
//
// One move is asked for at a time: what is turned meanwhile is asked for when the answer is there,
// the newest of it only. An answer that is long in coming is not waited for once a newer state is
// set; while a slider is held it is, or there would be none until it is let go. When nothing has
// moved for a while the engine that shares links is asked.
"use strict";

(() => {
  const { make, state: words, figures, controls } = twofold;
  const at = (id) => document.getElementById(id);
  const REST = 250, HELD = 1000; // ms without a move: of a slider that was let go, of one that is held
  const PATIENCE = 200; // ms that an answer may take before a newer state is asked for instead
  let state = words.empty();
  let odd = [];
  let about = null, answer = null, network = "";
  let asking = null, again = false, resting = null, choosing = null, tracing = null, timer = null, held = false;
  let strips = null, turning = null, pins = null, budget = null, ranks = null;

  const query = () => {
    const own = words.write(state);
    const rest = new URLSearchParams(odd).toString();
    return [own, rest].filter(Boolean).join("&");
  };
  const ask = async (path, signal, about = query()) => {
    const found = await fetch(`api/${path}?${about}`, { signal, headers: { Accept: "application/json" } });
    if (!(found.headers.get("content-type") ?? "").includes("json")) throw new Error((await found.text()).trim() || `status ${found.status}`);
    return found.json();
  };

  // --- what comes back -------------------------------------------------------------------------
  // A long message, such as one that lists the catalogue: its first clauses, the rest on demand.
  const shortly = (text) => {
    const clauses = text.split("; ");
    let first = clauses.shift();
    while (clauses.length && first.length + clauses[0].length < 160) first += `; ${clauses.shift()}`;
    return clauses.length ? [first, twofold.make("details", {}, twofold.make("summary", {}, "more"), clauses.join("; "))] : [first];
  };
  const refuse = (error) => {
    const own = controls.refuse(error);
    const said = own ? error.split("; write ")[0] : error;
    at("error").hidden = !error;
    at("error").replaceChildren(...shortly(said));
    document.body.classList.toggle("stale", Boolean(error));
  };
  const show = (found) => {
    answer = found;
    refuse("");
    figures.step(answer);
    figures.difference(answer, about.rests);
    figures.utilities(answer, double);
    figures.path(answer);
    figures.touched(answer);
    turning.update(answer, state);
    strips.update(answer.timeline);
    pins.follow(answer);
    budget.follow(answer);
    document.documentElement.dataset.engine = answer.engine;
    document.documentElement.dataset.address = answer.address;
    at("footer").textContent = `${about.version ? `twofold ${about.version} · ` : ""}answered in ${answer.took_ms.toFixed(1)} ms by ${answer.engine}`;
  };

  // An address that cannot be still shows what can be turned: the sliders of the step as it was.
  const refuseFirst = async (error) => {
    if (!answer) {
      const plain = await ask(`moving/${strips.windows()}`, undefined, "");
      if (!plain.error) show(plain);
    }
    refuse(error);
  };

  // --- asking ----------------------------------------------------------------------------------
  const move = async () => {
    clearTimeout(timer);
    resting?.abort();
    choosing?.abort();
    tracing?.abort();
    if (asking) {
      again = true;
      if (!held) supersede(asking);
      return;
    }
    document.documentElement.dataset.settled = "no";
    try {
      do {
        again = false;
        await askNewest();
      } while (again);
      timer = setTimeout(rest, held ? HELD : REST);
      choose();
      trace();
    } catch (error) {
      refuse(`no answer: ${error.message}; does twofold explore still run?`);
    } finally {
      asking = null;
    }
  };
  // Ask for what is set now; what is set when the answer comes is asked for again if it is another.
  const askNewest = async () => {
    const asked = query();
    const { signal } = asking = Object.assign(new AbortController(), { begun: performance.now() });
    try {
      const found = await ask(`moving/${strips.windows()}`, signal);
      if (signal.aborted) return;
      if (found.error) await refuseFirst(found.error); else show(found);
    } catch (error) {
      if (!signal.aborted) throw error;
    }
    again ||= asked !== query();
  };
  // The server stops what nobody waits for, so that the next does not stand behind it.
  const supersede = (one) => setTimeout(() => { if (again && !held) one.abort(); }, one.begun + PATIENCE - performance.now());
  const rest = async () => {
    if (!about.rests || document.body.classList.contains("stale")) { settled(); return; }
    resting = new AbortController();
    const { signal } = resting;
    try {
      const found = await ask(`resting/${strips.windows()}`, signal);
      if (signal.aborted) return;
      if (found.error) refuse(found.error); else show(found);
      settled();
    } catch (error) {
      if (!signal.aborted) refuse(`no answer: ${error.message}; does twofold explore still run?`);
    }
  };
  const settled = () => {
    document.documentElement.dataset.settled = "yes";
    if (at("all-ops").open) drawRanks();
  };

  // What can be chosen on this network; fields are there before that is known.
  const choose = async () => {
    const key = JSON.stringify([state.cluster, state.topologies, state.routing, state.algorithms, state.whatIfs]);
    if (key === network) return;
    choosing?.abort();
    const { signal } = choosing = new AbortController();
    const found = await ask("choices", signal).catch((error) => ({ error: error.message }));
    if (signal.aborted || found.error) return;
    network = key;
    whenLeft(() => controls.network(found, state, changed));
  };
  // The curve behind each slider: of what is set now, unless something else is by then.
  const trace = async () => {
    tracing?.abort();
    const { signal } = tracing = new AbortController();
    const found = await ask("curves", signal).catch((error) => ({ error: error.message }));
    if (!signal.aborted && !found.error) turning.curves(found, answer);
  };
  const fields = () => controls.network({ clusters: [], topologies: {}, routings: [], algorithms: {} }, state, changed);
  // Draw fields anew when nobody writes in one.
  let leaving = null;
  const whenLeft = (draw) => {
    const cards = ["network", "algorithms"].map(at);
    const within = () => cards.some((card) => card.contains(document.activeElement));
    for (const card of cards) card.removeEventListener("focusout", leaving);
    leaving = () => setTimeout(() => { if (!within()) whenLeft(draw); });
    if (within()) for (const card of cards) card.addEventListener("focusout", leaving);
    else draw();
  };

  // --- what is turned --------------------------------------------------------------------------
  const keep = () => {
    const found = [query(), pins.address()].filter(Boolean).join("&");
    const now = location.search.replace(/^\?/, "");
    if (found !== now) history.pushState(null, "", found ? `?${found}` : location.pathname);
  };
  const changed = () => {
    odd = [];
    keep();
    turning.follow(state);
    move();
  };
  const turned = (resource, factor, done) => {
    if (factor === 1) delete state.factors[resource]; else state.factors[resource] = factor;
    held = !done;
    if (done) changed(); else { turning.follow(state); move(); }
  };
  const double = (resource) => turned(resource, Number(((state.factors[resource] ?? 1) * 2).toPrecision(6)), true);
  const take = () => {
    const read = words.read(location.search);
    ({ found: state, odd } = read);
    pins.take(read.pins);
    network = "";
    controls.whatIfs(state, changed);
    fields();
    turning.follow(state);
    move();
  };

  // --- A and B -----------------------------------------------------------------------------------
  const go = (text) => {
    ({ found: state } = words.read(text));
    network = "";
    controls.whatIfs(state, changed);
    fields();
    changed();
  };

  // --- all ops, when they are asked for ---------------------------------------------------------
  let drawn = null;
  const drawRanks = async () => {
    if (drawn === query()) return;
    const asked = query();
    const found = await ask("ranks").catch((error) => ({ error: error.message }));
    if (asked !== query() || found.error) return;
    drawn = asked;
    const slices = await twofold.table(found.slices);
    if (ranks) ranks.update(found.about, slices);
    else {
      ranks = twofold.timeline(at("ranks"), found.about, slices);
      twofold.drawn.push(ranks);
    }
    at("ranks").dataset.drawn = "yes";
  };

  // --- copying ---------------------------------------------------------------------------------
  let gone = null;
  const say = (text) => {
    at("toast").textContent = text;
    at("toast").hidden = false;
    clearTimeout(gone);
    gone = setTimeout(() => { at("toast").hidden = true; }, 2500);
  };
  const copy = async (text, what) => {
    document.documentElement.dataset.copied = text;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = make("textarea", { class: "copied", readonly: true });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    say(`copied: ${what}`);
  };

  const start = async () => {
    twofold.theme.changed();
    for (const button of document.querySelectorAll("[data-switch=theme]")) button.addEventListener("click", twofold.theme.toggle);
    document.body.append(make("datalist", { id: "octaves" }, ...[-3, -2, -1, 0, 1, 2, 3].map((one) => make("option", { value: one }))));
    strips = twofold.strips(at("strips"), (first) => { state.firstRank = first; changed(); });
    turning = controls.sliders(turned);
    pins = twofold.pins({ ask: (text) => ask(`${about.rests ? "resting" : "moving"}/${strips.windows()}`, undefined, text), go, changed: keep });
    budget = twofold.budget({ ask, go });
    for (const name of words.PINS) at(`pin-${name}`).addEventListener("click", () => { pins.pin(name, query()); keep(); });
    twofold.drawn.push(strips);
    at("copy-command").addEventListener("click", () => answer && copy(answer.command, "commands that answer the same"));
    at("copy-python").addEventListener("click", () => answer && copy(answer.python, "Python that answers the same"));
    at("copy-address").addEventListener("click", () => copy(location.href, "the address, for this machine while twofold runs"));
    at("reset").addEventListener("click", () => { state = words.empty(); controls.whatIfs(state, changed); network = ""; fields(); changed(); });
    at("add-what-if").addEventListener("click", () => controls.addWhatIf(state, changed));
    at("all-ops").addEventListener("toggle", () => { if (at("all-ops").open) drawRanks(); });
    addEventListener("popstate", take);
    addEventListener("resize", twofold.framed(() => twofold.drawn.forEach((view) => view.resize?.())));
    about = await ask("about");
    figures.about(about);
    take();
    document.documentElement.dataset.ready = "yes";
  };
  start().catch((error) => refuse(`no answer: ${error.message}; does twofold explore still run?`));
})();
