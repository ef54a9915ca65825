// Every page of the console, and what to wait for or to do before it is looked at.

import { THEMES, WIDTHS } from "./browser.mjs";
import { chat } from "./load.mjs";

/** Both widths in both themes. */
export const LOOKS = Object.entries(WIDTHS).flatMap(([width, viewport]) =>
  THEMES.map((colorScheme) => ({ name: `${width} ${colorScheme}`, viewport, colorScheme })),
);

/** The tokens of the last answer. */
export function tokensOf(page) {
  return page.getByRole("listbox", { name: "Tokens of the answer" }).last().getByRole("option");
}

const limits = (page) => page.getByRole("heading", { name: "Limits" }).waitFor();

/** `token`: absent for one who is logged in. The deployment `kept` must exist, and requests must run. */
export const PAGES = [
  { name: "overview", path: "overview", prepare: (page) => page.waitForTimeout(1000) },
  { name: "requests", path: "requests", prepare: (page) => page.getByRole("button", { name: /^Cancel request/ }).first().waitFor() },
  {
    name: "deployments",
    path: "deployments",
    prepare: async (page) => {
      await page.getByRole("button", { name: "New deployment" }).click();
      await page.getByRole("link", { name: "kept" }).waitFor();
    },
  },
  { name: "deployment", path: "deployments/kept", prepare: limits },
  { name: "command-line", path: "deployments/%2Fv1", prepare: limits },
  {
    name: "playground",
    path: "playground",
    prepare: async (page) => {
      await page.getByLabel("Message", { exact: true }).fill("12+7=");
      await page.keyboard.press("Enter");
      await page.getByText("ended by stop").waitFor();
      await tokensOf(page).first().click();
      for (const name of ["JSON schema", "Tools", "Other fields"]) await page.getByText(name, { exact: true }).click();
    },
  },
  {
    name: "raw-request",
    path: "playground",
    prepare: async (page) => {
      await page.getByRole("tab", { name: "Raw request" }).click();
      await page.getByRole("button", { name: "Send" }).click();
      await page.getByRole("region", { name: "Body of the response" }).waitFor();
    },
  },
  {
    name: "prefix-cache",
    path: "prefix-cache",
    prepare: async (page) => {
      for (const end of ["one", "two", "two and a half"]) await chat(`repeat: a conversation, part ${end}`);
      await page.locator("tr.branch").first().waitFor();
    },
  },
  { name: "login", path: "deployments", token: null, prepare: (page) => page.getByLabel("Token", { exact: true }).waitFor() },
];
