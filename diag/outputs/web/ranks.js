// The ranks: how many are in which state, who of them is named, and a grid of all by node.

import { useMemo, useState } from "./vendor/hooks.js";
import { clean, plural, ranges, short } from "./format.js";
import { HeatMap } from "./heatmap.js";
import { LEVELS, metricsOf, oddOnes, scaleOf } from "./metrics.js";
import { look, useStore } from "./store.js";
import { FEW, Grid, LARGE, nodesOf, saidOf } from "./rankgrid.js";
import { html } from "./ui.js";
import { language, say } from "./words.js";

/** Gravest first. A glyph says what the colour says. */
export const STATES = {
  hung: ["✖", "the hang starts here"],
  dead: ["†", "the process died"],
  delaying: ["◆", "holds up the others"],
  stalled: ["▲", "waits for such a rank"],
  checkpointing: ["▼", "writes a checkpoint"],
  starting: ["…", "not at its first step yet"],
  running: ["●", "at work"],
  finished: ["✔", "ended well"],
};

export const glyphOf = (state) => (STATES[state] ?? ["?"])[0];

/** Ranks that a finding of warning or above names. */
export function named(report) {
  const found = new Map();
  for (const finding of report?.findings ?? []) {
    if (finding.severity === "info") continue;
    for (const rank of finding.ranks ?? []) if (!found.has(rank)) found.set(rank, finding.id);
  }
  return found;
}

const MOST_NAMED = 8;

function matches(row, text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return true;
  const range = /^(?:ranks? ?)?(\d+)(?:\s*-\s*(\d+))?$/.exec(wanted);
  if (range) return row.rank >= Number(range[1]) && row.rank <= Number(range[2] ?? range[1]);
  const searched = [`rank ${row.rank}`, row.host, row.state, row.phase, row.activity, row.context, row.where?.text, row.caller?.text,
    row.own?.text, `pid ${row.pid}`, row.gpu?.name, row.exit?.text, row.no_stack, say(row.state)];
  return searched.some((word) => word && String(word).toLowerCase().includes(wanted));
}

const MOST_ODD = 4;
const MOST_TOLD = 2; // numbers of each
const AGES_SECONDS = 5; // ages are compared anew so often
const MANY = 4096; // ranks, of which all are compared anew only so often

export function Ranks() {
  const [by, setBy] = useState("state");
  const { ranksTurn, now } = useStore("now");
  const { ranks, report, view, ranksHeard, head } = useStore("ranks", "report", "view", "head");
  const nodes = useMemo(() => nodesOf([...ranks.values()], head?.host), [ranksTurn, head?.host]);
  const turn = [ranks.size > MANY ? ranks.size : ranksTurn, Math.floor((now?.at ?? 0) / AGES_SECONDS), language()];
  const { metrics, odd } = useMemo(() => comparedBy(nodes, now?.at ?? 0), turn);
  if (!ranks.size) return html`<p class="muted">${say(ranksHeard ? "No rank was seen yet." : "No ranks were received yet.")}</p>`;
  const rows = [...ranks.values()];
  const counts = new Map();
  for (const row of rows) counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
  const marked = named(report);
  if (marked.size) counts.set("named", rows.filter((row) => marked.has(row.rank)).length);
  const shown = view.filter || view.search.trim()
    ? new Set(rows.filter((row) => (!view.filter || row.state === view.filter
      || (view.filter === "named" && marked.has(row.rank)))
      && matches(row, view.search)).map((row) => row.rank))
    : null;
  const metric = metrics.find((one) => one.key === by) ?? null;
  const scale = metric ? scaleOf(metric, rows, now?.at ?? 0) : null;
  const seen = { nodes, rows, marked, shown, selected: view.selected, open: view.open, metric, scale };
  const missing = (report?.job?.world_size ?? 0) - ranks.size;
  return html`
    <div class="bar">
      <div role="group" aria-label=${say("Filter by state")} class="legend">
        ${marked.size ? html`<${Filter} state="named" count=${counts.get("named")} on=${view.filter === "named"}
          title=${say("a finding names it")} />` : null}
        ${Object.keys(STATES).concat([...counts.keys()].filter((state) => !STATES[state] && state !== "named"))
          .filter((state) => counts.get(state))
          .map((state) => html`<${Filter} key=${state} state=${state} count=${counts.get(state)} on=${view.filter === state}
            title=${say(STATES[state]?.[1])} />`)}
      </div>
      <input type="search" id="rank-search" aria-label=${say("Search ranks")} placeholder=${say("rank, 8-15, host, function, pid")}
        spellcheck=${false}
        value=${view.search} onInput=${(event) => look({ search: event.target.value })}
        onKeyDown=${(event) => event.key === "Enter" && shown?.size && look({ open: [...shown][0], selected: new Set(shown) })} />
    </div>
    <p class="muted counts"><span role="status">${shown
      ? say(shown.size === 1 ? "{ranks} of {n} matches" : "{ranks} of {n} match", { ranks: plural(shown.size, "rank"), n: ranks.size }) : plural(ranks.size, "rank")}</span>
      ${view.selected.size ? html` · ${say("{n} selected: ", { n: view.selected.size })}${short(ranges([...view.selected]), 80)} <button type="button"
        class="link" onClick=${() => look({ selected: new Set() })}>${say("clear")}</button>` : ""}
      ${shown ? html` · <button type="button" class="link" onClick=${() => look({ filter: null, search: "" })}>${say("show all")}</button>`
        : ""}
      ${missing > 0 && !shown ? ` · ${say("{ranks} of the job not seen here", { ranks: plural(missing, "more rank") })}` : ""}</p>
    ${ranks.size > FEW && marked.size ? html`<${Named} marked=${marked} ranks=${ranks} />` : null}
    ${metrics.length ? html`<div class="bar"><label>${say("Colour by")} <select value=${by} onChange=${(event) => setBy(event.target.value)}>
      <option value="state">${say("state")}</option>${metrics.map((one) => html`<option key=${one.key} value=${one.key}>${one.name}</option>`)}</select></label>
      ${metric && scale ? html`<span class="scale num">${metric.text(scale.least)} <span class="ramp" aria-hidden="true">${Array.from({ length: LEVELS },
        (_, at) => html`<i class="h${at}"></i>`)}</span> ${metric.text(scale.most)}</span>` : null}</div>` : null}
    ${odd.length ? html`<${Odd} odd=${odd} onShow=${(one) => { setBy(one.metric.key); look({ selected: new Set(one.ranks) }); }} />` : null}
    ${rows.length > LARGE ? html`<${HeatMap} ...${seen} odd=${metric ? odd.filter((one) => one.metric.key === by) : []} />` : html`<${Grid} ...${seen} />`}`;
}

