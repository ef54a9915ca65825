// Validates the manifests of a directory that Kubernetes itself has no schema of. These schemas accept unknown members. Writes
// the Deployment with the patch of the component `cluster` to standard output.

import { readFileSync } from "node:fs";
import { dump, load } from "js-yaml";
import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

for (const [file, Model] of [
  ["autoscaling/scaled-object.yaml", ScaledObject],
  ["monitoring/service-monitor.yaml", ServiceMonitor],
]) {
  const text = readFileSync(`${process.argv[2]}/${file}`, "utf8");
  const { apiVersion, kind, ...rest } = load(text);
  const model = new Model(rest);
  if (apiVersion !== model.apiVersion || kind !== model.kind) {
    throw new Error(`${file}: ${apiVersion} ${kind}, expected ${model.apiVersion} ${model.kind}`);
  }
  model.validate();
  console.error(`${file} is a valid ${kind} of ${apiVersion}`);
}

const read = (file) => load(readFileSync(`${process.argv[2]}/${file}`, "utf8"));
const deployment = read("base/deployment.yaml");
for (const { op, path, value } of read("cluster/join.yaml")) {
  const keys = path.slice(1).split("/");
  if (op !== "add" || keys.pop() !== "-") throw new Error(`${op} ${path}: expected to add to the end of a list`);
  keys.reduce((part, key) => part[key], deployment).push(value);
}
console.log(dump(deployment));
