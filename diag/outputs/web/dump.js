// Dump now: evidence of every rank, read once more; what came of it as text.

import { useRef, useState } from "./vendor/hooks.js";
import { clean, plural, ranges, seconds, sentenceHere } from "./format.js";
import { jobNow, useStore } from "./store.js";
import { byGravity, titleOf } from "./findings.js";
import { Progress } from "./flame.js";
import { Copy, Text, ask, go, html } from "./ui.js";

const DEADLINE = 10; // seconds, as `diag dump` has it
const COLUMNS = 100;

/** The button and what it brought, for two places of the page. */
export function useDump() {
  const [state, setState] = useState({ kind: "idle" });
  const busy = useRef(false);
  const { head, connection } = useStore("head", "connection");
  const why = head?.recorded ? "recorded evidence: there is no live process to read"
    : connection === "lost" || connection === "ended" ? "diag does not answer" : "";
  const start = async () => {
    if (why || busy.current) return;
    busy.current = true;
    setState({ kind: "busy", began: performance.now() });
    requestAnimationFrame(() => go("dump"));
    try {
      const answer = await ask(`dump?deadline=${DEADLINE}&columns=${COLUMNS}`, { method: "POST" });
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
    title=${dump.why || "read stacks and state of all ranks now and save them as a bundle"}
      onClick=${dump.start}>Dump now</button>
    ${dump.why ? html`<span id="dump-why" class="muted why">${dump.why}</span>` : null}`;
}

export function Dump({ dump }) {
  const { state } = dump;
  if (state.kind === "idle") return null;
  return html`<section id="dump" aria-labelledby="dump-title" tabindex="-1" class="card">
    <header class="bar"><h2 id="dump-title">Dump</h2>
      ${state.kind === "busy" ? null : html`<button type="button" class="small" onClick=${dump.close}>Close dump</button>`}
        </header>
    ${state.kind === "busy" ? html`<${Progress} began=${state.began} length=${DEADLINE} label="Reading all ranks" />` : null}
    <div role="status">${state.kind === "failed" ? html`<p class="failed">No dump: ${clean(state.error)}</p>` : null}
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
  return html`<p><b>${sentenceHere(dump.report, dump.report?.job?.at)}</b>${" "}
    <span class="muted">${plural((dump.ranks ?? []).length, "rank")} in ${seconds(dump.seconds)}</span></p>
    ${findings.length ? html`<ul>${findings.map((one) => html`<li key=${one.id + one.subject}><b>
      ${clean(one.severity)} ${titleOf(one)}</b>: <${Text} text=${one.summary} of="the summary" /></li>`)}</ul>` : null}
    <dl class="facts two">
      ${dump.bundle ? html`<div><dt>bundle</dt><dd><code>${clean(dump.bundle)}
        </code> <${Copy} text=${dump.bundle} label="Copy bundle path" icon /></dd></div>` : null}
      ${replay ? html`<div><dt>look again</dt><dd><code>${clean(replay)}
        </code> <${Copy} text=${replay} label="Copy command: ${replay}" icon /></dd></div>` : null}
      ${dump.bundle_error ? html`<div><dt>no bundle</dt><dd>${clean(dump.bundle_error)}</dd></div>` : null}
      ${dump.next_command ? html`<div><dt>next</dt><dd><code>${clean(dump.next_command)}
        </code> <${Copy} text=${dump.next_command} label="Copy command: ${dump.next_command}" icon /> <span class="muted">
          ${clean(dump.next_reason)}</span></dd></div>` : null}
      ${[...reasons].map(([reason, ranks]) => html`<div key=${reason}><dt>missing</dt>
        <dd>rank${ranks.length > 1 ? "s" : ""} ${ranges(ranks)}: <${Text} text=${reason} of="the reason" /></dd></div>`)}
    </dl>
    ${dump.screen ? html`<p class="bar"><${Copy} text=${dump.screen} label="Copy dump" /></p>
      <pre class="screen" tabindex="0" role="region" aria-label="Text of the dump">${clean(dump.screen)}</pre>` : null}`;
}
