// Light or dark: as the system says, or as the person chose. The choice is kept in the browser.

import { Store } from "./store";

export type Theme = "light" | "dark";

const KEY = "corral-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

function chosen(): Theme | null {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : null;
  } catch {
    return null; // storage is off
  }
}

function current(): Theme {
  return chosen() ?? (system.matches ? "dark" : "light");
}

export const theme = new Store<Theme>(current());

function apply(): void {
  theme.value = current();
  document.documentElement.dataset.theme = theme.value;
}

export function switchTheme(): void {
  const next = theme.value === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Storage is off: the choice lasts until the page is left.
  }
  document.documentElement.dataset.theme = next;
  theme.value = next;
}

export function startTheme(): void {
  apply();
  system.addEventListener("change", apply);
}
