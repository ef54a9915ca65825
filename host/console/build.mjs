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
  legalComments: "none", // licenses.txt has them in full
  logLevel: "warning",
});
await copyFile("src/index.html", join(target, "index.html"));

const { dependencies } = JSON.parse(await readFile("package.json", "utf8"));
const licenses = [];
for (const name of Object.keys(dependencies).sort()) {
  // Some packages do not export their package.json, so find it beside the entry point.
  let folder = dirname(require.resolve(name));
  while (!folder.endsWith(join("node_modules", name))) folder = dirname(folder);
  const { version } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  licenses.push(`${name} ${version}\n\n${(await readFile(join(folder, "LICENSE"), "utf8")).trim()}\n`);
}
await writeFile(join(target, "licenses.txt"), licenses.join(`\n${"-".repeat(78)}\n\n`));
