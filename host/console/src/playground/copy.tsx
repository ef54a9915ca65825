// Shows a request as a program, to be copied.

import { useState } from "preact/hooks";
import { errorText } from "../api";
import { Button, Panel, Tabs, notify } from "../ui";
import { type Call, LANGUAGES, type Language, snippet } from "./snippets";

/** Copies text. Pages without TLS from another machine have no clipboard, so an old way is tried, too. */
async function copy(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("The browser allows no copy. Select the text, and copy it yourself.");
}

/** `call` throws where the request is incomplete; its error is shown instead. */
export function Copy({ call }: { call: () => Call }) {
  const [language, setLanguage] = useState<Language>("curl");
  let text: string;
  let error = "";
  try {
    text = snippet(language, call());
  } catch (problem) {
    text = "";
    error = errorText(problem);
  }
  const onCopy = () => {
    copy(text).then(
      () => notify(`Copied as ${language}.`),
      (problem: unknown) => notify(errorText(problem), "bad"),
    );
  };
  return (
    <Panel
      title="The same as a program"
      aside={
        <div class="row">
          <Tabs label="Language" tabs={LANGUAGES} current={language} onChange={setLanguage} />
          <Button onClick={onCopy} disabled={text === ""}>
            Copy
          </Button>
        </div>
      }
    >
      {error === "" ? (
        <pre class="code" tabIndex={0} role="region" aria-label={`The request as ${language}`}>
          {text}
        </pre>
      ) : (
        <div class="note bad">{error}</div>
      )}
    </Panel>
  );
}
