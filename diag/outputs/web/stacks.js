// Where all processes stand: ranks as a tree, their children below, one flame graph of all.

import { useState } from "./vendor/hooks.js";
import { activityWords, clean, plural, rankWords, seconds } from "./format.js";
import { hasEnded } from "./runsummary.js";
import { saved } from "./saved.js";
import { useStore } from "./store.js";
import { apart, standing, treeOf, waits } from "./tree.js";
import { Copy, Dialog, Text, choose, html } from "./ui.js";
import { Drawing } from "./flame.js";
import { named } from "./ranks.js";
import { say, said } from "./words.js";

const SHOWN = 3; // innermost frames of a run; the outer ones are launcher and trainer
const MOST = 24; // branches of a fork, or classes of a kind, before a person asks for all

export function Stacks() {
  const { stacks, report, ranks, nodes } = useStore("stacks", "report", "nodes");
  const [flame, setFlame] = useState(false);
  if (!stacks) return html`<p class="muted">${say("No stacks were received yet.")}</p>`;
  const marked = named(report);
  const of = (kind) => stacks.filter((one) => one.kind === kind).sort((one, two) => apart([one], [two]));
  const read = of("rank");
  const kinds = [["child", say("Children at work")], ["missing", say("Without a stack")],
    ["idle", say("Children that wait for work")]];
  const gone = of("missing");
  if (hasEnded(report) && gone.length === stacks.length) {
    return html`<p class="muted">${say("The job has ended: no process is left to look at.")}</p>
      <ul>${gone.map((one) => html`<li key=${one.reason}><${Who} ranks=${one.ranks} hit=${one.ranks.some((rank) => marked.has(rank))} />${" "}
        <${Text} text=${said(one.reason)} of="the reason" /></li>`)}</ul>`;
  }
  return html`
    <div class="bar"><p class="muted">${say("Where the main threads are, outermost frame first; outliers come first.")}${
      nodes?.length > 1 ? say(" Of this node; “Dump now” reads all nodes.") : ""}</p>
      ${saved ? null : html`<button type="button" onClick=${() => setFlame(true)} disabled=${!read.length}>${say("Flame graph of all ranks")}
        </button>`}</div>
    ${read.length ? html`<ul class="tree">${treeOf(read).map((one) => html`<${Branch} key=${one.key} branch=${one}
      marked=${marked} all=${ranks.size} />`)}</ul>`
      : html`<p>${say(stacks.length ? "No stack of a rank was read:" : "No stack of a rank was read yet.")}</p>`}
    ${kinds.map(([kind, title]) => of(kind).length
      ? html`<${Others} key=${kind} title=${title} classes=${of(kind)} marked=${marked} />` : null)}
    ${flame ? html`<${Dialog} title=${say("Flame graph of all ranks")} wide onClose=${() => setFlame(false)}>
      <${Drawing} path="flame" name="of all ranks" /></${Dialog}>` : null}`;
}

function Branch({ branch, marked, all }) {
  const [closed, setClosed] = useState(false);
  const [most, setMost] = useState(MOST);
  const leaf = branch.leaf;
  const hit = leaf && branch.ranks.some((rank) => marked.has(rank));
  const stands = leaf ? standing(leaf, { seconds, rankWords }) : "";
  const parts = branch.parts.slice(0, most);
  return html`<li class="branch ${leaf ? "leaf" : ""} ${hit ? "marked" : ""}">
    <div class="who">
      ${leaf ? null : html`<button type="button" class="twist" aria-expanded=${!closed}
        aria-label="${say(closed ? "Expand" : "Collapse")} ${who(branch.ranks)}"
        onClick=${() => setClosed(!closed)}>${closed ? "▸" : "▾"}</button>`}
      <${Who} ranks=${branch.ranks} hit=${hit} />
      ${leaf ? null : html`<span class="muted">${branch.ranks.length === all ? say("all share") : say("{n} share", { n: branch.count })}</span>`}
      ${leaf ? html`<span class="activity ${waits(leaf) ? "waits" : ""}">${activityWords(leaf.activity)}</span>` : null}
      ${stands ? html`<span class="muted">${stands}</span>` : null}
      ${leaf?.reason ? html`<span class="muted">[<${Text} text=${said(leaf.reason)} of="the reason" />]</span>` : null}
      ${leaf ? html`<${Copy} text=${() => `${clean(leaf.title)}\n${leaf.frames.map((frame) => `  ${clean(frame)}\n`).join("")}`}
        label=${say("Copy stack of {ranks}", { ranks: who(branch.ranks) })} icon />` : null}
    </div>
    ${closed ? null : html`<${Frames} frames=${branch.frames} whole=${leaf ? 2 * SHOWN : SHOWN} of=${who(branch.ranks)} />`}
    ${!closed && leaf?.waits ? html`<p class="muted">${say("kernel: ")}<${Text} text=${leaf.waits} of="what the kernel says" /></p>` : null}
    ${!closed && parts.length ? html`<ul>${parts.map((one) => html`<${Branch} key=${one.key} branch=${one} marked=${marked}
      all=${all} />`)}</ul>` : null}
    ${!closed && branch.parts.length > most ? html`<button type="button" class="small" onClick=${() => setMost(Infinity)}>
      ${say("{n} more places", { n: branch.parts.length - most })}</button>` : null}
  </li>`;
}

