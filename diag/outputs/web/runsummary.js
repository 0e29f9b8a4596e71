// A run that has ended, in a few rows: how, how long, how fast, what it took at most.

import { troubles } from "./format.js";
import { rowsOf } from "./runrows.js";
import { useStore } from "./store.js";
import { html } from "./ui.js";
import { say } from "./words.js";

export const hasEnded = (report) => report?.job?.returncode !== null && report?.job?.returncode !== undefined;

/** Above the findings (`first`) where there were none to speak of, else below them. */
export function RunSummary({ first = false }) {
  const { report, timeline, ranks, head } = useStore("report", "timeline", "ranks", "head");
  if (!hasEnded(report) || first !== (troubles(report) === 0)) return null;
  const rows = rowsOf({ job: report.job, timeline, rows: [...ranks.values()], head });
  return html`<section id="run-summary" aria-labelledby="run-summary-title" class="card"><h2 id="run-summary-title">${say("The run in short")}</h2>
    <dl class="facts short">${rows.map(([name, value]) => html`<div key=${name}><dt>${say(name)}</dt><dd class="num">${value}</dd></div>`)}</dl>
  </section>`;
}
