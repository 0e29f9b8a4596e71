// The whole run: phases as a band, findings as marks, charts below each other on one axis of time.

import { useMemo, useRef, useState } from "./vendor/hooks.js";
import { clean, clock, seconds, term, withUnit } from "./format.js";
import { Chart } from "./chart.js";
import { keyOf, titleOf } from "./findings.js";
import { named } from "./ranks.js";
import { chartsOf, isQuiet, momentsOf, phasesOf, summary } from "./series.js";
import { useStore } from "./store.js";
import { html } from "./ui.js";
import { language, say, said } from "./words.js";

const STRETCHES = [[300, "Last 5 min"], [3600, "Last hour"], [86400, "Last day"]];
const MARK_SHARE = 0.12; // of the width: marks nearer than this stand in another line
const MOST_LANES = 4;

export function Timeline() {
  const { timeline, nodes } = useStore("timeline", "nodes");
  if (!timeline || timeline.began === null || timeline.began === undefined || !timeline.count) {
    return html`<p class="muted">${say("Nothing that changes over time was read yet.")}</p>`;
  }
  return html`${nodes?.length > 1 ? html`<p class="muted">${say("GPUs, memory and networks are those of this node.")}</p>` : null}
    <${Charts} timeline=${timeline} group="job" />`;
}

/** @param {{timeline: any, group: string, small?: boolean}} props charts of one `group` share cursor and zoom */
export function Charts({ timeline, group, small = false }) {
  const { report } = useStore("report");
  const [zoom, setZoom] = useState(null);
  const [table, setTable] = useState(false);
  const moment = useRef(null);
  const charts = useMemo(() => chartsOf(timeline), [timeline, language()]);
  const moments = useMemo(() => momentsOf(timeline), [timeline]);
  const [from, to] = [timeline.began, timeline.began + timeline.count * timeline.width_seconds];
  const marks = useMemo(() => marksOf(report, to), [report, to, language()]);
  const known = useMemo(() => named(report), [report]);
  const [loud, quiet] = [charts.filter((one) => !isQuiet(one)), charts.filter(isQuiet)];
  const [unfolded, setUnfolded] = useState(false);
  const drawn = (those) => those.map((chart, index) => html`<${Chart} key=${chart.title} chart=${chart} moments=${moments}
    width=${timeline.width_seconds} zoom=${zoom} onZoom=${setZoom} group=${group} marks=${marks} named=${known}
    axis=${index === those.length - 1 || index % 4 === 3} onMoment=${showMoment} />`);
  const seen = zoom ?? [from, to];
  const showMoment = (at) => {
    if (moment.current) moment.current.textContent = at === null ? ""
      : say("{at}, {time} after the start", { at: clock(at, to), time: seconds(Math.max(0, at - from)) });
  };
  return html`
    <div class="bar"><span class="muted">${clock(seen[0])} ${say("to")} ${clock(seen[1], seen[0])}, ${seconds(seen[1] - seen[0])}${small
      ? "" : say("; drag in a chart to zoom")}</span>
      ${STRETCHES.filter(([length]) => to - from > 1.5 * length).map(([length, label]) => html`<button type="button" class="small"
        key=${label} onClick=${() => setZoom([to - length, to])}>${say(label)}</button>`)}
      <button type="button" class="small" aria-disabled=${!zoom} onClick=${() => setZoom(null)}>${say("Reset zoom")}</button>
      <span class="num moment" ref=${moment}></span></div>
    <div class="tracks ${small ? "narrow" : ""}">
      ${small ? null : html`<div class="track"><b>${say("Phases")}</b><${Phases} phases=${phasesOf(timeline)} seen=${seen} /></div>
        ${marks.length ? html`<div class="track"><b>${say("Findings")}</b><${Marks} marks=${marks} seen=${seen} /></div>` : null}`}
      ${drawn(loud)}
    </div>
    ${quiet.length ? html`<details class="fold" onToggle=${(event) => setUnfolded(event.currentTarget.open)}>
      <summary>${say("Quiet charts ({n}): ", { n: quiet.length })}${quiet.map((one) => one.title).join(", ")}</summary>
      ${unfolded ? html`<div class="tracks ${small ? "narrow" : ""}">${drawn(quiet)}</div>` : null}</details>` : null}
    ${charts.length || small ? null
      : html`<p class="muted">${say("No numbers were read yet: no step was logged, and no GPU, memory or network was seen.")}</p>`}
    <details class="fold" onToggle=${(event) => setTable(event.currentTarget.open)}><summary>${say("Values as a table")}</summary>
      ${table ? html`<${Table} charts=${charts} timeline=${timeline} />` : null}</details>`;
}

