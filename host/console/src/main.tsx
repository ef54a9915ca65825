// The frame of the console: menu, connection, theme, login, and the page that the address names.

import { render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import "./style.css";
import { logOut, refusal, token } from "./api";
import { ErrorBoundary } from "./error_boundary";
import { icons } from "./icons";
import { type LinkState, follow, link } from "./live";
import { Login } from "./login";
import { Deployment } from "./pages/deployment";
import { Deployments } from "./pages/deployments";
import { Overview } from "./pages/overview";
import { Playground } from "./pages/playground";
import { PrefixCache } from "./pages/prefix_cache";
import { Requests } from "./pages/requests";
import { goTo, route } from "./route";
import { loadSession, session } from "./session";
import { useStore } from "./store";
import { startTheme, switchTheme, theme } from "./theme";
import { ConfirmDialog, Loading, Messages, type Tone } from "./ui";

const PAGES = [
  { path: "overview", title: "Overview", icon: icons.overview },
  { path: "requests", title: "Requests", icon: icons.requests },
  { path: "deployments", title: "Deployments", icon: icons.deployments },
  { path: "playground", title: "Playground", icon: icons.playground },
  { path: "prefix-cache", title: "Prefix cache", icon: icons.cache },
];

/** Pages whose data the server gives to nobody without the token. */
const PROTECTED = ["deployments", "playground"];

const LINK: Record<LinkState, { tone: Tone; text: string }> = {
  connecting: { tone: "plain", text: "Connecting" },
  live: { tone: "good", text: "Live" },
  broken: { tone: "bad", text: "Reconnecting" },
  refused: { tone: "warn", text: "Token needed" },
};

function Menu({ current }: { current: string }) {
  return (
    <nav class="menu" aria-label="Pages">
      <ul>
        {PAGES.map(({ path, title, icon }) => (
          <li key={path}>
            <a href={`#/${path}`} aria-current={path === current ? "page" : undefined}>
              {icon}
              {title}
            </a>
          </li>
        ))}
      </ul>
    </nav>
  );
}

function Side({ current }: { current: string }) {
  const state = LINK[useStore(link).state];
  const dark = useStore(theme) === "dark";
  const loggedIn = useStore(token) !== null;
  const leave = () => {
    logOut();
    void loadSession();
  };
  return (
    <header class="side">
      <a class="brand" href="#/overview">
        {icons.brand}
        Corral
      </a>
      <Menu current={current} />
      <div class="side-end">
        <div class="link-state" role="status">
          <span class={`dot ${state.tone}`} />
          {state.text}
        </div>
        {loggedIn && (
          <button type="button" class="button quiet slim" onClick={leave}>
            {icons.leave}
            <span class="words">Log out</span>
            <span class="hidden-label">of the console</span>
          </button>
        )}
        <button type="button" class="button quiet slim" onClick={switchTheme}>
          {dark ? icons.sun : icons.moon}
          <span class="words">{dark ? "Light" : "Dark"}</span>
          <span class="hidden-label">theme</span>
        </button>
      </div>
    </header>
  );
}

function Page({ path }: { path: string[] }) {
  const [page, name] = path;
  switch (page) {
    case "requests":
      return <Requests />;
    case "deployments":
      return name === undefined ? <Deployments /> : <Deployment key={name} name={name} />;
    case "playground":
      return <Playground />;
    case "prefix-cache":
      return <PrefixCache />;
    default:
      return <Overview />;
  }
}

function Content({ path }: { path: string[] }) {
  const current = useStore(session);
  const refused = useStore(refusal);
  const connection = useStore(link);
  const page = path[0] ?? "";
  if (!current) {
    return connection.state === "broken" ? (
      <div class="note bad" role="alert">
        {connection.detail} The console tries again.
      </div>
    ) : (
      <Loading what="the state of the server" />
    );
  }
  if (!current.can_read || (PROTECTED.includes(page) && !current.authorized)) return <Login key={page} />;
  if (refused !== "none" && !current.authorized) return <Login key={refused} cancel={() => (refusal.value = "none")} />;
  return (
    <ErrorBoundary key={path.join("/")}>
      <Page path={path} />
    </ErrorBoundary>
  );
}

function App() {
  const path = useStore(route);
  const connection = useStore(link);
  const refused = useStore(refusal);
  const main = useRef<HTMLElement>(null);
  const page = PAGES.find((page) => page.path === path[0]) ?? PAGES[0];
  const title = path[1] === undefined ? page?.title : path[1];
  const first = useRef(true);

  useEffect(() => {
    const stop = new AbortController();
    void follow(stop.signal);
    return () => stop.abort();
  }, []);
  // The server may have been started again, with another token or without one.
  useEffect(() => {
    if (connection.state === "live" || connection.state === "refused" || !session.value) void loadSession();
  }, [connection.state]);
  useEffect(() => {
    if (refused === "wrong") {
      logOut();
      void loadSession();
    }
  }, [refused]);
  useEffect(() => {
    refusal.value = "none";
    document.title = `${title} – Corral`;
    // A new page begins at its top, for screen readers, too.
    if (!first.current) main.current?.focus();
    first.current = false;
    scrollTo(0, 0);
  }, [path.join("/")]);

  const skip = (event: Event) => {
    event.preventDefault();
    main.current?.focus();
  };
  return (
    <div class="frame">
      <a class="skip" href="#content" onClick={skip}>
        Skip to the content
      </a>
      <Side current={page?.path ?? ""} />
      <main ref={main} tabIndex={-1} id="content">
        <Content path={path} />
      </main>
      <Messages />
      <ConfirmDialog />
    </div>
  );
}

startTheme();
if (route.value[0] === undefined) goTo("overview", true);
const place = document.getElementById("app");
if (place) render(<App />, place);
