// Validates the manifests of a directory that Kubernetes itself has no schema of. These schemas accept unknown members.

import { readFileSync } from "node:fs";
import { load } from "js-yaml";
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
  console.log(`${file} is a valid ${kind} of ${apiVersion}`);
}
