// Tries any route of any deployment: a chat over OpenAI's API, or a raw request.

import { useState } from "preact/hooks";
import { snapshot } from "../live";
import { ChatView } from "../playground/chat_view";
import { chatPath } from "../playground/chat";
import { RawView } from "../playground/raw_view";
import { Store, useStore } from "../store";
import { Empty, Loading, PageHead, Panel, Tabs } from "../ui";

const TABS = ["Chat", "Raw request"] as const;

/** Kept while other pages are shown. */
const chosenRoute = new Store("");
const chosenTab = new Store<(typeof TABS)[number] | null>(null);

/** Whether a route is likely to have OpenAI's API. */
function isChat(route: string): boolean {
  return route === "/" || /\/(v1|openai)$/.test(route);
}

export function Playground() {
  const current = useStore(snapshot);
  const chosen = useStore(chosenRoute);
  const chosenView = useStore(chosenTab);
  const [edited, setEdited] = useState<string | null>(null);
  if (!current) return <Loading what="deployments" />;
  const routes = current.deployments.flatMap((deployment) => deployment.routes.map((route) => ({ route, deployment })));
  const found = routes.find(({ route }) => route === chosen) ?? routes.find(({ route }) => isChat(route)) ?? routes[0];
  if (!found) {
    return (
      <>
        <PageHead title="Playground" />
        <Panel title="Routes">
          <Empty title="There is nothing to try yet">
            <a href="#/deployments">Deploy a plugin</a>, or start the server with --plugin.
          </Empty>
        </Panel>
      </>
    );
  }
  const { route, deployment } = found;
  const tab = chosenView ?? (isChat(route) ? "Chat" : "Raw request");
  const path = tab === "Chat" ? (edited ?? chatPath(route)) : isChat(route) ? chatPath(route) : route;
  return (
    <>
      <PageHead title="Playground">
        <Tabs label="Kind of request" tabs={TABS} current={tab} onChange={(tab) => (chosenTab.value = tab)} />
        <div class="row">
          <label for="playground-route">Route</label>
          <div>
            <select
              id="playground-route"
              value={route}
              onChange={(event) => {
                chosenRoute.value = event.currentTarget.value;
                setEdited(null);
              }}
            >
              {routes.map(({ route, deployment }) => (
                <option key={route} value={route}>
                  {route === deployment.name ? route : `${route} (${deployment.name})`}
                </option>
              ))}
            </select>
          </div>
          {tab === "Chat" && (
            <div>
              <input
                class="mono path"
                aria-label="Path of the chat route"
                value={path}
                spellcheck={false}
                onInput={(event) => setEdited(event.currentTarget.value)}
              />
            </div>
          )}
        </div>
      </PageHead>
      {deployment.state !== "serving" && <div class="note warn">{deployment.name} is {deployment.state}; it answers with an error.</div>}
      {tab === "Chat" ? <ChatView path={path} /> : <RawView key={route} path={path} />}
    </>
  );
}
