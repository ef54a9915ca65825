// Bundles src/ into dist/, or into the directory given as an argument. The same sources and packages give the same bytes.
import { build } from "esbuild";
import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";

const target = process.argv[2] ?? "dist";
const require = createRequire(import.meta.url);

await mkdir(target, { recursive: true });
await build({
  entryPoints: { app: "src/main.tsx" },
  outdir: target,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  charset: "utf8",
  legalComments: "none", // licenses.json has them in full
  logLevel: "warning",
});
await copyFile("src/index.html", join(target, "index.html"));

// What the packages of `corral` must contain about these; packaging/licenses.py reads it.
const { dependencies } = JSON.parse(await readFile("package.json", "utf8"));
const licenses = [];
for (const name of Object.keys(dependencies).sort()) {
  // Some packages do not export their package.json, so find it beside the entry point.
  let folder = dirname(require.resolve(name));
  while (!folder.endsWith(join("node_modules", name))) folder = dirname(folder);
  const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  const text = (await readFile(join(folder, "LICENSE"), "utf8")).trim();
  licenses.push({ name, version, license, text });
}
await writeFile(join(target, "licenses.json"), `${JSON.stringify(licenses, null, 2)}\n`);
