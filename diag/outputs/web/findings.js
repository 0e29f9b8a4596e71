// What is wrong, gravest first; what was, and what could not be checked.

import { useState } from "./vendor/hooks.js";
import { clean, clock, plural, rankWords, seconds, sentenceHere, stamp } from "./format.js";
import { store, useStore } from "./store.js";
import { Commands, Copy, Moment, RankChips, Text, When, html } from "./ui.js";
import { told } from "./telling.js";
import { language, say, said } from "./words.js";

const GRAVITY = ["critical", "warning", "info"];
const GLYPHS = { critical: "✖", warning: "▲", info: "ℹ" };
const MOST_EVIDENCE = 40;

export const keyOf = (finding) => `${finding.id}/${finding.subject}`;

/** @param {any} finding */
export function titleOf(finding) {
  return clean(finding.id) + (finding.class ? ` (${clean(finding.class)})` : "");
}

/** Of the same gravity in diag's own order. */
export function byGravity(findings) {
  const place = (finding) => (GRAVITY.indexOf(finding.severity) + GRAVITY.length + 1) % (GRAVITY.length + 1);
  return [...(findings ?? [])].sort((one, two) => place(one) - place(two));
}

export function Findings({ explain }) {
  const { report } = useStore("report", "head");
  if (!report) return html`<p class="muted">${say("No findings were reported yet.")}</p>`;
  const findings = byGravity(report.findings);
  const past = report.past ?? [];
  const unchecked = report.not_checked ?? [];
  const ended = report.job?.returncode !== null && report.job?.returncode !== undefined;
  const beside = unchecked.length ? say("; some checks could not run, see below") : "";
  const over = past.length + (report.past_left_out ?? 0);
  return html`
    <div aria-live="polite" class="unseen">${findings.length
      ? findings.map((one) => `${say(one.severity)}: ${titleOf(one)}`).join("; ")
      : past.length ? say("nothing open, {n} over", { n: over }) : say("nothing found")}</div>
    ${findings.length ? null : past.length ? html`<p class="calm was">${say(over === 1 ? "Nothing is open; {n} is over" : "Nothing is open; {n} are over", { n: over })}${
      beside || say(", see below")}${say(".")}</p>`
      : html`<p class="calm"><span aria-hidden="true">✔</span> ${say("Nothing found")}${beside}${say(".")}</p>`}
    ${findings.map((one, index) => html`<${Finding} key=${keyOf(one)} finding=${one} explain=${explain} open=${index === 0} />`)}
    ${past.length ? html`<details class="fold" open=${ended}><summary>${say("Past findings ({n})", { n: over })}</summary>
      ${past.map((one) => html`<${Finding} key=${`${keyOf(one)}/${one.opened_at}`} finding=${one} explain=${explain} />`)}
        </details>` : null}
    ${unchecked.length ? html`<details class="fold"><summary>${say("Not checked ({n})", { n: unchecked.length })}</summary><ul class="unchecked">
      ${unchecked.map((one) => html`<li key=${one.what}><b><${Text} text=${said(one.what)} of="what was not checked" />
        </b>: <${Text} text=${said(one.reason)} of="the reason" />
        ${one.remedy ? html`<div class="advice"><${Commands} text=${said(one.remedy)} /></div>` : null}</li>`)}</ul></details>`
          : null}`;
}

