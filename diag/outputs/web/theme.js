// Light or dark: as the system has it, or as the person chose. `data-theme` on the root holds what is on.

import { stir } from "./store.js";

const NAME = "diag.theme";
const ORDER = ["system", "light", "dark"];
const scheme = matchMedia("(prefers-color-scheme: dark)");

/** Where a browser keeps nothing for this page, it is kept until the page goes. */
let chosen = "system";
try {
  chosen = ORDER.includes(localStorage.getItem(NAME)) ? localStorage.getItem(NAME) : "system";
} catch { /* a browser that keeps nothing */ }

function apply() {
  document.documentElement.dataset.theme = chosen === "system" ? (scheme.matches ? "dark" : "light") : chosen;
  stir("theme");
}

export const theme = () => chosen;

export function nextTheme() {
  chosen = ORDER[(ORDER.indexOf(chosen) + 1) % ORDER.length];
  try {
    localStorage.setItem(NAME, chosen);
  } catch { /* as above */ }
  apply();
}

scheme.addEventListener("change", apply);
apply();
