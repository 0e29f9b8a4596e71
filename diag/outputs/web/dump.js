// Dump now: evidence of every rank, read once more; what came of it as text.

import { useRef, useState } from "./vendor/hooks.js";
import { clean, plural, ranges, seconds, sentenceHere } from "./format.js";
import { jobNow, useStore } from "./store.js";
import { byGravity, titleOf } from "./findings.js";
import { Progress } from "./flame.js";
import { Copy, Text, ask, go, html } from "./ui.js";
import { language, say, said } from "./words.js";

const DEADLINE = 10; // seconds, as `diag dump` has it
const COLUMNS = 100;

/** The button and what it brought, for two places of the page. */
export function useDump() {
  const [state, setState] = useState({ kind: "idle" });
  const busy = useRef(false);
  const { head, connection } = useStore("head", "connection");
  const why = head?.recorded ? say("recorded evidence: there is no live process to read")
    : connection === "lost" || connection === "ended" ? say("diag does not answer") : "";
  const start = async () => {
    if (why || busy.current) return;
    busy.current = true;
    setState({ kind: "busy", began: performance.now() });
    requestAnimationFrame(() => go("dump"));
    try {
      const answer = await ask(`dump?deadline=${DEADLINE}&columns=${COLUMNS}&lang=${language()}`, { method: "POST" });
      setState({ kind: "done", document: await answer.json(), at: jobNow() });
    } catch (error) {
      setState({ kind: "failed", error: error.message });
    }
    busy.current = false;
  };
  return { state, why, start, close: () => setState({ kind: "idle" }) };
}

export function DumpButton({ dump }) {
  const busy = dump.state.kind === "busy";
  return html`<button type="button" id="dump-now" class="primary" aria-disabled=${Boolean(dump.why) || busy}
    aria-describedby=${dump.why ? "dump-why" : undefined}
    title=${dump.why || say("read stacks and state of all ranks now and save them as a bundle")}
      onClick=${dump.start}>${say("Dump now")}</button>
    ${dump.why ? html`<span id="dump-why" class="muted why">${dump.why}</span>` : null}`;
}

export function Dump({ dump }) {
  const { state } = dump;
  if (state.kind === "idle") return null;
  return html`<section id="dump" aria-labelledby="dump-title" tabindex="-1" class="card">
    <header class="bar"><h2 id="dump-title">${say("Dump")}</h2>
      ${state.kind === "busy" ? null : html`<button type="button" class="small" onClick=${dump.close}>${say("Close dump")}</button>`}
        </header>
    ${state.kind === "busy" ? html`<${Progress} began=${state.began} length=${DEADLINE} label=${say("Reading all ranks")} />` : null}
    <div role="status">${state.kind === "failed" ? html`<p class="failed">${say("No dump: ")}${clean(state.error)}</p>` : null}
      ${state.kind === "done" ? html`<${Came} dump=${state.document} />` : null}</div>
  </section>`;
}

function Came({ dump }) {
  const reasons = new Map();
  for (const [rank, said] of Object.entries(dump.missing ?? {})) {
    for (const reason of said) reasons.set(reason, [...(reasons.get(reason) ?? []), Number(rank)]);
  }
  const replay = dump.bundle ? `diag replay ${dump.bundle}` : "";
  const findings = byGravity((dump.report?.findings ?? []).filter((one) => !one.resolved_at));
  const name = String(dump.bundle ?? "").split("/").pop();
  return html`${name ? html`<p class="bar"><a class="button primary" href="bundles/${encodeURIComponent(name)}" download=${name}>
      ${say("Download the bundle")}</a></p>` : null}
    <p><b>${sentenceHere(dump.report, dump.report?.job?.at)}</b>${" "}
    <span class="muted">${say("{ranks} in {time}", { ranks: plural((dump.ranks ?? []).length, "rank"),
      time: seconds(dump.seconds) })}</span></p>
    ${findings.length ? html`<ul>${findings.map((one) => html`<li key=${one.id + one.subject}><b>
      ${say(clean(one.severity))} ${titleOf(one)}</b>: <${Text} text=${said(one.summary)} of="the summary" /></li>`)}</ul>` : null}
    <dl class="facts two">
      ${dump.bundle ? html`<div><dt>${say("bundle")}</dt><dd><code>${clean(dump.bundle)}
        </code> <${Copy} text=${dump.bundle} label=${say("Copy bundle path")} icon /></dd></div>` : null}
      ${replay ? html`<div><dt>${say("look again")}</dt><dd><code>${clean(replay)}
        </code> <${Copy} text=${replay} label=${say("Copy command: {command}", { command: replay })} icon /></dd></div>` : null}
      ${dump.bundle_error ? html`<div><dt>${say("no bundle")}</dt><dd>${clean(dump.bundle_error)}</dd></div>` : null}
      ${dump.next_command ? html`<div><dt>${say("next")}</dt><dd><code>${clean(dump.next_command)}
        </code> <${Copy} text=${dump.next_command} label=${say("Copy command: {command}", { command: dump.next_command })} icon /> <span class="muted">
          ${clean(said(dump.next_reason))}</span></dd></div>` : null}
      ${[...reasons].map(([reason, ranks]) => html`<div key=${reason}><dt>${say("missing")}</dt>
        <dd>rank${ranks.length > 1 && language() === "en" ? "s" : ""} ${ranges(ranks)}: <${Text} text=${said(reason)} of="the reason" /></dd></div>`)}
    </dl>
    ${dump.screen ? html`<p class="bar"><${Copy} text=${dump.screen} label=${say("Copy dump")} /></p>
      <pre class="screen" tabindex="0" role="region" aria-label=${say("Text of the dump")}>${clean(dump.screen)}</pre>` : null}`;
}