function Finding({ finding, explain }) {
  const severity = GRAVITY.includes(finding.severity) ? finding.severity : "info";
  const title = titleOf(finding);
  const over = finding.resolved_at;
  const word = say(over ? `over, was ${severity}` : severity);
  const parts = told(clean(said(finding.summary)), { standing: ["hang", "held-up"].includes(finding.id),
    waiting: Boolean(finding.waiting_ranks?.length) });
  return html`<article class="finding ${severity} ${over ? "over" : ""}" aria-label="${word}: ${title}"
    data-key=${keyOf(finding)} tabindex="-1">
    <header>
      <h3><span class="severity"><span aria-hidden="true">${GLYPHS[severity]}</span> ${word}</span> ${" "}
        <button type="button" class="link id" aria-label=${say("Explain {id}", { id: clean(finding.id) })} onClick=${() => explain(finding.id)}>
          ${title}</button></h3>
      <span class="muted">${over ? (finding.since ? html`<${Moment} at=${finding.since} /> ${say("to")} <${Moment} at=${over} />, ${
        seconds(Math.max(0, over - finding.since))}` : html`${say("over at")} <${Moment} at=${over} />`)
        : finding.since ? html`${say("since")} <${When} at=${finding.since} />` : ""}${finding.open_at_end
        ? say(", open when the job ended") : ""}</span>
      <${Copy} text=${() => ticket(finding)} label=${say("Copy for a ticket")} />
    </header>
    <p class="summary">${over ? html`<span class="muted">${say("then: ")}</span>` : ""}
      <${Text} text=${parts.claim} of="the summary" /></p>
    <div class="told">
    ${finding.advice ? html`<div class="advice"><h4>${say("What to do")}</h4> <p><${Commands} text=${said(finding.advice)} /></p>
      <${Copy} text=${clean(said(finding.advice))} label=${say("Copy advice")} /></div>` : null}
    <dl class="facts rows">
      <${Row} name="culprit" shown=${finding.ranks?.length}><${RankChips} ranks=${finding.ranks} label=${say("Culprit ranks")} kind="culprit" />
        </${Row}>
      <${Row} name=${over ? "stood for" : "stands for"} shown=${parts.span}>${parts.span}</${Row}>
      <${Row} name="when" shown=${parts.after}>${parts.after}</${Row}>
      <${Row} name="because" shown=${parts.why}><${Text} text=${parts.why} of="the reason" /></${Row}>
      <${Row} name="also" shown=${parts.more.length}>${listed(parts.more)}</${Row}>
      <${Row} name=${over ? "waited for it" : "waits for it"} shown=${finding.waiting_ranks?.length}>
        <${RankChips} ranks=${finding.waiting_ranks} label=${say("Waiting ranks")} kind="waits" />
        ${parts.waits.length ? listed(parts.waits) : null}</${Row}>
    </dl></div>
    <dl class="facts">
      <${Row} name="seen" shown=${parts.seen}>${parts.seen}</${Row}>
      <${Row} name="hosts" shown=${finding.hosts?.length}>${clean(finding.hosts?.join(", "))}</${Row}>
      <${Row} name="cause" shown=${finding.cause}><code>${clean(finding.cause)}</code></${Row}>
      <${Row} name="confidence" shown=${finding.confidence}>${say(clean(finding.confidence))}</${Row}>
      <${Row} name="reported" shown=${finding.opened_at}><${When} at=${finding.opened_at} /></${Row}>
      ${finding.bundle ? html`<${Kept} path=${finding.bundle} />` : null}
      <${Row} name="reported by" shown=${finding.told_by}>${clean(finding.told_by)}</${Row}>
    </dl>
    <${Evidence} items=${finding.evidence ?? []} />
  </article>`;
}

function Row({ name, shown, children }) {
  return shown ? html`<div><dt>${say(name)}</dt><dd>${children}</dd></div>` : null;
}

const listed = (clauses) => (clauses.length === 1 ? html`<${Text} text=${clauses[0]} of="the summary" />`
  : html`<ul>${clauses.map((one) => html`<li key=${one}><${Text} text=${one} of="the summary" /></li>`)}</ul>`);

/** The bundle that diag wrote when the finding was told: where it is, and a link to it while diag is there to send it. */
function Kept({ path }) {
  const { head } = store;
  const name = String(path).split("/").pop();
  const replay = `diag replay ${path}`;
  return html`<div><dt>${say("evidence kept")}</dt><dd>${head?.recorded ? html`<code>${clean(path)}</code>`
    : html`<a href="bundles/${encodeURIComponent(name)}" download=${name}>${clean(path)}</a>`}
    <${Copy} text=${replay} label=${say("Copy command: {command}", { command: replay })} icon /></dd></div>`;
}

