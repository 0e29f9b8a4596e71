// All ranks as cells by node: one element a rank, drawn again only where a node's ranks changed. Arrow keys walk, Enter opens.

import { useEffect, useRef } from "./vendor/hooks.js";
import { activityWords, clean, percent, short } from "./format.js";
import { levelOf, valueOf } from "./metrics.js";
import { glyphOf, openRank } from "./ranks.js";
import { look, store } from "./store.js";
import { html } from "./ui.js";
import { say, said } from "./words.js";

export const LARGE = 128; // ranks: from here on they are one picture (heatmap.js)
export const FEW = 16; // up to here each cell says what its rank does

/** @returns {{key: string, host: string, node: number | null, rows: any[]}[]} */
export function nodesOf(rows, fallback) {
  const nodes = new Map();
  for (const row of rows) {
    const host = row.host || fallback || "";
    const key = `${row.node_rank ?? ""}/${host}`;
    if (!nodes.has(key)) nodes.set(key, { key, host, node: row.node_rank, rows: [] });
    nodes.get(key).rows.push(row);
  }
  return [...nodes.values()];
}

export function Grid({ rows, nodes, marked, shown, selected, open, metric, scale }) {
  const cache = useRef(new Map());
  const box = useRef(null);
  const focus = useRef(null);
  const size = rows.length > FEW ? "small" : "cards";
  const now = store.now?.at ?? 0;
  if (!store.ranks.has(focus.current)) focus.current = [...marked.keys()].find((rank) => store.ranks.has(rank)) ?? rows[0].rank;
  const kept = cache.current;
  const drawn = nodes.map((node) => {
    const face = node.rows.map((row) => `${row.rank}${row.state}${marked.get(row.rank) ?? ""}${shown && !shown.has(row.rank) ? "-"
      : ""}${
      selected.has(row.rank) ? "+" : ""}${size === "cards" ? saidOf(row).join() : ""}${open === row.rank ? "!"
        : ""}${focus.current === row.rank ? "@" : ""}${metric ? metricOf(row, metric, scale, now).join() : ""}`).join() + size;
    if (kept.get(node.key)?.face !== face) {
      kept.set(node.key, { face, drawn: nodeOf(node, { marked, shown, selected, open, focus: focus.current, size, metric, scale, now }) });
    }
    return kept.get(node.key).drawn;
  });

  // The selected ones, and before that those with a finding, come into sight inside the grid, which scrolls where it is long.
  const first = selected.size ? Math.min(...selected) : marked.size ? Math.min(...marked.keys()) : null;
  useEffect(() => {
    const cell = first === null ? null : box.current?.querySelector(`[data-rank="${first}"]`);
    const frame = box.current;
    if (!cell || frame.scrollHeight <= frame.clientHeight) return;
    const [inner, outer] = [cell.getBoundingClientRect(), frame.getBoundingClientRect()];
    if (inner.top < outer.top || inner.bottom > outer.bottom) frame.scrollTop += inner.top - outer.top - outer.height / 3;
  }, [first, selected.size]);

  const onClick = (event) => {
    const cell = event.target.closest("[data-rank]");
    if (!cell) return;
    const rank = Number(cell.dataset.rank);
    walk(box.current, focus, cell);
    if (event.ctrlKey || event.metaKey || event.shiftKey) {
      const some = new Set(selected);
      if (event.shiftKey && selected.size) for (let each = Math.min(rank, ...selected); each <= Math.max(rank, ...selected);
        each += 1) some.add(each);
      else if (!some.delete(rank)) some.add(rank);
      look({ selected: some });
    } else {
      openRank(rank);
    }
  };
  const onKeyDown = (event) => {
    const cell = event.target.closest("[data-rank]");
    if (!cell || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") openRank(Number(cell.dataset.rank));
    else if (!step(event.key, cell)) return;
    event.preventDefault();
  };
  const step = (key, cell) => {
    const cells = [...box.current.querySelectorAll("[data-rank]")];
    const at = cells.indexOf(cell);
    const target = { ArrowRight: cells[at + 1], ArrowLeft: cells[at - 1], Home: cells[0], End: cells[cells.length - 1] }[key]
      ?? (key === "ArrowDown" ? beside(cells, at, 1) : key === "ArrowUp" ? beside(cells, at, -1) : null);
    if (target) {
      walk(box.current, focus, target);
      target.focus();
    }
    return Boolean(target);
  };
  return html`<div role="grid" aria-label=${say("Ranks by node")} aria-multiselectable="true" class="grid ${size}" ref=${box}
    onClick=${onClick} onKeyDown=${onKeyDown}>${drawn}</div>`;
}

/** The tab stop goes along with what was used last. */
function walk(box, focus, cell) {
  box.querySelector('[data-rank][tabindex="0"]')?.setAttribute("tabindex", "-1");
  cell.setAttribute("tabindex", "0");
  focus.current = Number(cell.dataset.rank);
}

/** The cell of the next line that is nearest. */
function beside(cells, at, way) {
  const from = cells[at].getBoundingClientRect();
  let line = null;
  let best = null;
  let least = Infinity;
  for (let index = at + way; index >= 0 && index < cells.length; index += way) {
    const here = cells[index].getBoundingClientRect();
    if (line === null && (here.top - from.top) * way < from.height / 2) continue;
    line ??= here.top;
    if (Math.abs(here.top - line) > from.height / 2) break;
    if (Math.abs(here.left - from.left) < least) [best, least] = [cells[index], Math.abs(here.left - from.left)];
  }
  return best;
}

/** What a rank does, in two short lines. */
export function saidOf(row) {
  const does = row.exit ? clean(said(row.exit.text)) : [activityWords(row.activity), row.where?.function
    ? say("in {function}", { function: clean(row.where.function) }) : ""].filter(Boolean).join(" ");
  const uses = [row.gpu && `GPU ${percent(row.gpu.utilization_ratio)}`, row.cpu_ratio !== null && row.cpu_ratio !== undefined
    && `CPU ${percent(row.cpu_ratio)}`].filter(Boolean).join(", ");
  return [does, row.exit ? "" : uses].filter(Boolean);
}

/** Level and text of a rank's number. */
function metricOf(row, metric, scale, now) {
  const value = valueOf(metric, row, now);
  return [levelOf(value, scale), value === null ? "-" : metric.text(value)];
}

function nodeOf(node, { marked, shown, selected, open, focus, size, metric, scale, now }) {
  const name = short(node.host) || say("unknown host");
  const title = node.node === null || node.node === undefined ? name : say("node {n}, {name}", { n: node.node, name });
  return html`<div role="row" class="node" key=${node.key}>
    <span role="rowheader" class="host" title=${title}>${size === "small" || size === "cards" ? title : name}</span>
    ${node.rows.map((row) => {
      const mark = marked.get(row.rank);
      const [level, told] = metric ? metricOf(row, metric, scale, now) : [null, ""];
      const where = said(row.exit?.text) ?? row.where?.text ?? said(row.no_stack) ?? "";
      return html`<span role="gridcell" key=${row.rank} data-rank=${row.rank} tabindex=${focus === row.rank ? 0 : -1}
        class="cell ${metric ? (level === null ? "h-none" : `h${level}`) : `s-${clean(row.state)}`}${mark ? " named" : ""}${shown && !shown.has(row.rank) ? " dim" : ""}${open === row.rank
          ? " opened" : ""}"
        aria-selected=${selected.has(row.rank)} aria-label="rank ${row.rank}, ${say(clean(row.state))}"
        aria-description=${mark ? say("named by {id}", { id: clean(mark) }) : undefined}
        title="rank ${row.rank}, ${say(clean(row.state))}${mark ? `, ${say("named by {id}", { id: clean(mark) })}` : ""}${where
          ? `: ${clean(where).slice(0, 160)}` : ""}"
        >${size === "cards" ? html`<b><i aria-hidden="true">${glyphOf(row.state)}</i>rank ${row.rank}, ${say(clean(row.state))}</b>
          ${(metric ? [`${metric.name}: ${told}`] : saidOf(row)).map((line) => html`<small data-said=${line}></small>`)}`
          : html`<b>${row.rank}</b><i aria-hidden="true">${metric ? told : glyphOf(row.state)}</i>`}</span>`;
    })}
  </div>`;
}
