// One rank: what it does, what it uses, its stacks, its flame graph, its time line. A panel beside the page.

import { useEffect, useRef, useState } from "./vendor/hooks.js";
import { activityWords, bytes, clean, clock, percent, plural, seconds, short, term } from "./format.js";
import { glyphOf, named } from "./ranks.js";
import { look, store, useStore } from "./store.js";
import { Frames } from "./stacks.js";
import { RankFlame } from "./flame.js";
import { Charts } from "./timeline.js";
import { Copy, Text, When, html, useFetched } from "./ui.js";
import { say, said } from "./words.js";

const PROCESS_STATES = { R: "runs", S: "sleeps", D: "uninterruptible (in the kernel)", T: "stopped by a signal",
  t: "stopped by a tracer", Z: "ended, not reaped", I: "idle", X: "dead" };

export function RankPanel() {
  const { view, ranks, report, nodes, head } = useStore("view", "ranks", "report", "nodes");
  const rank = view.open;
  if (rank === null) return null;
  return html`<${Panel} key=${rank} rank=${rank} row=${ranks.get(rank)} mark=${named(report).get(rank)}
    elsewhere=${(nodes ?? []).find((node) => node.ranks?.includes(rank) && node.run_id !== head?.run_id)} />`;
}

export function closePanel() {
  const { open, selected } = store.view;
  look({ open: null, selected: selected.size === 1 && selected.has(open) ? new Set() : selected });
}

function Panel({ rank, row, mark, elsewhere }) {
  const box = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    box.current.focus({ preventScroll: true });
    return () => {
      if (before?.isConnected && before !== document.body
        && (document.activeElement === document.body || !document.activeElement)) {
        before.focus({ preventScroll: true });
      }
    };
  }, []);
  const state = row?.state ?? "not seen";
  return html`<aside id="panel" aria-label=${say("Rank {n}", { n: rank })} tabindex="-1" ref=${box}>
    <header><h2><span class="swatch s-${clean(state)}" aria-hidden="true">${glyphOf(state)}</span> ${say("Rank {n}", { n: rank })}: ${say(clean(state))}
      </h2>
      <button type="button" onClick=${closePanel}>${say("Close")}</button></header>
    ${mark ? html`<p class="named-by">${say("Named by")} <b>${clean(mark)}</b>${say(".")}</p>` : null}
    ${row ? html`<${Facts} row=${row} />` : html`<p>${say("diag on this node has not seen this rank.")}</p>`}
    ${elsewhere ? html`<${Elsewhere} rank=${rank} node=${elsewhere} />` : html`<${RankStacks} rank=${rank} />
      <${RankFlame} rank=${rank} row=${row} />
      <${RankTime} rank=${rank} />`}
  </aside>`;
}

/** Another node's diag holds what was read of its ranks. */
function Elsewhere({ rank, node }) {
  return html`<p>${say("Its stacks, flame graph and time line are on the page of its node")}${/^https?:/.test(node.url ?? "")
    ? html`: <a href="${node.url}/#rank-${rank}" rel="noopener noreferrer">${clean(node.host)}</a> ${say("(with the run's token)")}`
      : ` ${clean(node.host)}`}${say(". “Dump now” reads the stacks of all nodes.")}</p>`;
}

