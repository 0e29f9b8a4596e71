// Flame graphs: drawn by diag, shown in a frame that can reach nothing of this page.

import { useEffect, useRef, useState } from "./vendor/hooks.js";
import { FlameGraph } from "./flamegraph.js";
import { seconds } from "./format.js";
import { saved } from "./saved.js";
import { useStore } from "./store.js";
import { ask, html } from "./ui.js";
import { say } from "./words.js";

const DEFAULT_SECONDS = 10;
const LONGEST_SECONDS = 300;

/** A drawing that is there, and the ways to take it along. `path` may have a query. What was recorded `anew` is py-spy's own drawing. */
export function Drawing({ path, shown = path, name, anew = false }) {
  const { report } = useStore("report");
  const open = (report?.findings ?? []).filter((one) => one.severity !== "info");
  const culprits = new Set(open.flatMap((one) => one.ranks ?? []));
  const victims = new Set(open.flatMap((one) => one.waiting_ranks ?? []).filter((rank) => !culprits.has(rank)));
  const form = (kind) => `${path}${path.includes("?") ? "&" : "?"}format=${kind}`;
  const file = `flame ${name}`.replaceAll(" ", "-");
  return html`<p class="bar"><a href=${shown} target="_blank" rel="noopener">${say("Open alone")}</a>
      <a href=${form("speedscope")} download="${file}.speedscope.json">speedscope</a>
      <a href=${form("collapsed")} download="${file}.txt">${say("collapsed stacks")}</a>
        ${anew ? html`<span class="muted">${say("(recorded anew)")}</span>` : null}</p>
    ${anew ? html`<iframe class="drawing" title=${say("Flame graph {name}", { name: say(name) })} sandbox="allow-scripts" src=${shown}></iframe>`
      : html`<${FlameGraph} path=${form("collapsed")} name=${say(name)} culprits=${culprits} victims=${victims} />`}`;
}

/** Recorded when asked for: of a living rank by py-spy, of recorded evidence from what it holds. */
export function RankFlame({ rank, row }) {
  const { head } = useStore("head");
  const [length, setLength] = useState(DEFAULT_SECONDS);
  const [state, setState] = useState({ kind: "idle" });
  const stop = useRef(null);
  useEffect(() => () => stop.current?.abort(), []);
  if (saved) return null;
  const recorded = Boolean(head?.recorded);
  const ended = Boolean(row?.exit) && !recorded;
  const path = `ranks/${rank}/flame?seconds=${length}`;
  const record = async () => {
    stop.current?.abort();
    stop.current = new AbortController();
    setState({ kind: "busy", began: performance.now(), length });
    try {
      const answer = await ask(`${path}&format=svg`, { method: "POST", signal: stop.current.signal });
      const kept = (answer.headers.get("Content-Location") ?? "").split("/").pop();
      await answer.body?.cancel();
      setState({ kind: "done", path, shown: kept ? `drawings/${kept}` : `${path}&format=svg` });
    } catch (error) {
      if (error.name !== "AbortError") setState({ kind: "failed", error: error.message });
    }
  };
  const busy = state.kind === "busy";
  return html`<section aria-label=${say("Flame graph of rank {n}", { n: rank })}><h3>${say("Flame graph")}</h3>
    <form class="bar" onSubmit=${(event) => { event.preventDefault(); if (!busy && !ended) record(); }}>
      ${recorded ? null : html`<label>${say("Seconds")} <input type="number" aria-label=${say("Seconds")} min="1" max=${LONGEST_SECONDS}
        value=${length} required
        onInput=${(event) => setLength(Number(event.target.value) || DEFAULT_SECONDS)} /></label>`}
      <button type="submit" aria-disabled=${busy || ended} aria-describedby="flame-why">${say(recorded ? "Draw" : "Record")}</button>
      <span id="flame-why" class="muted">${say(ended ? "the rank has ended" : recorded ? "from the recorded stacks"
        : "all threads; the rank goes on")}</span>
    </form>
    ${busy ? html`<${Progress} began=${state.began} length=${recorded ? 2 : state.length} label=${say("Recording rank {n}", { n: rank })} />`
      : null}
    ${state.kind === "failed" ? html`<p role="alert" class="failed">${say("No flame graph: ")}${state.error}</p>` : null}
    ${state.kind === "done" ? html`<${Drawing} key=${state.shown} path=${state.path} shown=${state.shown} name="of rank ${rank}"
      anew=${!recorded} />` : null}
  </section>`;
}

/** Time gone by against the time it may take. */
export function Progress({ began, length, label }) {
  const [gone, setGone] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setGone((performance.now() - began) / 1000), 250);
    return () => clearInterval(timer);
  }, [began]);
  const words = say("{gone} of {length}", { gone: seconds(Math.floor(gone)), length: seconds(length) });
  return html`<p class="bar"><progress max=${length} value=${Math.min(gone, length)} aria-label=${label} aria-valuetext=${words}>
    </progress>
    <span class="muted">${label}: ${words}</span></p>`;
}


