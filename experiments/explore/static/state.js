// What is set on the page, and the address that holds it: experiments/explore/state.py reads the same.
"use strict";

twofold.state = (() => {
  const WORDS = ["cluster", "topology", "routing", "algorithm", "what-if", "first-rank"];
  const empty = () => ({ cluster: "", topologies: [], routing: "", algorithms: [], whatIfs: [], factors: {}, firstRank: 0 });

  // Read what stands behind the "?"; a value that is none is left to the server, which says so. The
  // settings that are pinned as A and B are addresses within the address.
  const PINS = ["a", "b"];
  const read = (search) => {
    const found = empty();
    const odd = [], pins = {};
    for (const [name, value] of new URLSearchParams(search)) {
      if (PINS.includes(name)) pins[name] = value;
      else if (name === "cluster" || name === "routing") found[name] = value;
      else if (name === "topology") found.topologies.push(value);
      else if (name === "algorithm") found.algorithms.push(value);
      else if (name === "what-if") found.whatIfs.push(value);
      else if (name === "first-rank" && /^\d{1,9}$/.test(value)) found.firstRank = Number(value);
      else if (!WORDS.includes(name) && !(name in found.factors) && Number(value) > 0) found.factors[name] = Number(value);
      else odd.push([name, value]);
    }
    return { found, odd, pins };
  };

  const write = (state) => {
    const words = new URLSearchParams();
    const add = (name, value) => { if (String(value).trim()) words.append(name, value); };
    add("cluster", state.cluster);
    add("routing", state.routing);
    for (const one of state.topologies) add("topology", one);
    for (const one of state.algorithms) add("algorithm", one);
    for (const one of state.whatIfs) add("what-if", one);
    for (const name of Object.keys(state.factors).sort()) if (state.factors[name] !== 1) add(name, state.factors[name]);
    if (state.firstRank) add("first-rank", state.firstRank);
    return words.toString();
  };

  // The topology that is set in a tier; without a tier it is the scale-up's.
  const topology = (state, tier) => {
    const own = state.topologies.filter((one) => (one.includes("=") ? one.split("=")[0] : "scale_up") === tier);
    return own.length ? own[own.length - 1].split("=").pop() : "";
  };
  const setTopology = (state, tier, text) => {
    const others = state.topologies.filter((one) => (one.includes("=") ? one.split("=")[0] : "scale_up") !== tier);
    state.topologies = text.trim() ? [...others, `${tier}=${text.trim()}`] : others;
  };

  // The rule that is set for a kind as a whole, as "all_reduce=ring"; others stay as they are.
  const algorithm = (state, kind) => state.algorithms.find((one) => one.startsWith(`${kind}=`))?.split("=").pop() ?? "";
  const setAlgorithm = (state, kind, name) => {
    const others = state.algorithms.filter((one) => !one.startsWith(`${kind}=`));
    state.algorithms = name ? [...others, `${kind}=${name}`] : others;
  };
  return { PINS, empty, read, write, topology, setTopology, algorithm, setAlgorithm };
})();
