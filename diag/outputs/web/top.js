// The answer: what state the job is in, since when, whether we still hear of it.

import { useEffect, useState } from "./vendor/hooks.js";
import { byGravity } from "./findings.js";
import { clean, clock, plural, seconds, sentenceHere, short, troubles } from "./format.js";
import { NotifyButton } from "./notify.js";
import { saved } from "./saved.js";
import { on, store, useStore } from "./store.js";
import { DumpButton } from "./dump.js";
import { nextTheme, theme } from "./theme.js";
import { Tiles } from "./tiles.js";
import { Copy, Moment, When, html, useNarrow } from "./ui.js";
import { language, nextLanguage, said, say } from "./words.js";

const other = () => (language() === "zh" ? "en" : "zh");

const GRAVE = { hung: "critical", "held-up": "warning", dead: "critical", failed: "critical", starting: "info", checkpointing: "info", running: "good",
  finished: "good" };
const GLYPHS = { hung: "✖", "held-up": "◆", dead: "†", failed: "✖", starting: "…", checkpointing: "▼", running: "●", finished: "✔" };
const OF_STATE = { hung: "hang", "held-up": "held-up" };
const LONG_COMMAND = 120;

export function Top({ dump, onKeys }) {
  const { report, head, now } = useStore("report", "head", "theme");
  const state = short(report?.job?.state, 40);
  const [lead, rest] = halves(short(sentenceHere(report, now?.at), 1000));
  const count = state === "finished" ? troubles(report) : 0;
  const gravity = count ? "warning" : GRAVE[state] ?? "";
  return html`<header class="top ${gravity}">
    <div class="bar line">
      <span class="brand">diag</span>
      <span class="run">${head ? nameOf(head) : ""}</span>
      <${Connection} />
      <span class="push"></span>
      ${saved ? null : html`<a class="button" href="report.html" download
        title=${say("this page as one file, to send: it opens without diag and without a network")}>${say("Report")}</a>
        <${NotifyButton} /><${DumpButton} dump=${dump} />`}
      <button type="button" onClick=${nextTheme} aria-label=${say("Theme: {theme}", { theme: say(theme()) })}>◐ <span class="theme-word">${say(theme())}</span></button>
      <button type="button" onClick=${nextLanguage} lang=${other()} aria-label=${other() === "zh" ? "Language: English; 中文"
        : "语言：中文；English"}>${other() === "zh" ? "中文" : "English"}</button>
      <button type="button" class="keys-button" onClick=${onKeys} aria-label=${say("Keys")} title=${say("keys (?)")}>?</button>
    </div>
    <div class="answer">${state ? html`<span class="state ${gravity}"><span aria-hidden="true">${count ? "▲"
      : GLYPHS[state] ?? "?"}</span> ${say(state)}${count ? say(", with {troubles}", { troubles: plural(count, "trouble") }) : ""}</span>` : null}
      <h1>${lead || say("Waiting for the first report…")}${rest ? html` <span class="rest">${rest}</span>` : ""}</h1></div>
    <${Tiles} />
    <${About} command=${head?.command} />
    ${saved ? html`<${OfFile} />` : null}
  </header>`;
}

const nameOf = (head) => html`${short(head.run_id)} <span class="muted">${say("on")}</span> ${short(head.host) || say("this node")}`;

/** Since when, and of what command; on a phone folded away, as what to do comes first there. */
function About({ command }) {
  const about = html`<p class="muted since"><${Since} /></p><${Command} command=${command} />`;
  if (!useNarrow()) return about;
  return html`<details class="about"><summary>${say("Since when, and what runs")}</summary><p>${store.head ? nameOf(store.head) : ""}</p>
    ${about}</details>`;
}

/** What a saved report is, and what it had no room for. */
function OfFile() {
  return html`<p class="muted">${say("A report that was saved as a file:")} <${Moment} at=${saved.made_at} />${say(".")}</p>
    ${saved.cut.length ? html`<p role="note" class="cut">${say("Cut to keep the file small:")} ${saved.cut.map((one) => clean(said(one))).join("; ")}${say(".")}</p>` : null}`;
}

