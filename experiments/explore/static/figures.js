// Figures that follow the sliders: the step, utilities as bars, shares of the critical path.
"use strict";

twofold.figures = (() => {
  const { make } = twofold;
  const at = (id) => document.getElementById(id);
  const signed = (value) => `${value <= -0.005 ? "-" : "+"}${Math.abs(value).toFixed(2)} %`;

  const step = (answer) => {
    at("step").textContent = answer.step;
    const gain = answer.gain_pct;
    const same = Math.abs(gain) < 0.005;
    at("gain").textContent = same ? `as recorded: ${answer.base_step}` : gain > 0 ? `saves ${gain.toFixed(2)} % of ${answer.base_step}` : `${(-gain).toFixed(2)} % longer than ${answer.base_step}`;
    at("gain").className = `gain ${same ? "" : gain > 0 ? "good" : "bad"}`;
    const most = Math.max(answer.step_s, answer.base_step_s) || 1;
    at("before-bar").style.setProperty("--long", answer.base_step_s / most);
    at("after-bar").style.setProperty("--long", answer.step_s / most);
    at("before").textContent = answer.base_step;
    at("after").textContent = answer.step;
    at("engine").textContent = answer.engine === "analytic" ? "analytic: without contention" : answer.check || answer.engine;
    at("exposed").textContent = `${answer.exposed} · ${answer.exposed_pct.toFixed(2)} %`;
    at("exposed").title = answer.exposed_by.map((one) => `${one.name} ${one.time}`).join(", ");
    at("cause").textContent = answer.cause;
    at("price-row").hidden = !answer.price;
    at("price").textContent = answer.price;
    document.title = `${answer.step} · twofold explore`;
  };

  // What contention adds; without an answer of the other engine that is being found out.
  const difference = (answer, rests) => {
    const told = !rests ? "not simulated" : answer.difference_pct === null ? "simulated when no slider moves …" : `${signed(answer.difference_pct)} against analytic ${answer.analytic_step}`;
    at("difference").textContent = told;
    at("difference").classList.toggle("waiting", rests && answer.difference_pct === null);
  };

  const known = new Map();
  // A row a resource, kept from answer to answer, so that bars move and focus stays.
  const row = ({ resource, label }, onDouble) => {
    if (known.has(resource)) return known.get(resource);
    const bar = make("i", { class: "utility-bar" });
    const why = make("span", { class: "utility-why" });
    const whisker = make("i", { class: "utility-whisker" });
    const value = make("b", { class: "utility-value" });
    const step = make("span", { class: "utility-step" });
    const note = make("small", { class: "utility-note" });
    const button = make("button", { type: "button", class: "utility", "data-resource": resource, onclick: () => onDouble(resource) },
      make("span", { class: "utility-name" }, label), make("span", { class: "utility-track" }, bar, whisker, why), value, step);
    const made = { element: make("div", { class: "utility-row" }, button, note), button, bar, whisker, why, value, step, note };
    known.set(resource, made);
    return made;
  };

  const utilities = (answer, onDouble) => {
    const all = [...answer.sliders];
    all.sort((one, other) => (other.utility_pct ?? -1e9) - (one.utility_pct ?? -1e9));
    const reach = Math.max(1e-9, ...all.map((one) => Math.abs(one.utility_pct ?? 0) + (one.interval_pct ?? 0)));
    const most = Math.max(1, reach);
    const place = at("utilities");
    const there = all.map((one) => {
      const made = row(one, onDouble);
      const has = one.utility_pct !== null;
      made.element.classList.toggle("none", !has);
      made.button.disabled = !has;
      made.button.title = has ? `double it: ${one.value} → ${one.doubled}` : one.note;
      made.bar.style.setProperty("--long", has ? Math.max(0, one.utility_pct) / most : 0);
      made.bar.classList.toggle("worse", has && one.utility_pct < 0);
      if (has && one.utility_pct < 0) made.bar.style.setProperty("--long", -one.utility_pct / most);
      const half = one.interval_pct;
      const above = Math.min(half, Math.max(0, (one.bound_pct ?? Infinity) - one.utility_pct));
      made.whisker.hidden = !has || half === null;
      if (has && half !== null) {
        const low = Math.max(0, one.utility_pct - half) / most;
        made.whisker.style.setProperty("--low", low);
        made.whisker.style.setProperty("--wide", Math.max(0, Math.min(1, (one.utility_pct + above) / most) - low));
      }
      const [over, under] = [above.toFixed(2), (half ?? 0).toFixed(2)];
      const interval = half === null ? "" : over === under ? ` ± ${over}` : ` +${over} -${under}`;
      made.value.textContent = has ? `${one.utility_pct.toFixed(2)}${interval} %` : "–";
      made.step.textContent = has ? one.step : "";
      made.why.textContent = has ? "" : one.note;
      made.note.textContent = has ? one.note : "";
      return made.element;
    });
    doubts(all);
    // Moving rows under the pointer while a slider moves would take them away from who clicks.
    if (!place.matches(":hover") && there.some((one, number) => place.children[number] !== one)) place.replaceChildren(...there);
    else if (place.children.length !== there.length) place.replaceChildren(...there);
  };

  // What makes utilities doubtful: each sentence once, with those that it is said of.
  const doubts = (all) => {
    const of = new Map();
    for (const one of all) {
      for (const told of one.warning.split("; ").filter(Boolean)) of.set(told, [...(of.get(told) ?? []), one.label]);
    }
    at("doubts").replaceChildren(...[...of].map(([told, names]) => make("p", { class: "note" }, make("b", {}, names.join(", ")), `: ${told}`)));
  };

  const label = (share) => [share.what === "communication" ? "" : share.what, share.label].filter(Boolean).join(" ") || share.what;
  // Communication is told apart by where it is spent: a colour for each tier, paler its latency.
  const colours = (share) => [
    `use-${share.use || "idle"}`,
    ...(share.what === "communication" ? ["scale_out", "pcie", "software"].filter((tier) => share.name.startsWith(tier)).map((tier) => `of-${tier.replace("_", "-")}`) : []),
    ...(share.name.endsWith(" latency") ? ["of-latency"] : []),
  ].join(" ");
  const path = (answer) => {
    const shown = answer.path.filter((one) => one.pct >= 0.05);
    const rest = 100 - shown.reduce((sum, one) => sum + one.pct, 0);
    at("path").replaceChildren(...shown.map((one) => {
      const span = make("span", { class: colours(one), title: `${label(one)}: ${one.time}, ${one.pct.toFixed(2)} %` }, one.pct > 9 ? label(one) : "");
      span.style.flexGrow = one.pct;
      span.style.flexBasis = "0";
      return span;
    }));
    at("path").setAttribute("aria-label", shown.map((one) => `${label(one)} ${one.pct.toFixed(2)} %`).join(", "));
    at("path-legend").replaceChildren(...answer.path.map((one) => make("span", { class: "share", "data-what": label(one) },
      make("i", { class: colours(one) }), make("span", {}, label(one)), make("b", {}, `${one.pct.toFixed(2)} %`), make("small", {}, one.time))));
    if (rest > 0.5) at("path-legend").append(make("span", { class: "share" }, `${rest.toFixed(2)} % in smaller parts`));
    const head = make("thead", {}, make("tr", {}, ...["spent on", "name", "time", "of the step"].map((one, number) => make("th", { class: number > 1 ? "number" : "" }, one))));
    const body = make("tbody", {}, ...answer.causes.map((one) => make("tr", {}, make("td", {}, one.what), make("td", {}, make("code", {}, one.label)), make("td", { class: "number" }, one.time), make("td", { class: "number" }, `${one.pct.toFixed(2)} %`))));
    at("causes").replaceChildren(head, body);
  };

  const facts = (place, rows) => place.replaceChildren(...rows.flatMap(([name, ...said]) => [make("dt", {}, name), make("dd", {}, ...said.flatMap((one, number) => (number ? [make("br"), one] : [one])))]));
  const touched = (answer) => {
    const rows = answer.changes.map((one) => [make("code", {}, one.change), one.note]);
    if (answer.assumptions.length) rows.push(["assumed", ...answer.assumptions]);
    at("touched-card").hidden = !rows.length;
    facts(at("touched"), rows);
  };
  const about = (told) => {
    at("title").textContent = told.title;
    facts(at("about"), [
      ["trace", make("code", {}, told.trace)],
      ["cluster", told.cluster],
      ...(told.measured ? [["measured step", told.measured]] : []),
      ["simulated step", told.error_pct === null ? told.simulated : `${told.simulated}, error ${signed(told.error_pct)}`],
      ["coverage", told.coverage.join(" · ")],
      ...(told.what_ifs.length ? [["changed before", ...told.what_ifs]] : []),
      ...(told.warnings.length ? [["notes", ...told.warnings]] : []),
    ]);
  };
  return { step, difference, utilities, path, touched, about };
})();
