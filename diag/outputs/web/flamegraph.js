// A flame graph of collapsed stacks, drawn here: a click enlarges a frame, a search marks those that match and says how much of the
// whole they are. Of many ranks, frames of those that a finding names are red, of those that wait grey.

import { useEffect, useMemo, useReducer, useRef, useState } from "./vendor/hooks.js";
import { clean, percent, rankWords, short } from "./format.js";
import { seenOf, shareOf, treeOfLines } from "./flametree.js";
import { ask, html } from "./ui.js";
import { say } from "./words.js";

const ROW = 20; // pixels

export function FlameGraph({ path, name, culprits = new Set(), victims = new Set() }) {
  const [got, setGot] = useState({ text: null, error: "" });
  const [top, setTop] = useState(null);
  const [search, setSearch] = useState("");
  const [, again] = useReducer((count) => count + 1, 0);
  const frame = useRef(null);
  useEffect(() => {
    const stop = new AbortController();
    ask(path, { signal: stop.signal }).then((answer) => answer.text()).then((text) => setGot({ text, error: "" }))
      .catch((error) => error.name !== "AbortError" && setGot({ text: null, error: error.message }));
    return () => stop.abort();
  }, [path]);
  useEffect(() => {
    const watch = new ResizeObserver(again);
    watch.observe(frame.current);
    return () => watch.disconnect();
  }, []);
  const root = useMemo(() => (got.text === null ? null : treeOfLines(got.text)), [got.text]);
  const shown = top ?? root;
  const wanted = search.trim().toLowerCase();
  const matches = (box) => wanted && box.label.toLowerCase().includes(wanted);
  const boxes = shown ? seenOf(shown, frame.current?.clientWidth || 800) : [];
  const depth = boxes.reduce((most, one) => Math.max(most, one.box.depth), 0);
  const share = wanted && root ? shareOf(root, matches) : 0;
  const kind = (box) => (box.ranks.some((rank) => culprits.has(rank)) ? (box.ranks.every((rank) => culprits.has(rank)) ? "culprit" : "mixed")
    : box.ranks.length && box.ranks.every((rank) => victims.has(rank)) ? "victim" : "");
  return html`<div class="bar"><input type="search" aria-label=${say("Search frames")} placeholder=${say("function, file")} value=${search}
      spellcheck=${false} onInput=${(event) => setSearch(event.target.value)} />
    <span role="status" class="muted">${wanted && root ? say("{share} of all matches", { share: percent(share) }) : ""}</span>
    <button type="button" class="small" aria-disabled=${!top || top === root} onClick=${() => setTop(root)}>${say("Reset zoom")}</button></div>
    ${got.error ? html`<p role="alert" class="failed">${say("No flame graph: ")}${clean(got.error)}</p>` : null}
    ${root && !root.weight ? html`<p class="muted">${say("No stack of a rank was read yet.")}</p>` : null}
    <div class="flames" role="group" aria-label=${say("Flame graph {name}", { name })} ref=${frame} style=${{ height: `${(depth + 1) * ROW}px` }}>
      ${root?.weight ? boxes.map(({ box, x, width }) => html`<button type="button" key=${keyOf(box)} tabindex=${width < 24 ? -1 : 0}
        class="flame ${kind(box)}${matches(box) ? " hit" : ""}${box.depth < shown.depth ? " above" : ""}"
        style=${{ left: `${x}px`, width: `${Math.max(1, width - 1)}px`, top: `${box.depth * ROW}px` }}
        title="${short(box.label || box.name, 400)}, ${percent(box.weight / root.weight)}" onClick=${() => setTop(box)}>${width < 24 ? "" : clean(box.name)}${
        width > 24 && box.ranks.length && box.ranks.length !== box.parent?.ranks.length ? html` <small>${short(rankWords(box.ranks), 60)}</small>` : ""}</button>`) : null}
    </div>`;
}

const keyOf = (box) => {
  const names = [];
  for (let one = box; one; one = one.parent) names.push(one.label);
  return names.join(";");
};
