// Very many ranks as one picture: nodes beside each other, the ranks of each below each other, all on one screen. What a person is
// pointed to (named, selected, focused) is an element as well, so that keyboard and screen reader find it.

import { useEffect, useLayoutEffect, useMemo, useReducer, useRef } from "./vendor/hooks.js";
import { clean, short } from "./format.js";
import { cornerOf, layoutOf, placeAt, rankFrom } from "./heatlayout.js";
import { LEVELS, levelOf, valueOf } from "./metrics.js";
import { glyphOf, openRank } from "./ranks.js";
import { on, look, store } from "./store.js";
import { html } from "./ui.js";
import { say, said } from "./words.js";

const SHARE = 0.45; // of the window's height
const GLYPHED = 12; // pixels from which on a cell shows its sign
const MOST_ELEMENTS = 64;

function coloursNow() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  const states = {};
  for (const state of ["hung", "dead", "delaying", "stalled", "checkpointing", "starting", "running", "finished"]) {
    states[state] = [read(`--s-${state}`), read(`--s-${state}-ink`)];
  }
  states.stalled = [read("--s-victim"), read("--s-stalled-ink")]; // the many that wait do not outshine whom they wait for
  return { states, levels: Array.from({ length: LEVELS }, (_, at) => read(`--h${at}`)), none: read("--sunk"), ink: read("--ink"),
    muted: read("--muted"), line: read("--line"), critical: read("--critical"), accent: read("--accent"), focus: read("--focus") };
}

export function HeatMap({ nodes, marked, shown, selected, open, metric, scale, odd }) {
  const frame = useRef(null);
  const canvas = useRef(null);
  const told = useRef(null);
  const focus = useRef(null);
  const wanted = useRef(false); // the focus is to go to the cell that is drawn next
  const [, again] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    const watch = new ResizeObserver(again);
    watch.observe(frame.current);
    const off = on("theme", again);
    return () => { watch.disconnect(); off(); };
  }, []);
  const rows = nodes.flatMap((node) => node.rows);
  if (!store.ranks.has(focus.current)) focus.current = [...marked.keys()].find((rank) => store.ranks.has(rank)) ?? rows[0].rank;
  const [width, tallest] = [frame.current?.clientWidth || 900, SHARE * innerHeight];
  const layout = useMemo(() => layoutOf(nodes, width, tallest), [nodes, width, tallest]);
  const rankAt = useMemo(() => new Map([...layout.place].map(([rank, [column, row]]) => [column * layout.tall + row, rank])), [layout]);
  const oddRanks = new Set(odd.flatMap((one) => one.ranks));

  useLayoutEffect(() => {
    draw(canvas.current, { layout, rows, marked, shown, metric, scale, odd: oddRanks });
    if (wanted.current) frame.current.querySelector(`[data-rank="${focus.current}"]`)?.focus();
    wanted.current = false;
  });

  const under = (event) => {
    const own = event.target.closest?.("[data-rank]");
    if (own) return Number(own.dataset.rank);
    const box = canvas.current.getBoundingClientRect();
    const place = placeAt(layout, event.clientX - box.left, event.clientY - box.top);
    return place ? rankAt.get(place[0] * layout.tall + place[1]) ?? null : null;
  };
  const onClick = (event) => {
    const rank = under(event);
    if (rank === null) return;
    focus.current = rank;
    if (event.shiftKey && selected.size) {
      const [from, to] = [Math.min(rank, ...selected), Math.max(rank, ...selected)];
      look({ selected: new Set(rows.map((row) => row.rank).filter((one) => one >= from && one <= to)) });
    } else if (event.ctrlKey || event.metaKey || event.shiftKey) {
      const some = new Set(selected);
      if (!some.delete(rank)) some.add(rank);
      look({ selected: some });
    } else openRank(rank);
  };
  const onMove = (event) => {
    const rank = under(event);
    told.current.textContent = rank === null ? "" : wordsOf(store.ranks.get(rank), metric);
  };
  const onKeyDown = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") openRank(focus.current);
    else {
      const next = rankFrom(layout, rankAt, focus.current, event.key);
      if (next === null) return;
      focus.current = next;
      wanted.current = true;
      again();
    }
    event.preventDefault();
  };
  const elements = [...new Set([focus.current, ...marked.keys(), ...selected, ...(open === null ? [] : [open])])]
    .filter((rank) => layout.place.has(rank)).slice(0, MOST_ELEMENTS).sort((one, two) => one - two);
  return html`<div class="heat" ref=${frame}>
    <div role="grid" aria-label=${say("Ranks by node")} aria-multiselectable="true" aria-colcount=${layout.columns.length} aria-rowcount=${layout.tall}
      class="heat-grid" style=${{ height: `${layout.height}px` }} onClick=${onClick} onMouseMove=${onMove} onMouseLeave=${() => { told.current.textContent = ""; }}
      onKeyDown=${onKeyDown}>
      <canvas ref=${canvas} aria-hidden="true"></canvas>
      ${elements.map((rank) => cellOf(store.ranks.get(rank), { layout, mark: marked.get(rank), selected: selected.has(rank), focus: focus.current === rank,
        open: open === rank, dim: shown && !shown.has(rank) }))}
    </div>
    <p class="muted under" ref=${told} aria-hidden="true"></p></div>`;
}