/** "The job is hung;" is what one looks for; the rest is shown more quietly. */
function halves(sentence) {
  const cut = sentence.search(/[;；]/);
  return cut < 0 ? [sentence, ""] : [sentence.slice(0, cut + 1), sentence.slice(cut + 1).trim()];
}

function Since() {
  const { report, head } = useStore("report", "head");
  if (!report || !head) return null;
  const state = report.job?.state;
  const worst = byGravity(report.findings).find((one) => one.id === OF_STATE[state]
    || (one.severity === "critical" && state !== "hung"));
  const world = report.job?.world_size;
  const ended = report.job?.returncode !== null && report.job?.returncode !== undefined;
  return html`${ended ? (report.job.ended_at ? html`${say(clean(state))} ${say("at")} <${Moment} at=${report.job.ended_at} /> · ` : "")
    : worst && ["critical", "warning"].includes(GRAVE[state]) ? html`${say(clean(state))} ${say("since")} <${When} at=${worst.since} /> · ` : ""}${
    head.started_at ? html`${say("started")} <${When} at=${head.started_at} />` : ""}${world ? ` · ${plural(world, "rank")}`
      : ""}${head.version ? ` · diag ${clean(head.version)}` : ""}`;
}

function Connection() {
  const { connection, head, trouble, heardAt } = useStore("connection", "head", "trouble", "second");
  const silent = heardAt ? Math.floor((Date.now() - heardAt) / 1000) : 0;
  const lost = connection === "lost" || connection === "ended";
  const words = connection === "connecting" ? say("connecting…")
    : lost && !heardAt ? say("diag does not answer")
    : connection === "ended" ? say("diag has ended; last state")
    : connection === "lost" ? say("diag does not answer; last known state")
    : say(head?.recorded ? "recorded" : "live");
  const kind = lost ? "critical" : head?.recorded ? "info" : "good";
  // The seconds are outside the live region's changing text: a screen reader would read each of them.
  return html`<span role="status" aria-label=${say("Connection")} class="connection ${kind}"><span aria-hidden="true">${lost ? "○" : "●"}
    </span> ${words}${lost && heardAt ? html`, <span aria-live="off">${seconds(silent)} ${say("ago")}</span>` : ""}</span>
    ${trouble ? html`<span role="alert" class="failed">${clean(trouble.detail).slice(0, 300)}</span>` : null}`;
}

function Command({ command }) {
  const [all, setAll] = useState(false);
  const text = clean(command);
  if (!text) return null;
  const long = text.length > LONG_COMMAND;
  return html`<p class="command"><code>${all || !long ? text : `${text.slice(0, LONG_COMMAND)}…`}</code>
    ${long ? html` <button type="button" class="link" aria-expanded=${all} onClick=${() => setAll(!all)}>
      ${say(all ? "shorter" : "whole command")}</button>` : null}
    ${" "}<${Copy} text=${text} label=${say("Copy command of the job")} icon />
    ${store.head?.recorded ? html` <span class="muted">${say("recorded in")} <code>${short(store.head.recorded, 400)}
      </code>, ${say("until")} ${clock(store.now?.at)}</span>` : null}</p>`;
}

/** The tab's title has the state also in a hidden tab. */
export function useTitle() {
  useEffect(() => {
    const set = () => {
      const state = store.report?.job?.state;
      const worst = byGravity(store.report?.findings)[0];
      const sign = store.connection === "lost" || store.connection === "ended" ? "○ " : worst?.severity === "critical" ? "✖ "
        : worst?.severity === "warning" ? "▲ " : "";
      document.title = `${sign}${state ? `${say(clean(state))} - ` : ""}${short(store.head?.run_id)} - diag`.replace(/^ - /, "");
    };
    const offs = ["report", "head", "connection", "hidden"].map((part) => on(part, set));
    return () => offs.forEach((off) => off());
  }, []);
}


