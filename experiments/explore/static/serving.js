// The page of a deployment: factors go into the address and to the server, whose document is shown.
//
// One state is asked for at a time: what is turned meanwhile is asked for when the answer is there,
// the newest of it only. When nothing has moved for a while, utilities and the load-latency curve are.
"use strict";

(() => {
  const { state: words, controls, make } = twofold;
  const at = (id) => document.getElementById(id);
  const REST = 400; // ms without a move
  let state = words.empty();
  let asking = false, timer = null, resting = null, turning = null;

  const query = () => words.write(state);
  const ask = async (path, signal) => {
    const found = await fetch(`api/${path}?${query()}`, { signal, headers: { Accept: "application/json" } });
    if (!(found.headers.get("content-type") ?? "").includes("json")) throw new Error((await found.text()).trim() || `status ${found.status}`);
    return found.json();
  };

  const refuse = (error) => {
    at("error").hidden = !error;
    at("error").textContent = error;
    document.body.classList.toggle("stale", Boolean(error));
  };
  const figure = (name, now, before) => {
    at(name).textContent = now;
    at(`${name}-before`).textContent = now === before ? "" : `before: ${before}`;
  };
  const show = (answer, rests) => {
    refuse("");
    figure("ttft", answer.ttft_p99, answer.base_ttft_p99);
    figure("tpot", answer.tpot_p99, answer.base_tpot_p99);
    at("goodput").textContent = answer.goodput || "no SLO is given";
    at("command").textContent = answer.command;
    turning.update(answer, state);
    at("cards").innerHTML = answer.html;
    twofold.drawn = answer.views.map((view) => twofold.views[view.kind](at(view.at), view.spec));
    document.documentElement.dataset.address = answer.address;
    document.documentElement.dataset.settled = rests ? "yes" : "no";
    document.title = `${answer.ttft_p99}, ${answer.tpot_p99} · twofold explore`;
    at("footer").textContent = `answered in ${answer.took_ms.toFixed(0)} ms`;
  };

  const move = async () => {
    clearTimeout(timer);
    resting?.abort();
    document.documentElement.dataset.settled = "no";
    if (asking) return;
    asking = true;
    try {
      let asked = null;
      while (asked !== query()) {
        asked = query();
        const found = await ask("moving/0");
        if (found.error) refuse(found.error); else show(found, false);
      }
      timer = setTimeout(rest, REST);
    } catch (error) {
      refuse(`no answer: ${error.message}; does twofold explore still run?`);
    } finally {
      asking = false;
    }
  };
  const rest = async () => {
    if (document.body.classList.contains("stale")) { document.documentElement.dataset.settled = "yes"; return; }
    resting = new AbortController();
    const { signal } = resting;
    try {
      const found = await ask("resting/0", signal);
      if (signal.aborted) return;
      if (found.error) refuse(found.error); else show(found, true);
    } catch (error) {
      if (!signal.aborted) refuse(`no answer: ${error.message}; does twofold explore still run?`);
    }
  };

  const turned = (resource, factor, done) => {
    if (factor === 1) delete state.factors[resource]; else state.factors[resource] = factor;
    turning.follow(state);
    if (done) history.pushState(null, "", query() ? `?${query()}` : location.pathname);
    move();
  };
  const take = () => {
    state = words.read(location.search).found;
    turning.follow(state);
    move();
  };

  const start = async () => {
    twofold.theme.changed();
    for (const button of document.querySelectorAll("[data-switch=theme]")) button.addEventListener("click", twofold.theme.toggle);
    document.body.append(make("datalist", { id: "octaves" }, ...[-3, -2, -1, 0, 1, 2, 3].map((one) => make("option", { value: one }))));
    turning = controls.sliders(turned);
    at("reset").addEventListener("click", () => { history.pushState(null, "", location.pathname); take(); });
    addEventListener("popstate", take);
    addEventListener("resize", twofold.framed(() => twofold.drawn.forEach((view) => view.resize?.())));
    at("title").textContent = (await ask("about")).title;
    take();
    document.documentElement.dataset.ready = "yes";
  };
  start().catch((error) => refuse(`no answer: ${error.message}; does twofold explore still run?`));
})();
