// One chart: uPlot in a figure, with the values under the cursor beside its title.

import { useEffect, useRef, useState } from "./vendor/hooks.js";
import uPlot from "./vendor/uplot.js";
import { clock, withUnit } from "./format.js";
import { bridged, inWords, valueAt } from "./series.js";
import { on } from "./store.js";
import { html } from "./ui.js";
import { say } from "./words.js";

export const AXIS = 62; // pixels at the left of every plot, so that all stand below each other
export const RIGHT = 10;
const HEIGHT = 92;
const SHOW_LIMIT = 0.4; // a limit far above all values would make a flat line of them
const SPANS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
const BINARY = Array.from({ length: 60 }, (_, power) => 2 ** power);

/** Colours of the theme that is on; read again when it changes. */
export function useColours() {
  const read = () => {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    return { ink: get("--muted"), line: get("--line"), critical: get("--critical"), warning: get("--warning"),
      info: get("--info"),
      many: Array.from({ length: 8 }, (_, index) => get(`--c${index}`)) };
  };
  const [colours, set] = useState(read);
  useEffect(() => on("theme", () => set(read())), []);
  return colours;
}

function faint(colour, share) {
  return `color-mix(in srgb, ${colour} ${share}%, transparent)`;
}

const DASHES = [undefined, [7, 3], [2, 3], [10, 3, 2, 3]];
const CULPRITS = [null, 3, 1, 5]; // of the palette; the first is in the colour of what is grave

/** One colour a line; where a finding names ranks, theirs stand out from all others, and each from the next. */
export function linesOf(chart, named, colours) {
  const some = chart.lines.length > 1 && chart.lines.some((line) => line.ranks.some((rank) => named.has(rank)));
  let hits = 0;
  return chart.lines.map((line, index) => {
    if (!some) return { line, hit: 0, colour: colours.many[index % 8], width: 1.5, dash: index >= 8 ? DASHES[1] : undefined };
    if (!line.ranks.some((rank) => named.has(rank))) return { line, hit: 0, colour: faint(colours.many[0], 55), width: 1 };
    const place = hits % CULPRITS.length;
    hits += 1;
    return { line, hit: place + 1, colour: CULPRITS[place] === null ? colours.critical : colours.many[CULPRITS[place]], width: 2.5,
      dash: DASHES[place] };
  });
}

/**
 * @param {{chart: import("./series.js").Chart, moments: number[], width: number, zoom: [number, number] | null, onZoom: Function,
 *   group: string, marks: {at: number, severity: string}[], named: Map<number, string>, axis: boolean, onMoment: Function}} props
 */
export function Chart({ chart, moments, width, zoom, onZoom, group, marks, named, axis, onMoment }) {
  const holder = useRef(null);
  const values = useRef(null);
  const plot = useRef(null);
  const live = useRef({});
  const colours = useColours();
  const lines = linesOf(chart, named, colours);
  live.current = { zoom, marks, chart, moments, width, onZoom, onMoment, lines, colours };
  const looks = lines.map((one) => [one.line.label, one.colour, one.width, one.line.members ? "band" : ""].join());
  const shape = [chart.title, chart.unit, axis, ...looks].join("|");

  useEffect(() => {
    const place = holder.current;
    const made = new uPlot(optionsOf(live, values, { group, axis, width: place.clientWidth }), dataOf(live.current), place);
    plot.current = made;
    const watch = new ResizeObserver(() => place.clientWidth && made.setSize({ width: place.clientWidth, height: made.height }));
    watch.observe(place);
    showValues(live.current, values.current, null);
    return () => { watch.disconnect(); made.destroy(); plot.current = null; };
  }, [shape, colours]);

  useEffect(() => {
    const made = plot.current;
    if (!made) return;
    made.setData(dataOf(live.current), false);
    rescale(made, live.current);
    if (made.cursor.idx === null || made.cursor.left < 0) showValues(live.current, values.current, null);
  }, [chart, zoom?.[0], zoom?.[1], marks]);

  return html`<figure class="chart"><figcaption><b>${chart.title}</b>
      ${chart.limit ? html`<span class="muted">${say(", limit {value}", { value: withUnit(chart.limit, chart.unit) })}</span>` : null}
      <ul class="values" ref=${values}>${lines.map(({ line, hit, colour }) => html`<li key=${line.label} class=${hit ? `hit hit${hit}` : ""}
        title=${line.title}><span class="dot" aria-hidden="true" style=${{ backgroundColor: colour }}></span>
          ${line.label} <span class="num"></span></li>`)}</ul></figcaption>
    <div class="plot ${axis ? "with-axis" : ""}" role="img" aria-label=${inWords(chart)} ref=${holder}></div></figure>`;
}

function rescale(made, { zoom, moments, width }) {
  const from = zoom?.[0] ?? moments[0] - width / 2;
  const to = zoom?.[1] ?? moments[moments.length - 1] + width / 2;
  made.batch(() => made.setScale("x", { min: from, max: Math.max(to, from + width) }));
}

const peak = (chart) => Math.max(...chart.lines.flatMap((line) => [Math.max(...(line.high ?? line.values).map((value) => value
  ?? 0))]));

const nearLimit = (chart) => chart.limit !== null && peak(chart) >= SHOW_LIMIT * chart.limit;

function dataOf({ chart, moments, width, lines }) {
  const columns = [moments];
  for (const { line } of lines) {
    columns.push(bridged(line.values, width, chart.event));
    if (line.low) columns.push(bridged(line.high, width, chart.event), bridged(line.low, width, chart.event));
  }
  return columns;
}

