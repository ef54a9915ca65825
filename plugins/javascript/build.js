#!/usr/bin/env node
// Makes a component of a plugin: `corral-js app.js -o app.wasm`. componentize-qjs puts QuickJS into it.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const WORLD = `package corral:inference@0.1.0;

world javascript {
  import models;
  import constraints;
  import budget;
  import inference;
  import inference-sync;
  import inference-async;
  import wasi:cli/environment@0.3.0;
  import wasi:cli/stderr@0.2.12;
  import wasi:random/random@0.2.12;
  export wasi:http/handler@0.3.0;
}
`;

/** Writes the WIT of a plugin: that of the world `handler`, in a form that componentize-qjs 0.4 can read.
 *
 * It cannot import async functions: the functions that wait come from `inference-sync`, and from `inference-async` only
 * those that return streams. It takes `stream<u8>` in two interfaces for two types: one name makes them one. */
function writeWit(directory) {
  const corral = process.env.CORRAL_BIN || "corral";
  execFileSync(corral, ["wit", "--out", directory], { stdio: ["ignore", "ignore", "inherit"] });
  const edit = (name, ...changes) => {
    const file = join(directory, name);
    const text = changes.reduce((text, [from, to]) => text.replaceAll(from, to), readFileSync(file, "utf8"));
    writeFileSync(file, text);
  };
  const named = [/\bstream<u8>/g, "bytes"];
  edit("deps/wasi-http-0.3.0.wit", named, [/^interface types \{$/gm, "$&\n  type bytes = stream<u8>;"]);
  const use = "$&\n  use wasi:http/types@0.3.0.{bytes};";
  edit("corral-inference-async.wit", named, [/^ *[\w-]+: async func.*\n/gm, ""], [/^interface inference-async \{$/gm, use]);
  writeFileSync(join(directory, "javascript.wit"), WORLD);
}

async function build(app, output, root) {
  const entry = resolve(app);
  statSync(entry);
  // From the project, also if this package is a link.
  const { componentize } = await import(pathToFileURL(createRequire(entry).resolve("componentize-qjs")));
  const witPath = mkdtempSync(join(tmpdir(), "corral-wit-"));
  // The module that exports the handler stands beside the plugin's, so that its imports resolve.
  const jsPath = join(dirname(entry), `.corral-entry-${process.pid}.js`);
  const jsSource = `import { handler as made } from "corral-sdk/component";
import handle from "./${basename(entry)}";
export const handler = made(handle);
`;
  try {
    writeWit(witPath);
    writeFileSync(jsPath, jsSource);
    const { component } = await componentize({
      witPath,
      world: "corral:inference/javascript",
      jsSource,
      jsPath,
      moduleRoot: resolve(root),
    });
    writeFileSync(output, component);
    console.log(`${output} (${(component.length / 1e6).toFixed(1)} MB)`);
  } finally {
    rmSync(jsPath, { force: true });
    rmSync(witPath, { recursive: true, force: true });
  }
}

const USAGE = "usage: corral-js FILE.js [-o FILE.wasm] [--root DIR]";
try {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { output: { type: "string", short: "o" }, root: { type: "string", default: "." } },
  });
  if (positionals.length !== 1) throw new Error(`${positionals.length} files are named; expected one. ${USAGE}`);
  const [app] = positionals;
  await build(app, values.output ?? app.replace(/\.m?js$/, "") + ".wasm", values.root);
} catch (error) {
  const spawned = error.code === "ENOENT" && error.syscall?.startsWith("spawn");
  const hint = spawned
    ? "cannot find `corral`; put it into PATH, or set CORRAL_BIN"
    : error.code === "MODULE_NOT_FOUND"
      ? "cannot find componentize-qjs; run `npm install componentize-qjs` in the project"
      : error.message.replace(/^:? */, "");
  console.error(`corral-js: ${hint.trimEnd()}`);
  process.exitCode = 1;
}