function Evidence({ items }) {
  const [all, setAll] = useState(false);
  if (!items.length) return null;
  const shown = all ? items : items.slice(0, MOST_EVIDENCE);
  return html`<details class="evidence"><summary>${say("Evidence ({n})", { n: items.length })}</summary>
    <${Copy} text=${() => items.map(evidenceLine).join("\n")} label=${say("Copy evidence")} />
    <ol>${shown.map((item, index) => html`<li key=${index}>
      <span class="muted">${clean(item.kind)}${item.rank === null || item.rank === undefined ? ""
        : `, rank ${item.rank}`}${item.at ? `, ${clock(item.at, store.now?.at)}` : ""}${item.where ? `, ${clean(item.where)}` : ""}
          </span>
      <${Excerpt} item=${item} /></li>`)}</ol>
    ${items.length > shown.length ? html`<button type="button" class="small"
      onClick=${() => setAll(true)}>${say("Show all {n}", { n: items.length })}</button>` : null}
  </details>`;
}

/** Frames of a stack one below the other; anything else as it is. */
function Excerpt({ item }) {
  const frames = /stack|pyspy|faulthandler/.test(item.kind) ? clean(item.excerpt).split(" < ") : [];
  if (frames.length < 2) return html`<div class="excerpt"><${Text} text=${item.excerpt} of="this evidence" tag="code" /></div>`;
  return html`<div class="excerpt"><code class="text">
    ${frames.map((frame, index) => html`${index ? html`<span class="muted"> ‹ </span>` : ""}<span class="frame">${frame}</span>`)}
      </code></div>`;
}

function evidenceLine(item) {
  const rank = item.rank === null || item.rank === undefined ? "" : `, rank ${item.rank}`;
  return `[${clean(item.kind)}${rank}] ${stamp(item.at)} ${clean(item.excerpt)}`;
}

/** The whole finding as plain text. */
export function ticket(finding) {
  const { report, head } = store;
  const severity = language() === "zh" ? say(finding.severity) : String(finding.severity).toUpperCase();
  const lines = [
    say("{severity} {title}: {confidence} confidence, since {since}", { severity, title: titleOf(finding),
      confidence: say(clean(finding.confidence)), since: stamp(finding.since) })
      + (finding.resolved_at ? say(", over {at}", { at: stamp(finding.resolved_at) }) : ""),
    (finding.resolved_at ? say("then: ") : "") + clean(said(finding.summary)),
    [finding.ranks?.length ? say("culprit: {ranks}", { ranks: rankWords(finding.ranks) }) : "",
      finding.waiting_ranks?.length ? say("waiting: {ranks}", { ranks: rankWords(finding.waiting_ranks) }) : "",
      finding.cause ? say("cause: {cause}", { cause: clean(finding.cause) }) : ""].filter(Boolean).join("; "),
    finding.advice ? say("advice: {advice}", { advice: clean(said(finding.advice)) }) : "",
    finding.evidence?.length ? say("evidence ({pieces}):", { pieces: plural(finding.evidence.length, "piece") }) : "",
    ...(finding.evidence ?? []).map((item) => `  ${evidenceLine(item)}`),
    "",
    say("job: {sentence}", { sentence: sentenceHere(report, store.now?.at) }),
    say("command: {command}", { command: clean(head?.command) }),
    say("run {run} on {host}, diag {version}", { run: clean(head?.run_id), host: clean(head?.host), version: clean(head?.version) })
      + (head?.recorded ? say(", recorded in {path}", { path: clean(head.recorded) }) : ""),
  ];
  return `${lines.filter((line, index) => line || index > 5).join("\n").trim()}\n`;
}
