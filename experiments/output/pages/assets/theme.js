// Light or dark, before anything is drawn: what was chosen here, else what the system has.
"use strict";

{
  const kept = (() => { try { return localStorage.getItem("twofold-theme"); } catch { return null; } })();
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = ["light", "dark"].includes(kept) ? kept : dark ? "dark" : "light";
}