function Facts({ row }) {
  const gpu = row.gpu;
  const called = row.own ?? row.caller;
  const limits = row.limits ?? {};
  const limit = (name, kind = String) => (limits[name] === undefined ? null : limits[name] === "unlimited" ? say("unlimited")
    : kind(limits[name]));
  const facts = [
    ["is in", row.where && html`<code><${Text} text=${row.where.text} of="where it is" /></code>
      ${called ? html`<br /><span class="muted">${say("called from")}</span> <code><${Text} text=${called.text} of="its caller" />
        </code>` : ""}`],
    ["activity", activityWords(row.activity) && activityWords(row.activity) + (row.context ? say(" (in {context})", { context: term(row.context) }) : "")],
    ["there since", row.stack_since && html`<${When} at=${row.stack_since} />`],
    ["no stack", row.no_stack && html`<${Text} text=${said(row.no_stack)} of="the reason" />`],
    ["last progress", row.progress_at && html`<${When} at=${row.progress_at} />`],
    ["ended", row.exit && html`${clean(said(row.exit.text))}${row.exit.at ? `, ${clock(row.exit.at)}` : ""}`],
    ["phase", row.phase && term(row.phase)],
    ["process", html`${say("pid {pid} on {host}", { pid: row.pid ?? "-", host: short(row.host) || "-" })}${row.process_state
      ? say(", state {state} ({means})", { state: row.process_state, means: say(PROCESS_STATES[row.process_state] ?? "?") }) : ""}`],
    ["place", `local rank ${row.local_rank ?? "-"}${row.node_rank === null || row.node_rank === undefined ? ""
      : say(", node {n}", { n: row.node_rank })}`],
    ["CPU", row.cpu_ratio !== null && row.cpu_ratio !== undefined && say("{share} of a core", { share: percent(row.cpu_ratio) })],
    ["memory", row.rss_bytes && `${bytes(row.rss_bytes)} RSS${row.peak_rss_bytes ? say(", peak {size}", { size: bytes(row.peak_rss_bytes) }) : ""}`],
    ["GPU", gpu && html`${gpu.index} (${clean(gpu.name)}): ${say("{share} busy, {used} of {total}", {
      share: percent(gpu.utilization_ratio), used: bytes(gpu.memory_used_bytes), total: bytes(gpu.memory_total_bytes) })}${
      gpu.power_watts ? `, ${Math.round(gpu.power_watts)} W` : ""}${gpu.temperature_celsius
        ? `, ${Math.round(gpu.temperature_celsius)} °C` : ""}`],
    ["holds", [row.threads && plural(row.threads, "thread"), row.open_files
      && plural(row.open_files, "open file") + (limit("open_files") ? say(" of {limit}", { limit: limit("open_files") }) : ""),
      row.children && plural(row.children, "child process")].filter(Boolean).join(", ")],
    ["limits", [limit("memlock_bytes", bytes) && say("locked memory {size}", { size: limit("memlock_bytes", bytes) }), limit("processes")
      && say("processes {n}", { n: limit("processes") })].filter(Boolean).join(", ")],
    ["network", row.rdma && [row.rdma.verbs_library === true ? say("RDMA library loaded") : row.rdma.verbs_library === false
      ? say("no RDMA library") : "",
      row.rdma.open_nodes?.length ? say("open: {names}", { names: clean(row.rdma.open_nodes.join(", ")) })
        : say("no RDMA device open")].filter(Boolean).join(", ")],
  ].filter(([, value]) => value);
  return html`<dl class="facts two">${facts.map(([name, value]) => html`<div key=${name}><dt>${say(name)}</dt><dd>${value}</dd>
    </div>`)}</dl>
    ${row.time_shares ? html`<${Shares} shares=${row.time_shares} />` : null}`;
}

/** What a step's time goes into, by samples of the main thread. */
function Shares({ shares }) {
  const { samples, ...parts } = shares;
  const found = Object.entries(parts).filter(([, share]) => share > 0).sort((one, two) => two[1] - one[1]);
  if (!found.length) return null;
  return html`<div class="shares"><h3>${say("Time of a step")}</h3><p class="muted">${say("{samples} of the main thread", {
      samples: plural(samples, "sample") })}</p>
    <ul>${found.map(([name, share]) => html`<li key=${name}><span>${term(name)}</span>
      <meter min="0" max="1" value=${share} aria-label=${term(name)}>${percent(share)}</meter><span class="num">${percent(share)}
        </span></li>`)}</ul></div>`;
}