/** What one can compare ranks by, and those that stand out in it, one line a group of ranks. */
function comparedBy(nodes, now) {
  const metrics = metricsOf(nodes.flatMap((node) => node.rows));
  const named = nodes.map((node) => ({ name: node.node === null || node.node === undefined ? short(node.host) : say("node {n}, {name}", { n: node.node,
    name: short(node.host) }), rows: node.rows }));
  const odd = metrics.flatMap((metric) => oddOnes(named, metric, now)).sort((one, two) => two.far - one.far);
  return { metrics, odd };
}

/** Who differs from all others, and by what: a look, no verdict. */
function Odd({ odd, onShow }) {
  const byName = new Map();
  for (const one of odd) byName.set(one.name, [...(byName.get(one.name) ?? []), one]);
  return html`<p class="muted odd-title">${say("Unlike the others")}</p><ul class="odd" aria-label=${say("Unlike the others")}>
    ${[...byName].slice(0, MOST_ODD).map(([name, those]) => html`<li key=${name}>
      <button type="button" class="link" onClick=${() => onShow(those[0])}>${name}</button>: ${those.slice(0, MOST_TOLD).map((one) =>
        say("{metric} {value}, median {usual}", { metric: one.metric.name, value: one.metric.text(one.value), usual: one.metric.text(one.usual) })).join("; ")}</li>`)}</ul>`;
}

/** Among many, those that a finding names stand once more on their own. */
function Named({ marked, ranks }) {
  const found = [...marked.keys()].filter((rank) => ranks.has(rank)).sort((one, two) => one - two);
  return html`<ul class="named-ranks" aria-label=${say("Ranks named by findings")}>${found.slice(0, MOST_NAMED).map((rank) => {
    const row = ranks.get(rank);
    return html`<li key=${rank}><button type="button" onClick=${() => openRank(rank)}><b>
      <span class="swatch s-${clean(row.state)}" aria-hidden="true">${glyphOf(row.state)}</span>${" "}
      rank ${rank}, ${say(clean(row.state))}</b> <small>${short(row.host)}, ${clean(marked.get(rank))}: ${saidOf(row).join("; ")
        || "-"}</small></button></li>`;
  })}${found.length > MOST_NAMED ? html`<li class="muted">${say("and {n} more: filter by “named”", { n: found.length - MOST_NAMED })}</li>` : null}
    </ul>`;
}

function Filter({ state, count, on, title }) {
  return html`<button type="button" class="filter" aria-pressed=${on} title=${clean(title ?? "")}
    onClick=${() => look({ filter: on ? null : state })}>
    <span class="swatch s-${clean(state)}" aria-hidden="true">${state === "named" ? "◉" : glyphOf(state)}
      </span> ${say(clean(state))} ${count}</button>`;
}

export function openRank(rank) {
  look({ open: rank, selected: new Set([rank]) });
}