const who = (ranks) => (rankWords(ranks).length > 60 ? `${rankWords(ranks).slice(0, 60)}… (${ranks.length})` : rankWords(ranks));

function Who({ ranks, hit }) {
  return html`<button type="button" class="chip ${hit ? "culprit" : ""}" onClick=${() => choose(ranks)}>${who(ranks)}</button>`;
}

/** The innermost frames of a run; the outer ones when asked for. */
export function Frames({ frames, whole, of }) {
  const [all, setAll] = useState(false);
  const hidden = all ? 0 : Math.max(0, frames.length - whole);
  const label = all ? say("hide outer frames") : `… ${plural(hidden, "outer frame")}`;
  return html`<ol class="frames">
    ${frames.length > whole ? html`<li class="more">
      <button type="button" class="link" aria-expanded=${all} aria-label=${say("{label} of {of}", { label, of: say(of) })}
      onClick=${() => setAll(!all)}>${label}</button></li>` : null}
    ${frames.slice(hidden).map((frame, index) => html`<li key=${hidden + index}><${Frame} frame=${frame} /></li>`)}</ol>`;
}

/** "function (file:line)", its place in a lighter voice. */
export function Frame({ frame }) {
  const text = clean(frame);
  const place = / \(([^()]*:-?\d+)\)$/.exec(text);
  if (!place || text.length > 500) return html`<code><${Text} text=${text} of="this frame" /></code>`;
  return html`<code>${text.slice(0, place.index)} <span class="place">(${place[1]})</span></code>`;
}

function Others({ title, classes, marked }) {
  const [most, setMost] = useState(MOST);
  return html`<details class="fold" open=${classes[0].kind !== "idle"}><summary>
    ${title} (${classes.length})</summary><ul class="tree">
    ${classes.slice(0, most).map((one) => {
      const hit = one.kind !== "idle" && one.ranks.some((rank) => marked.has(rank));
      return html`<li key=${`${one.role}/${one.path.join("/")}/${one.reason}`} class="branch leaf ${hit ? "marked" : ""}">
        <div class="who"><${Who} ranks=${one.ranks} hit=${hit} />
          ${one.kind === "missing" ? html`<span><${Text} text=${said(one.reason)} of="the reason" /></span>`
            : html`<span>${plural(one.count, clean(one.role) || "child process")}${one.kind === "idle" ? "" : `, pid ${one.pids.slice(0, 8).join(", ")}${one.pids.length > 8 ? ", …"
                : ""}`}</span>
              <span class="activity">${one.kind === "idle" ? say("waiting for work") : activityWords(one.activity)}</span>`}</div>
        ${one.frames.length ? html`<${Frames} frames=${one.frames} whole=${2 * SHOWN} of=${say("child of {ranks}", { ranks: who(one.ranks) })} />`
          : null}</li>`;
    })}</ul>
    ${classes.length > most ? html`<button type="button" class="small" onClick=${() => setMost(Infinity)}>
      ${say("{n} more", { n: classes.length - most })}</button>` : null}
  </details>`;
}