function RankStacks({ rank }) {
  const [turn, setTurn] = useState(0);
  const { value, error } = useFetched(`ranks/${rank}/stacks`, turn);
  const children = value?.children ?? [];
  const busy = children.filter((child) => !child.idle);
  const idle = children.filter((child) => child.idle);
  return html`<section aria-label=${say("Stacks of rank {n}", { n: rank })}><h3>${say("Stacks")}</h3>
    <p class="bar"><button type="button" class="small" onClick=${() => setTurn(turn + 1)}>${say("Read again")}</button>
      ${value?.main ? html`<span class="muted">${say("read")} <${When} at=${value.main.at} /> (${term(value.main.how)})</span>` : null}
      ${value?.main ? html`<${Copy} text=${() => stacksText(value)} label=${say("Copy stacks")} />` : null}</p>
    ${error ? html`<p class="failed">${clean(error)}</p>` : null}
    ${value?.reason ? html`<p class="muted">${clean(said(value.reason))}</p>` : null}
    ${value?.main ? html`<${Threads} sample=${value.main} open=${true} />` : null}
    ${busy.map((child) => html`<details class="fold" key=${child.pid}>
      <summary>${say("child pid {pid}", { pid: child.pid })}: ${child.activity ? term(child.activity) : say("no Python")}</summary>
        <${Threads} sample=${child} open=${true} /></details>`)}
    ${idle.length ? html`<details class="fold"><summary>
      ${say("{children} waiting for work", { children: plural(idle.length, "child process") })}</summary>
      ${idle.map((child) => html`<details class="fold" key=${child.pid}><summary>pid ${child.pid}: ${term(child.activity ?? "-")}
        </summary><${Threads} sample=${child} /></details>`)}</details>` : null}
    ${!value && !error ? html`<p class="muted">${say("Reading…")}</p>` : null}</section>`;
}

function Threads({ sample }) {
  const threads = [...sample.threads].sort((one, two) => Number(two.judged) - Number(one.judged));
  return threads.map((thread) => html`<details class="thread" key=${thread.thread_id} open=${thread.judged}>
    <summary>${clean(thread.name) || say("thread {id}", { id: thread.thread_id })}${thread.main ? say(" (main)") : thread.judged ? say(" (trains)") : ""}${thread.owns_gil
      ? say(", holds the GIL") : ""}${thread.active ? say(", active") : ""}</summary>
    <${Frames} frames=${thread.frames.map((frame) => frame.text)} whole=${12} of=${clean(thread.name) || "this thread"} />
      </details>`);
}

function stacksText(value) {
  const lines = [];
  for (const sample of [value.main, ...value.children]) {
    lines.push(`pid ${sample.pid}${sample === value.main ? ` (rank ${value.rank})` : " (child)"}: ${sample.activity ?? "-"}`);
    for (const thread of sample.threads) {
      lines.push(`  thread ${clean(thread.name) || thread.thread_id}${thread.main ? " (main)" : ""}`,
        ...thread.frames.map((frame) => `    ${clean(frame.text)}`));
    }
  }
  return `${lines.join("\n")}\n`;
}

/** Fetched again when the whole time line has grown by a while. */
function RankTime({ rank }) {
  const { timeline } = useStore("timeline");
  const { value, error } = useFetched(`timeline?rank=${rank}`, Math.floor((timeline?.count ?? 0) / 5));
  const age = timeline && value ? seconds(value.count * value.width_seconds) : "";
  return html`<section aria-label=${say("Time line of rank {n}", { n: rank })}><h3>${say("Time line")}</h3>
    ${error ? html`<p class="failed">${clean(error)}</p>` : null}
    ${value ? (value.series.length ? html`<${Charts} timeline=${value} group="rank" small />`
      : html`<p class="muted">${age ? say("Nothing was read of its process or GPU in {time}.", { time: age })
        : say("Nothing was read of its process or GPU.")}</p>`) : null}</section>`;
}
