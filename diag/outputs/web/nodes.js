// The nodes of a job of several.

import { useState } from "./vendor/hooks.js";
import { clean, plural, ranges, seconds, short } from "./format.js";
import { useStore } from "./store.js";
import { choose, html } from "./ui.js";
import { language, say } from "./words.js";

const MOST = 12;
const ORDER = { gone: 0, silent: 1, known: 2, heard: 3 };

export function Nodes() {
  const { nodes } = useStore("nodes");
  const rows = [...(nodes ?? [])].sort((one, two) => (ORDER[one.state] ?? 9) - (ORDER[two.state] ?? 9));
  const [all, setAll] = useState(false);
  const few = rows.filter((row, index) => all || index < MOST || row.state === "gone" || row.state === "silent");
  return html`<div class="wide" tabindex="0" role="group" aria-label=${say("Nodes, table")}><table>
    <caption class="unseen">${say("Nodes, those that are gone or silent first")}</caption>
    <thead><tr>${["node", "host", "state", "ranks", "phase", "heard", "round trip",
      "clock ahead"].map((name) => html`<th scope="col" key=${name}>${say(name)}</th>`)}</tr></thead>
    <tbody>${few.map((row) => html`<tr key=${row.run_id || row.host} class="is-${clean(row.state)}">
      <td class="num">${row.node_rank ?? "-"}</td>
      <th scope="row">${/^https?:/.test(row.url ?? "") ? html`<a href=${row.url} rel="noopener noreferrer">${short(row.host)}</a>`
        : short(row.host)}</th>
      <td>${say(clean(row.state))}${row.notes?.length ? `: ${short(row.notes.join("; "), 300)}` : ""}</td>
      <td>${row.ranks?.length ? html`<button type="button" class="chip" aria-label="${language() === "zh" ? "rank" : "ranks"} ${ranges(row.ranks)}"
        onClick=${() => choose(row.ranks)}>${ranges(row.ranks)}</button>` : "-"}</td>
      <td>${say(clean(row.phase).replaceAll("_", " ")) || "-"}</td>
      <td class="num">${row.heard_seconds_ago === null ? "-" : `${seconds(row.heard_seconds_ago)} ${say("ago")}`}</td>
      <td class="num">${seconds(row.round_trip_seconds)}</td><td class="num">${seconds(row.skew_seconds)}</td></tr>`)}</tbody>
        </table></div>
    ${rows.length > few.length ? html`<button type="button" class="small"
      onClick=${() => setAll(true)}>${say("Show {nodes}", { nodes: plural(rows.length - few.length, "more node") })}</button>` : null}`;
}
