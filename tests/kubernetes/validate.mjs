// Validates the resources that kustomize makes of each directory: each by the schema of its kind, which must know all its members.
// `CORRAL_KUBERNETES` is the directory that setup.sh prints.

import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const folder = process.env.CORRAL_KUBERNETES;
const require = createRequire(`${folder}/`);
const Ajv = require("ajv");
const { loadAll } = require("js-yaml");

/** Packages with the schemas of a group. That of Kubernetes itself has all others. */
const packages = {
  "keda.sh": "@kubernetes-models/keda",
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
};

/** A function that throws an error unless a resource has the types of its kind's schema. */
async function validator({ apiVersion, kind }) {
  const group = apiVersion.split("/")[0];
  if (group === "inference.networking.k8s.io") {
    const ajv = new Ajv();
    const isValid = ajv.compile(JSON.parse(readFileSync(new URL("inference-pool.json", import.meta.url), "utf8")));
    return (resource) => {
      if (!isValid(resource)) throw new Error(ajv.errorsText(isValid.errors));
    };
  }
  const file = `${folder}/node_modules/${packages[group] ?? "kubernetes-models"}/${apiVersion}/${kind}.js`;
  const { [kind]: Model } = await import(file);
  return (resource) => Model.prototype.validate.call(resource);
}

const isObject = (value) => typeof value === "object" && value !== null;

/** A view of a value that adds the paths of members that are read to `read`. */
function watch(value, read, path = "") {
  if (!isObject(value)) return value;
  const get = (target, key) => {
    const member = `${path}/${String(key)}`;
    read.add(member);
    return watch(target[key], read, member);
  };
  return new Proxy(value, { get });
}

/** The paths of all members. */
function* members(value, path = "") {
  for (const [key, member] of Object.entries(value)) {
    yield `${path}/${key}`;
    if (isObject(member)) yield* members(member, `${path}/${key}`);
  }
}

for (const directory of process.argv.slice(2)) {
  const built = execFileSync(`${folder}/kubectl`, ["kustomize", directory], { encoding: "utf8" });
  for (const resource of loadAll(built)) {
    const name = `${directory}: ${resource.apiVersion} ${resource.kind} ${resource.metadata?.name}`;
    const read = new Set();
    try {
      (await validator(resource))(watch(resource, read));
      // These schemas accept members that they do not have, but their validators read only those that they have.
      const unknown = [...members(resource)].filter((member) => !read.has(member));
      if (unknown.length > 0) throw new Error(`the schema has no member ${unknown}`);
    } catch (error) {
      console.error(`${name}: ${error.message}`);
      process.exit(1);
    }
    console.log(`${name} is valid`);
  }
}