function cellOf(row, { layout, mark, selected, focus, open, dim }) {
  const place = layout.place.get(row.rank);
  const [x, y] = cornerOf(layout, place);
  return html`<div role="row" aria-rowindex=${place[1] + 1} key=${row.rank}><span role="gridcell" data-rank=${row.rank} tabindex=${focus ? 0 : -1}
    aria-colindex=${place[0] + 1} class="heat-cell${mark && !dim ? " named" : ""}${open ? " opened" : ""}" aria-selected=${selected}
    aria-label="rank ${row.rank}, ${say(clean(row.state))}" aria-description=${mark ? say("named by {id}", { id: clean(mark) }) : undefined}
    title=${wordsOf(row, null)} style=${{ left: `${x}px`, top: `${y}px`, width: `${layout.cell}px`, height: `${layout.cell}px` }}></span></div>`;
}

function wordsOf(row, metric) {
  const where = said(row.exit?.text) ?? row.where?.text ?? said(row.no_stack) ?? "";
  const value = metric ? valueOf(metric, row, store.now?.at ?? 0) : null;
  return `rank ${row.rank}, ${short(row.host)}, ${say(clean(row.state))}${value === null ? "" : `, ${metric.name} ${metric.text(value)}`}${
    where ? `: ${clean(where).slice(0, 160)}` : ""}`;
}

function draw(canvas, { layout, rows, marked, shown, metric, scale, odd }) {
  const ratio = devicePixelRatio || 1;
  const colours = coloursNow();
  const { cell } = layout;
  [canvas.width, canvas.height] = [Math.round(layout.width * ratio), Math.round(layout.height * ratio)];
  canvas.style.width = `${layout.width}px`;
  canvas.style.height = `${layout.height}px`;
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  numbers(ctx, layout, colours);
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.font = `${Math.round(0.62 * cell)}px system-ui, sans-serif`;
  const now = store.now?.at ?? 0;
  for (const row of rows) {
    const [x, y] = cornerOf(layout, layout.place.get(row.rank));
    const dim = shown && !shown.has(row.rank);
    const level = metric ? levelOf(valueOf(metric, row, now), scale) : null;
    const [paper, ink] = metric ? [level === null ? colours.none : colours.levels[level], colours.ink]
      : colours.states[row.state] ?? [colours.none, colours.ink];
    ctx.globalAlpha = dim ? 0.15 : 1;
    ctx.fillStyle = paper;
    ctx.fillRect(x, y, cell, cell);
    if (cell >= GLYPHED && !metric && row.state !== "stalled" && row.state !== "running") {
      ctx.fillStyle = ink;
      ctx.fillText(glyphOf(row.state), x + cell / 2, y + cell / 2 + 1);
    }
    if (dim || (!marked.has(row.rank) && !odd.has(row.rank))) continue;
    ctx.strokeStyle = marked.has(row.rank) ? colours.critical : colours.accent;
    ctx.lineWidth = cell >= 6 ? 2 : 1;
    ctx.strokeRect(x - 0.5, y - 0.5, cell + 1, cell + 1);
  }
  ctx.globalAlpha = 1;
}

/** The number of a node over its column, where there is room for it. */
function numbers(ctx, layout, colours) {
  ctx.font = "10px system-ui, sans-serif";
  ctx.fillStyle = colours.muted;
  ctx.textBaseline = "alphabetic";
  let free = -Infinity;
  layout.columns.forEach(({ node, from }, column) => {
    const [x, y] = cornerOf(layout, [column, 0]);
    if (column % layout.perBand === 0) free = -Infinity;
    if (from || x < free) return;
    const name = node.node === null || node.node === undefined ? short(node.host, 24) : String(node.node);
    const wide = ctx.measureText(name).width;
    if (x + wide > layout.width) return;
    ctx.fillText(name, x, y - 4);
    free = x + Math.max(wide + 12, 36);
  });
}