function optionsOf(live, values, { group, axis, width }) {
  const { chart, lines, colours } = live.current;
  const series = [{}];
  const bands = [];
  for (const { line, colour, width: stroke, dash } of lines) {
    series.push({ stroke: colour, width: stroke, dash, points: { size: 4, fill: colour } });
    if (!line.low) continue;
    bands.push({ series: [series.length, series.length + 1], fill: faint(colour, 22) });
    series.push({ stroke: faint(colour, 50), width: 0.5, points: { show: false } },
      { stroke: faint(colour, 50), width: 0.5, points: { show: false } });
  }
  const font = "11px system-ui, sans-serif";
  const grid = { stroke: colours.line, width: 1 };
  return {
    width: Math.max(80, width), height: HEIGHT + (axis ? 26 : 0), series, bands,
    padding: [8, RIGHT, axis ? 0 : 8, 0],
    legend: { show: false },
    cursor: {
      sync: { key: group, scales: ["x", null] }, drag: { x: true, y: false, setScale: false, dist: 4 },
      points: { size: 6 }, y: false,
    },
    scales: {
      x: { time: true },
      y: { range: (_, low, high) => rangeOf(live.current.chart, low, high) },
    },
    axes: [
      { show: axis, stroke: colours.ink, grid, ticks: grid, font, size: 26, space: 76, incrs: SPANS,
        values: (_, splits, __, ___, step) => splits.map((split) => moment(split, step)) },
      { stroke: colours.ink, grid, ticks: grid, font, size: AXIS, space: 26, incrs: chart.unit.startsWith("bytes") ? BINARY
        : undefined,
        values: (_, splits, __, ___, step) => splits.map((split) => tick(split, step, chart.unit)) },
    ],
    hooks: {
      draw: [(made) => drawMarks(made, live.current)],
      setCursor: [(made) => {
        const index = made.cursor.left >= 0 ? made.cursor.idx : null;
        showValues(live.current, values.current, index);
        live.current.onMoment(index === null ? null : live.current.moments[index]);
      }],
      setSelect: [(made) => {
        if (made.select.width < 4) return;
        const [from, to] = [made.posToVal(made.select.left, "x"), made.posToVal(made.select.left + made.select.width, "x")];
        made.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        live.current.onZoom([from, to]);
      }],
    },
  };
}

/** As many decimals as tell neighbours apart. */
function tick(value, step, unit) {
  return unit ? withUnit(value, unit) : value.toFixed(Math.min(6, Math.max(0, Math.ceil(-Math.log10(step || 1)))));
}

function moment(at, step) {
  const time = clock(at, at);
  return step >= 86400 ? clock(at).slice(5, 10) : step >= 60 ? time.slice(0, 5) : time;
}

function rangeOf(chart, low, high) {
  if (low === null || high === null) return [0, 1];
  if (chart.loose) return low === high ? [low - 1, high + 1] : uPlot.rangeNum(low, high, 0.1, true);
  const top = nearLimit(chart) ? Math.max(high, chart.limit) : chart.top ? Math.max(high, chart.top) : high;
  return [0, (top || 1) * 1.08];
}

/** Findings from begin to end, each begin an upright line; the limit as a dashed one, at the edge where it is far above. */
function drawMarks(made, { marks, chart, colours }) {
  const { ctx } = made;
  const { left, top, width, height } = made.bbox;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  ctx.lineWidth = 1.5 * devicePixelRatio;
  for (const mark of marks) {
    const colour = mark.over ? colours.ink : colours[mark.severity] ?? colours.ink;
    const [from, to] = [mark.at, mark.to].map((at) => made.valToPos(at, "x", true));
    ctx.globalAlpha = 0.09;
    ctx.fillStyle = colour;
    ctx.fillRect(from, top, to - from, height);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = colour;
    stroke(ctx, from, top, 0, height);
  }
  if (chart.limit) drawLimit(made, chart, colours);
  ctx.restore();
}

function drawLimit(made, chart, colours) {
  const { ctx } = made;
  const { left, top, width } = made.bbox;
  const near = nearLimit(chart);
  const at = near ? made.valToPos(chart.limit, "y", true) : top + devicePixelRatio;
  ctx.strokeStyle = near ? colours.critical : colours.ink;
  ctx.setLineDash([8 * devicePixelRatio, 4 * devicePixelRatio]);
  stroke(ctx, left, at, width, 0);
  ctx.fillStyle = ctx.strokeStyle;
  ctx.font = `${10 * devicePixelRatio}px system-ui, sans-serif`;
  [ctx.textBaseline, ctx.textAlign] = ["top", "left"];
  ctx.fillText(`${near ? "" : "↑ "}${withUnit(chart.limit, chart.unit)}`, left + 4 * devicePixelRatio, at + 3 * devicePixelRatio);
}

function stroke(ctx, x, y, right, down) {
  ctx.beginPath();
  ctx.moveTo(x, y);
  ctx.lineTo(x + right, y + down);
  ctx.stroke();
}

/** Beside the title, without drawing the page again: this runs with every move of the mouse. */
function showValues({ chart, lines, width }, list, index) {
  if (!list) return;
  lines.forEach(({ line }, place) => {
    const target = list.children[place]?.querySelector(".num");
    if (!target) return;
    const at = (those) => valueAt(those, index ?? those.length - 1, width, chart.event || index === null);
    const span = line.low ? say(" ({low} to {high} of {n})", { low: withUnit(at(line.low), chart.unit),
      high: withUnit(at(line.high), chart.unit), n: line.members }) : "";
    target.textContent = withUnit(at(line.values), chart.unit) + span;
  });
}
