// Makes the pictures of the guide: one for each page, with both widths in both themes.
// `tests/tests/operation/console_browser.rs` runs it.

import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { admin, closeBrowser, open } from "./browser.mjs";
import { chat, keepBusy, stopLoad } from "./load.mjs";
import { LOOKS, PAGES } from "./pages.mjs";

const TARGET = process.env.CORRAL_PICTURES;
/** Seconds of load before the pictures, so that charts have something to show. */
const LOAD = Number(process.env.LOAD ?? 240);
/** Size of the part of a page that is shown, and the scale at which it is. */
const SCALE = 0.75;
const GAP = 12;
const MAX_BYTES = 150_000;

/** Requests that come and go. */
async function load(seconds) {
  const end = Date.now() + seconds * 1000;
  for (let round = 0; Date.now() < end; round += 1) {
    const rest = keepBusy(1 + (round % 3));
    await new Promise((resolve) => setTimeout(resolve, 15_000));
    await rest();
    for (let number = 0; number < 20; number += 1) await chat(`${(7 * round + number) % 50}+${(11 * number) % 50}=`);
  }
}

/** Draws the looks of a page, wide beside narrow and dark below light, as WebP of at most `MAX_BYTES`. */
async function sheet(canvasPage, shots) {
  const images = shots.map((shot) => `data:image/png;base64,${shot.toString("base64")}`);
  const url = await canvasPage.evaluate(
    async ([images, scale, gap, most]) => {
      const load = async (source) => {
        const image = new Image();
        image.src = source;
        await image.decode();
        return image;
      };
      const [wideLight, wideDark, narrowLight, narrowDark] = await Promise.all(images.map(load));
      const height = Math.round(wideLight.height * scale);
      const widths = [wideLight, narrowLight].map((image) => Math.round((image.width * height) / image.height));
      const canvas = document.createElement("canvas");
      canvas.width = widths[0] + widths[1] + 3 * gap;
      canvas.height = 2 * height + 3 * gap;
      const context = canvas.getContext("2d");
      context.imageSmoothingQuality = "high";
      context.fillStyle = "#7a7f78";
      context.fillRect(0, 0, canvas.width, canvas.height);
      for (const [row, pair] of [[wideLight, narrowLight], [wideDark, narrowDark]].entries()) {
        for (const [column, image] of pair.entries()) {
          context.drawImage(image, gap + column * (widths[0] + gap), gap + row * (height + gap), widths[column], height);
        }
      }
      for (let quality = 0.8; ; quality -= 0.05) {
        const url = canvas.toDataURL("image/webp", quality);
        if (url.length * 0.75 < most || quality < 0.3) return url;
      }
    },
    [images, SCALE, GAP, MAX_BYTES],
  );
  const bytes = Buffer.from(url.slice(url.indexOf(",") + 1), "base64");
  if (bytes.length > MAX_BYTES) throw new Error(`${bytes.length} bytes are more than ${MAX_BYTES}`);
  return bytes;
}

mkdirSync(TARGET, { recursive: true });
// A deployment with two revisions, and lines in its log.
const { revisions } = await admin("GET", "/deployments/kept");
await admin("POST", "/deployments/kept?traffic=false", revisions[0].manifest);
await admin("PUT", "/deployments/kept/traffic", { traffic: [{ revision: 1, weight: 75 }, { revision: 2, weight: 25 }] });
for (let number = 0; number < 3; number += 1) await fetch(`${process.env.CORRAL_PUBLIC}/kept/log`);
const blank = await open("", { token: null, url: "data:text/html," });
// The charts of the overview begin when it is opened.
const overview = PAGES.filter(({ name }) => name === "overview");
// That of a deployment of the command line looks like that of another one, with less on it.
const others = PAGES.filter(({ name }) => !["overview", "command-line"].includes(name));
const opened = await Promise.all(LOOKS.map((look) => open(overview[0].path, look)));
await load(LOAD);
let rest = keepBusy(2);
await new Promise((resolve) => setTimeout(resolve, 10_000));
const shots = [];
for (const { page, close } of opened) {
  shots.push(await page.screenshot());
  await close();
}
await rest();
writeFileSync(join(TARGET, "console-overview.webp"), await sheet(blank.page, shots));
for (const { name, path, token, prepare } of others) {
  const shots = [];
  rest = keepBusy(2);
  for (const look of LOOKS) {
    const { page, close } = await open(path, { ...look, token });
    await page.getByRole("heading", { level: 1 }).waitFor();
    await prepare(page);
    // Live figures come once a second.
    await page.waitForTimeout(3000);
    await page.evaluate(() => scrollTo(0, 0));
    shots.push(await page.screenshot());
    await close();
  }
  await rest();
  writeFileSync(join(TARGET, `console-${name}.webp`), await sheet(blank.page, shots));
}
await stopLoad();
await closeBrowser();
