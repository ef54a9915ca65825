// The page that the address names: the part after '#', split at '/'.

import { Store } from "./store";

function parse(): string[] {
  const parts = location.hash.replace(/^#\/?/, "").split("?")[0] ?? "";
  try {
    return parts.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return [];
  }
}

export const route = new Store<string[]>(parse());

addEventListener("hashchange", () => (route.value = parse()));

export function goTo(path: string, replace = false): void {
  if (replace) {
    history.replaceState(null, "", `#/${path}`);
    route.value = parse();
  } else {
    location.hash = `#/${path}`;
  }
}
