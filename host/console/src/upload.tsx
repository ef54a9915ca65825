// Deploys a component: a file that is dropped or chosen, and its manifest.

import { useRef, useState } from "preact/hooks";
import { send, sendJson } from "./api";
import { bytes } from "./format";
import { componentDigest } from "./sha256";
import type { DeploymentStatus, Manifest } from "./types";
import { Button, Check, ErrorNote, Field, Panel } from "./ui";

/** The server's own limit. */
const MAX_COMPONENT = 64 * 1024 * 1024;

const EXAMPLE = `{
  "error-format": "openai",
  "limits": { "time-seconds": 600, "concurrent-requests": 8 }
}`;

/** A name for a deployment of this file, in the form that the server accepts. */
function nameOf(file: File): string {
  return file.name
    .replace(/\.wasm$/i, "")
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 63);
}

/** The fields of a manifest that have no control of their own. */
function otherFields(manifest: Manifest | undefined): string {
  if (!manifest) return "";
  const { name: _name, component: _component, routes: _routes, ...others } = manifest;
  const set = Object.entries(others).filter(([, value]) => value !== null);
  return set.length === 0 ? "" : JSON.stringify(Object.fromEntries(set), null, 2);
}

function parseFields(text: string): Record<string, unknown> {
  if (text.trim() === "") return {};
  let fields: unknown;
  try {
    fields = JSON.parse(text);
  } catch (error) {
    throw new Error(`Other fields are no JSON: ${error instanceof Error ? error.message : error}`);
  }
  if (typeof fields !== "object" || fields === null || Array.isArray(fields)) {
    throw new Error('Other fields must be a JSON object, such as {"priority": 10}.');
  }
  return fields as Record<string, unknown>;
}

/** `previous`: the manifest of the deployment that gets a new revision; absent for a new deployment. */
export function Upload({ previous, done }: { previous?: Manifest; done: (name: string) => void }) {
  const [file, setFile] = useState<File | null>(null);
  const [over, setOver] = useState(false);
  const [name, setName] = useState(previous?.name ?? "");
  const [routes, setRoutes] = useState(previous?.routes.join(" ") ?? "");
  const [fields, setFields] = useState(otherFields(previous));
  const [traffic, setTraffic] = useState(true);
  const [stage, setStage] = useState("");
  const [answer, setAnswer] = useState<{ error?: unknown; text?: string } | null>(null);
  const input = useRef<HTMLInputElement>(null);

  const choose = (chosen: File | undefined) => {
    if (!chosen) return;
    setAnswer(null);
    if (chosen.size > MAX_COMPONENT) {
      setAnswer({ error: new Error(`${chosen.name} has ${bytes(chosen.size)}; a component has at most 64 MiB.`) });
      return;
    }
    setFile(chosen);
    if (!previous) {
      const proposed = nameOf(chosen);
      if (name === "") setName(proposed);
      if (routes === "") setRoutes(`/${proposed}`);
    }
  };

  const deploy = async (event: Event) => {
    event.preventDefault();
    if (!file || stage !== "") return;
    setAnswer(null);
    try {
      const manifest: Manifest = {
        ...parseFields(fields),
        name,
        component: "",
        routes: routes.split(/[\s,]+/).filter(Boolean),
      };
      setStage("Uploading …");
      const content = new Uint8Array(await file.arrayBuffer());
      manifest.component = await componentDigest(content);
      await send(`/components/${manifest.component}`, {
        method: "PUT",
        body: content,
        headers: { "content-type": "application/wasm" },
      });
      setStage("Validating and compiling …");
      const path = `/deployments/${encodeURIComponent(name)}${traffic ? "" : "?traffic=false"}`;
      const { deployment, revision } = await sendJson<{ deployment: DeploymentStatus; revision: { number: number } }>(
        path,
        "POST",
        manifest,
      );
      const gets = deployment.traffic.some((share) => share.revision === revision.number);
      setAnswer({
        text: `Valid. Revision ${revision.number} of ${name} ${gets ? `answers at ${deployment.routes.join(", ")}` : "gets no requests yet"}.`,
      });
      setFile(null);
      if (input.current) input.current.value = "";
      done(name);
    } catch (error) {
      setAnswer({ error });
    } finally {
      setStage("");
    }
  };

  return (
    <Panel title={previous ? "New revision" : "New deployment"}>
      <form class="column" onSubmit={deploy}>
        <div
          class={`drop ${over ? "over" : ""}`}
          onDragOver={(event) => {
            event.preventDefault();
            setOver(true);
          }}
          onDragLeave={() => setOver(false)}
          onDrop={(event) => {
            event.preventDefault();
            setOver(false);
            choose(event.dataTransfer?.files[0]);
          }}
        >
          <span aria-live="polite">
            {file ? (
              <>
                <strong>{file.name}</strong>, {bytes(file.size)}
              </>
            ) : (
              "Drop a component (.wasm) here"
            )}
          </span>
          <Button onClick={() => input.current?.click()}>{file ? "Choose another file" : "Choose a file"}</Button>
          <input
            ref={input}
            type="file"
            accept=".wasm,application/wasm"
            hidden
            aria-label="Component"
            onChange={(event) => choose(event.currentTarget.files?.[0])}
          />
        </div>
        <div class="form-grid">
          <Field
            name="Name"
            hint="Lower-case letters, digits and '-'."
            control={(id) => (
              <input
                id={id}
                value={name}
                required
                readOnly={previous !== undefined}
                spellcheck={false}
                autocomplete="off"
                onInput={(event) => setName(event.currentTarget.value)}
              />
            )}
          />
          <Field
            name="Routes"
            hint="Path prefixes, separated by spaces."
            control={(id) => (
              <input
                id={id}
                value={routes}
                required
                spellcheck={false}
                autocomplete="off"
                onInput={(event) => setRoutes(event.currentTarget.value)}
              />
            )}
          />
          <Field
            class="wide"
            name="Other fields of the manifest, as JSON"
            hint="Limits, grants, models, linked components and so on, as in corral.toml. May be empty."
            control={(id) => (
              <textarea
                id={id}
                class="mono"
                rows={6}
                value={fields}
                placeholder={EXAMPLE}
                spellcheck={false}
                onInput={(event) => setFields(event.currentTarget.value)}
              />
            )}
          />
        </div>
        <div class="row">
          <Button kind="main" submit disabled={!file || name === "" || routes.trim() === "" || stage !== ""}>
            {stage || "Deploy"}
          </Button>
          {previous && <Check name="Route all requests to it at once" checked={traffic} onChange={setTraffic} />}
        </div>
        <div aria-live="polite">
          {answer?.text && <div class="note good">{answer.text}</div>}
          {answer?.error !== undefined && <ErrorNote error={answer.error} />}
        </div>
      </form>
    </Panel>
  );
}
