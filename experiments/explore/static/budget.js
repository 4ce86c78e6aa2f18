// The networks that a budget buys: found on request, each of them set with a button.
"use strict";

// `ask(path)` asks of what is set now, `go(query)` sets a state.
twofold.budget = ({ ask, go }) => {
  const { make } = twofold;
  const at = (id) => document.getElementById(id);

  const row = (offer) => make("div", { class: "offer" },
    make("b", {}, offer.step),
    make("span", {}, `${Math.abs(offer.gain_pct).toFixed(1)} % ${offer.gain_pct < 0 ? "longer" : "shorter"}`),
    make("span", {}, offer.cost),
    make("button", { type: "button", onclick: () => go(offer.address) }, "Set"),
    make("p", {}, offer.what));
  const show = (found) => {
    at("budget-error").hidden = !found.error;
    at("budget-error").textContent = found.error ?? "";
    at("offers").replaceChildren(...(found.offers ?? []).map(row));
  };

  let finding = null;
  const find = async () => {
    finding?.abort();
    const { signal } = finding = new AbortController();
    at("budget-find").textContent = "Looking …";
    const found = await ask(`within/${encodeURIComponent(at("budget").value.trim())}`, signal).catch((error) => ({ error: error.message }));
    if (signal.aborted) return;
    at("budget-find").textContent = "Find";
    show(found);
  };
  at("budget-find").addEventListener("click", find);
  at("budget").addEventListener("keydown", (event) => { if (event.key === "Enter") find(); });
  // A price of what is set is the first budget; where none is known there is nothing to find.
  return { follow: (answer) => {
    at("budget-card").hidden = !answer.price;
    if (!at("budget").value) at("budget").value = answer.price;
  } };
};
