// What is turned: sliders of resources, fields of the network, algorithms, what-ifs.
"use strict";

twofold.controls = (() => {
  const { make } = twofold;
  const at = (id) => document.getElementById(id);
  const REACH = 3; // octaves either way

  // A factor as short as the slider is fine: three digits.
  const rounded = (factor) => Number(factor.toPrecision(3));

  // --- sliders ---------------------------------------------------------------------------------
  // `turned(resource, factor, done)` is called while one moves, and with `done` when it rests.
  const sliders = (turned) => {
    const known = new Map();
    const row = ({ resource, label }) => {
      if (known.has(resource)) return known.get(resource);
      const id = `slider-${resource.replace(/[^a-z0-9]/gi, "-")}`;
      const range = make("input", { type: "range", id, min: -REACH, max: REACH, step: "any", list: "octaves" });
      const number = make("input", { type: "text", inputmode: "decimal", class: "times", "aria-label": `${label}: factor` });
      const value = make("span", { class: "slider-value" });
      const note = make("small", { class: "slider-note" });
      const curve = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      for (const [name, value] of [["viewBox", "0 0 100 100"], ["preserveAspectRatio", "none"], ["class", "slider-curve"], ["aria-hidden", "true"]]) curve.setAttribute(name, value);
      const made = { resource, range, number, value, note, curve, dragged: false, whole: false, element: null };
      const factor = () => (made.whole ? 2 ** Math.round(Number(range.value)) : rounded(2 ** Number(range.value)));
      range.addEventListener("input", () => { made.dragged = true; turned(resource, factor(), false); });
      range.addEventListener("change", () => { made.dragged = false; turned(resource, factor(), true); });
      const reset = () => turned(resource, 1, true);
      range.addEventListener("dblclick", reset);
      range.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: 8, PageDown: -8 }[event.key];
        if (event.key === "Backspace" || event.key === "Delete" || event.key === "0") { event.preventDefault(); reset(); }
        if (step === undefined) return;
        event.preventDefault();
        const octaves = Number(range.value) + (made.whole ? Math.sign(step) : step / 8);
        turned(resource, made.whole ? 2 ** Math.round(octaves) : rounded(2 ** octaves), true);
      });
      number.addEventListener("change", () => {
        const given = Number(number.value.replace(/^[x×]/, "").replace(",", "."));
        const known = given > 0 && Number.isFinite(given);
        number.value = known ? String(given) : number.dataset.now;
        if (known) turned(resource, given, true);
      });
      made.element = make("div", { class: "slider", "data-resource": resource },
        make("div", { class: "slider-head" }, make("label", { for: id }, label), value), make("div", { class: "slider-track" }, curve, range), make("span", { class: "times-box" }, "×", number), note);
      known.set(resource, made);
      return made;
    };

    const set = (made, factor) => {
      if (!made.dragged) made.range.value = Math.log2(factor);
      const edited = document.activeElement === made.number && made.number.value !== made.number.dataset.now;
      made.number.dataset.now = String(factor);
      if (!edited) made.number.value = String(factor);
      made.element.classList.toggle("moved", factor !== 1);
      made.range.setAttribute("aria-valuetext", `${factor} times as good`);
    };
    const update = (answer, state) => {
      const place = at("sliders");
      const rows = answer.sliders.map((one) => {
        const made = row(one);
        made.whole = one.whole;
        made.range.title = `2: ${one.means}`;
        made.range.disabled = made.number.disabled = !one.has;
        made.element.classList.toggle("none", !one.has);
        made.value.textContent = one.has ? (one.factor === 1 ? one.value : `${one.recorded} → ${one.value}`) : "none";
        made.note.textContent = one.has ? "" : one.note;
        set(made, state.factors[one.resource] ?? 1);
        return made.element;
      });
      if (rows.length !== place.children.length || rows.some((one, number) => place.children[number] !== one)) place.replaceChildren(...rows);
    };
    // What is set is shown at once, whatever the server makes of it.
    const follow = (state) => { for (const made of known.values()) set(made, state.factors[made.resource] ?? 1); };
    // The step over each factor, as high as the track at twice the step that is set.
    const curves = (traced, answer) => {
      const step = answer.analytic_step_s ?? answer.step_s;
      const of = new Map(traced.map((one) => [one.resource, one]));
      for (const made of known.values()) {
        const one = of.get(made.resource);
        made.curve.replaceChildren();
        if (!one || !step) continue;
        const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
        const place = (factor, seconds) => `${(50 * (Math.log2(factor) / REACH + 1)).toFixed(2)},${(100 - 50 * Math.min(2, seconds / step)).toFixed(2)}`;
        line.setAttribute("points", one.factors.map((factor, number) => place(factor, one.step_s[number])).join(" "));
        made.curve.append(line);
      }
    };
    return { update, follow, curves };
  };

  // --- fields ----------------------------------------------------------------------------------
  const field = (name, list, value, hint, set) => {
    const id = `field-${name.replace(/[^a-z0-9]/gi, "-")}`;
    const options = make("datalist", { id: `${id}-list` }, ...list.map((one) => make("option", { value: one })));
    const input = make("input", { type: "text", id, list: `${id}-list`, placeholder: hint, value, spellcheck: "false", autocomplete: "off" });
    input.addEventListener("change", () => set(input.value.trim()));
    return make("div", { class: "field" }, make("label", { for: id }, name), input, options);
  };
  const choice = (name, list, value, hint, set) => {
    const id = `field-${name.replace(/[^a-z0-9]/gi, "-")}`;
    const all = value && !list.includes(value) ? [value, ...list] : list;
    const select = make("select", { id }, make("option", { value: "" }, hint), ...all.map((one) => make("option", { value: one, selected: one === value }, one)));
    select.addEventListener("change", () => set(select.value));
    return make("div", { class: "field" }, make("label", { for: id }, name), select);
  };

  const network = (choices, state, changed) => {
    const edit = (change) => (text) => { change(text); changed(); };
    const hasRouting = choices.routings.length > 0 || state.routing;
    at("network").replaceChildren(
      field("cluster", choices.clusters, state.cluster, "as recorded", edit((text) => { state.cluster = text; })),
      ...["scale_up", "scale_out"].map((tier) => field(`${tier.replace("_", "-")} topology`, choices.topologies[tier] ?? [], twofold.state.topology(state, tier), "as recorded", edit((text) => twofold.state.setTopology(state, tier, text)))),
      ...(hasRouting ? [choice("routing", choices.routings, state.routing, "the fabric's own", edit((text) => { state.routing = text; }))] : []),
    );
    const kinds = Object.entries(choices.algorithms);
    const whole = kinds.map(([kind]) => `${kind}=`);
    const rules = state.algorithms.filter((one) => !whole.some((kind) => one.startsWith(kind)));
    at("algorithms-card").hidden = !kinds.length && !rules.length;
    at("algorithms").replaceChildren(
      ...kinds.map(([kind, names]) => choice(kind, names, twofold.state.algorithm(state, kind), "the library's choice", edit((name) => twofold.state.setAlgorithm(state, kind, name)))),
      ...rules.map((rule) => make("div", { class: "field" }, make("code", {}, rule), make("button", { type: "button", "aria-label": `remove ${rule}`, onclick: () => { state.algorithms = state.algorithms.filter((one) => one !== rule); changed(); } }, "✕"))),
    );
  };

  // --- what-ifs --------------------------------------------------------------------------------
  const whatIfs = (state, changed) => {
    const row = (text, number) => {
      const input = make("input", { type: "text", value: text, "aria-label": `what-if ${number + 1}`, placeholder: "rank 3 compute x1.2", spellcheck: "false", autocomplete: "off" });
      const told = make("small", { class: "refused" , hidden: true });
      const take = () => {
        if (input.value.trim() === (state.whatIfs[number] ?? "")) return;
        state.whatIfs[number] = input.value.trim();
        changed();
      };
      input.addEventListener("change", take);
      input.addEventListener("keydown", (event) => { if (event.key === "Enter") take(); });
      const remove = () => { state.whatIfs.splice(number, 1); changed(); whatIfs(state, changed); };
      return make("div", { class: "what-if" }, input, make("button", { type: "button", "aria-label": `remove what-if ${number + 1}`, onclick: remove }, "✕"), told);
    };
    const texts = state.whatIfs.length ? state.whatIfs : [""];
    at("what-ifs").replaceChildren(...texts.map(row));
  };
  const addWhatIf = (state, changed) => {
    state.whatIfs.push("");
    whatIfs(state, changed);
    at("what-ifs").lastElementChild.querySelector("input").focus();
  };

  // Show an error at the what-if that it is of, if it is of one: "what-if 'TEXT': …; write GRAMMAR".
  const refuse = (error) => {
    let own = false;
    for (const place of at("what-ifs").children) {
      const input = place.querySelector("input");
      const told = place.querySelector(".refused");
      const text = input.value.trim();
      const mine = Boolean(error && text && error.startsWith("what-if ") && error.includes(text));
      input.setAttribute("aria-invalid", String(mine));
      told.hidden = !mine;
      told.textContent = mine ? error : "";
      own ||= mine;
    }
    return own;
  };
  return { sliders, network, whatIfs, addWhatIf, refuse };
})();