/** Findings in the order of time. */
function marksOf(report, end) {
  const all = [...(report?.findings ?? []), ...(report?.past ?? [])];
  return all.filter((one) => one.since).map((one) => ({ at: one.since,
    to: Math.max(one.since, one.resolved_at ?? report.job?.ended_at ?? end), severity: one.severity, over: Boolean(one.resolved_at),
    title: titleOf(one), key: keyOf(one), summary: clean(said(one.summary)) }))
    .sort((one, two) => one.at - two.at);
}

const share = (at, [from, to]) => (at - from) / (to - from || 1);
const inside = (value) => `${Math.min(1, Math.max(0, value)) * 100}%`;

function Phases({ phases, seen }) {
  const names = [...new Set(phases.map((one) => one.phase))];
  const shown = phases.filter((one) => one.to > seen[0] && one.from < seen[1]);
  return html`<div class="band">${shown.map((one) => {
    const [left, right] = [Math.max(0, share(one.from, seen)), Math.min(1, share(one.to, seen))];
    return html`<span key=${one.from} class="phase p${names.indexOf(one.phase) % 6}"
      style=${{ left: inside(left), width: inside(right - left) }}
      title="${term(one.phase)}: ${seconds(one.to - one.from)}, ${say("from")} ${clock(one.from)}"><span>
        ${right - left > 0.035 ? term(one.phase) : ""}</span></span>`;
  })}</div>`;
}

/** A bar from begin to end, its name on it, or beside it where it is short. */
function Marks({ marks, seen }) {
  const lanes = [];
  const placed = [];
  for (const mark of marks) {
    const [at, to] = [share(mark.at, seen), share(mark.to, seen)];
    if (at > 1 || to < 0) continue;
    // Near the end the name stands to the left: it takes room on that side.
    const late = at > 0.6;
    let lane = lanes.findIndex((end) => Math.min(at, (late ? to : 1) - MARK_SHARE) > end);
    if (lane < 0) lane = lanes.length < MOST_LANES ? lanes.length : lanes.indexOf(Math.min(...lanes));
    lanes[lane] = late ? to : Math.max(to, at + MARK_SHARE);
    placed.push({ mark, at: Math.max(0, at), to: Math.min(1, to), lane, late });
  }
  return html`<div class="band marks lanes${lanes.length}">
    ${placed.map(({ mark, at, to, lane, late }) => html`<span key=${`${mark.key}${mark.at}bar`} aria-hidden="true"
      class="stretch ${mark.severity} ${mark.over ? "over" : ""} lane${lane}" style=${{ left: inside(at), width: inside(to - at) }}></span>
    <button type="button" key=${mark.key + mark.at}
    class="mark ${mark.severity} ${mark.over ? "over" : ""} lane${lane} ${late ? "at-end" : ""}" style=${{ left: inside(late ? to : at) }}
    title="${clock(mark.at)} ${say("to")} ${clock(mark.to, mark.at)}, ${seconds(mark.to - mark.at)}: ${mark.summary.slice(0, 300)}"
      onClick=${() => showFinding(mark)}>${mark.title}${mark.over ? say(" (over)") : ""}</button>`)}</div>`;
}

function showFinding(mark) {
  const target = [...document.querySelectorAll("article.finding")].find((one) => one.dataset.key === mark.key
    && one.classList.contains("over") === mark.over);
  if (!target) return;
  const fold = target.closest("details");
  if (fold) fold.open = true;
  target.scrollIntoView({ block: "center" });
  target.focus({ preventScroll: true });
}

function Table({ charts, timeline }) {
  return html`<div class="wide" tabindex="0" role="group" aria-label=${say("Values")}><table>
    <caption>${say("Each series over the whole run")}</caption>
      <thead><tr>${["series", "last", "lowest", "mean", "highest",
        "limit"].map((name) => html`<th scope="col" key=${name}>${say(name)}</th>`)}</tr></thead>
      <tbody>${charts.flatMap((chart) => chart.lines.map((line) => {
        const found = summary(line);
        const row = [found.last, found.least, found.mean, found.most, chart.limit].map((value) => withUnit(value, chart.unit));
        return html`<tr key=${chart.title + line.label}><th scope="row">${chart.title}${line.label ? `, ${line.title}` : ""}</th>
          ${row.map((value) => html`<td class="num">${value}</td>`)}</tr>`;
      }))}</tbody></table>
    <table><caption>${say("Phases")}</caption><thead><tr>${["phase", "from",
        "lasted"].map((name) => html`<th scope="col" key=${name}>${say(name)}</th>`)}</tr>
      </thead>
      <tbody>${phasesOf(timeline).map((one) => html`<tr key=${one.from}><th scope="row">${term(one.phase)}</th><td class="num">
        ${clock(one.from)}</td><td class="num">${seconds(one.to - one.from)}</td></tr>`)}</tbody></table></div>`;
}
