// The page: its sections, and its keys.

import { Fragment, render } from "./vendor/preact.js";
import { useEffect, useState } from "./vendor/hooks.js";
import { Explain, Keys } from "./dialogs.js";
import { RankPanel, closePanel } from "./details.js";
import { Dump, useDump } from "./dump.js";
import { Findings } from "./findings.js";
import { Nodes } from "./nodes.js";
import { Ranks } from "./ranks.js";
import { Stacks } from "./stacks.js";
import { RunSummary } from "./runsummary.js";
import { saved } from "./saved.js";
import { listen, look, store, useStore } from "./store.js";
import { Timeline } from "./timeline.js";
import { Top, useTitle } from "./top.js";
import { go, html } from "./ui.js";
import { language, say } from "./words.js";

const LINKS = [["docs", "API"], ["metrics", "metrics"], ["findings", "findings"], ["ranks", "ranks"], ["nodes", "nodes"],
  ["state", "state"], ["openapi.json", "OpenAPI"]];

function App() {
  const [dialog, setDialog] = useState(null);
  const dump = useDump();
  useStore("language");
  useTitle();
  useKeys(() => setDialog({ kind: "keys" }));
  const close = () => setDialog(null);
  return html`<${Fragment} key=${language()}>
    <a class="skip" href="#findings">${say("Skip to the findings")}</a>
    <${Top} dump=${dump} onKeys=${() => setDialog({ kind: "keys" })} />
    <${Menu} />
    <main>
      <${Dump} dump=${dump} />
      <${RunSummary} first />
      <${Section} id="findings" title=${say("Findings")}><${Findings} explain=${(id) => setDialog({ kind: "explain", id })} />
        </${Section}>
      <${RunSummary} />
      <${Section} id="ranks" title=${say("Ranks")}><${Ranks} /></${Section}>
      <${Section} id="stacks" title=${say("Stacks")}><${Stacks} /></${Section}>
      <${Section} id="timeline" title=${say("Time line")}><${Timeline} /></${Section}>
      <${SomeNodes} />
    </main>
    <${RankPanel} />
    <footer>${saved ? null : LINKS.map(([path, name]) => html`<a key=${path} href=${path}>${name}</a>`)}
      <span class="muted">diag ${store.head?.version ?? ""}</span></footer>
    ${dialog?.kind === "keys" ? html`<${Keys} onClose=${close} />` : null}
    ${dialog?.kind === "explain" ? html`<${Explain} key=${dialog.id} id=${dialog.id} onClose=${close} />` : null}</${Fragment}>`;
}

function Section({ id, title, children }) {
  return html`<section id=${id} aria-labelledby="${id}-title" tabindex="-1" class="card"><h2 id="${id}-title">${title}</h2>
    ${children}</section>`;
}

function SomeNodes() {
  const { nodes } = useStore("nodes");
  return nodes?.length ? html`<${Section} id="nodes" title=${say("Nodes")}><${Nodes} /></${Section}>` : null;
}

function Menu() {
  const { report, ranks, nodes, view } = useStore("report", "ranks", "nodes", "view");
  useEffect(() => {
    document.body.classList.toggle("with-panel", view.open !== null);
    const here = view.open === null ? location.pathname + location.search : `#rank-${view.open}`;
    if (view.open !== null || location.hash.startsWith("#rank-")) history.replaceState(null, "", here);
      // a link that can be given on
  }, [view.open]);
  const over = (report?.past?.length ?? 0) + (report?.past_left_out ?? 0);
  const places = [["findings", say("Findings") + (report ? ` ${report.findings?.length ?? 0}` : "") + (over ? say(", {n} over", { n: over }) : "")],
    ["ranks", say("Ranks") + (ranks.size ? ` ${ranks.size}` : "")],
    ["stacks", say("Stacks")], ["timeline", say("Time line")],
    ...(nodes?.length ? [["nodes", `${say("Nodes")} ${nodes.length}`]] : [])];
  return html`<nav aria-label=${say("Sections")}>${places.map(([id, name]) => html`<a key=${id} href="#${id}"
    onClick=${(event) => { event.preventDefault(); go(id); }}>${name}</a>`)}</nav>`;
}

const PLACES = { f: "findings", r: "ranks", s: "stacks", t: "timeline", n: "nodes" };

function useKeys(showKeys) {
  useEffect(() => {
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || document.querySelector("dialog[open]")) return;
      const typing = event.target.closest?.("input, textarea, select");
      if (event.key === "Escape") leave(typing);
      else if (typing) return;
      else if (PLACES[event.key]) go(PLACES[event.key]);
      else if (event.key === "?") showKeys();
      else if (event.key === "/") focusOn("rank-search");
      else if (event.key === "d") focusOn("dump-now");
      else if (event.key === "j" || event.key === "k") nextFinding(event.key === "j" ? 1 : -1);
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);
}

function leave(typing) {
  if (typing?.type === "search" && store.view.search) return look({ search: "" });
  if (typing) return typing.blur();
  if (store.view.open !== null) return closePanel();
  return look({ filter: null, search: "", selected: new Set() });
}

function focusOn(id) {
  const target = document.getElementById(id);
  target?.scrollIntoView({ block: "nearest" });
  target?.focus();
}

function nextFinding(way) {
  const all = [...document.querySelectorAll("article.finding")].filter((one) => one.offsetParent !== null);
  if (!all.length) return;
  const at = all.indexOf(document.activeElement?.closest("article.finding"));
  const target = all[at < 0 ? (way > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + way))];
  target.focus({ preventScroll: true });
  target.scrollIntoView({ block: "nearest" });
}

const asked = /^#rank-(\d{1,7})$/.exec(location.hash);
if (asked) look({ open: Number(asked[1]), selected: new Set([Number(asked[1])]) });

const root = document.getElementById("app");
root.replaceChildren();
listen(); // first: what a saved report holds is there at once
render(html`<${App} />`, root);
