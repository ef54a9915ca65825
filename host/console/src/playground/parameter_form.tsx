// The form of a chat's parameters.

import { useEffect, useState } from "preact/hooks";
import { callAddress, sendRaw } from "../api";
import { textOf } from "../lines";
import { useStore } from "../store";
import { Check, Field, Panel } from "../ui";
import { NUMBERS, type Parameters, parameters } from "./parameters";

const SCHEMA_EXAMPLE = `{
  "type": "object",
  "properties": { "sum": { "type": "integer" } },
  "required": ["sum"]
}`;

const TOOLS_EXAMPLE = `[{
  "type": "function",
  "function": {
    "name": "get_weather",
    "parameters": {
      "type": "object",
      "properties": { "city": { "type": "string" } }
    }
  }
}]`;

/** Most bytes of a list of models that are read. */
const MAX_LIST = 64 * 1024;

/** The models that the deployment lists; none if it has no such route. */
async function loadModels(path: string, signal: AbortSignal): Promise<string[]> {
  const response = await sendRaw(callAddress(path.replace(/chat\/completions$/, "models")), { signal });
  if (!response.ok) return [];
  const { data } = JSON.parse(await textOf(response, MAX_LIST)) as { data: { id: unknown }[] };
  return data.map((model) => model.id).filter((id) => typeof id === "string");
}

function useModels(path: string): string[] {
  const [models, setModels] = useState<string[]>([]);
  useEffect(() => {
    const abort = new AbortController();
    setModels([]);
    // A plugin may answer anything: then there is no list.
    loadModels(path, abort.signal).then(setModels, () => undefined);
    return () => abort.abort();
  }, [path]);
  return models;
}

export function ParameterForm({ path }: { path: string }) {
  const current = useStore(parameters);
  const models = useModels(path);
  const set = (change: Partial<Parameters>) => (parameters.value = { ...current, ...change });
  const area = (name: string, field: "system" | "schema" | "tools" | "other", rows: number, placeholder: string) => (
    <Field
      name={name}
      control={(id) => (
        <textarea
          id={id}
          class={field === "system" ? "" : "mono"}
          rows={rows}
          value={current[field]}
          placeholder={placeholder}
          spellcheck={field === "system"}
          onInput={(event) => set({ [field]: event.currentTarget.value })}
        />
      )}
    />
  );
  return (
    <Panel title="Parameters">
      <Field
        name="Model"
        control={(id) => (
          <select id={id} value={current.model} onChange={(event) => set({ model: event.currentTarget.value })}>
            <option value="">The deployment's first</option>
            {[...new Set([...models, ...(current.model ? [current.model] : [])])].map((model) => (
              <option key={model}>{model}</option>
            ))}
          </select>
        )}
      />
      {area("System message", "system", 2, "none")}
      <fieldset class="number-grid">
        <legend class="hidden-label">Sampling</legend>
        {NUMBERS.map(({ field, name, hint, step }) => (
          <Field
            key={field}
            name={name}
            control={(id) => (
              <input
                id={id}
                type="number"
                step={step}
                value={current.numbers[field] ?? ""}
                placeholder={hint}
                onInput={(event) => set({ numbers: { ...current.numbers, [field]: event.currentTarget.value } })}
              />
            )}
          />
        ))}
        <Field
          name="Stop at"
          control={(id) => (
            <input id={id} value={current.stop} placeholder="none" onInput={(event) => set({ stop: event.currentTarget.value })} />
          )}
        />
      </fieldset>
      <Check name="Probabilities of tokens" checked={current.logprobs} onChange={(logprobs) => set({ logprobs })} />
      <details open={current.schema !== ""}>
        <summary>JSON schema</summary>
        {area("Schema of the answer", "schema", 8, SCHEMA_EXAMPLE)}
      </details>
      <details open={current.tools !== ""}>
        <summary>Tools</summary>
        <div class="column">
          {area("Functions, as JSON", "tools", 10, TOOLS_EXAMPLE)}
          <Field
            name="Choice"
            control={(id) => (
              <select id={id} value={current.toolChoice} onChange={(event) => set({ toolChoice: event.currentTarget.value })}>
                <option value="auto">The model decides</option>
                <option value="required">A tool must be called</option>
                <option value="none">No tool</option>
              </select>
            )}
          />
        </div>
      </details>
      <details open={current.other !== ""}>
        <summary>Other fields</summary>
        {area("Fields of the request, as JSON", "other", 4, '{ "top_n_sigma": 1 }')}
      </details>
    </Panel>
  );
}
