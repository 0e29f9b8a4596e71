// From diag.timeline/1 to what charts draw: which series stand together, their lines, what they come to in words. Pure.

import { ranges, withUnit } from "./format.js";
import { say } from "./words.js";

const GAP_SECONDS = 45; // nothing read for longer is a gap; readings come every second to every 15 s

/** Series that share an axis, in the order of the page. `limit` names the entry of `limits` that belongs to it. */
export const CHARTS = [
  { title: "Step time", names: ["step_seconds"], event: true },
  { title: "Loss", names: ["loss"], event: true, loose: true },
  { title: "GPU utilisation", names: ["gpu_utilization_ratio"], top: 1 },
  { title: "GPU memory", names: ["gpu_memory_bytes"], limit: "gpu_memory_bytes" },
  { title: "GPU power", names: ["gpu_power_watts"] },
  { title: "CPU of the ranks", names: ["rank_cpu_ratio"] },
  { title: "Memory of the ranks (RSS)", names: ["rank_rss_bytes"] },
  { title: "Memory of the job's cgroup", names: ["memory_bytes"], limit: "memory_bytes" },
  { title: "Memory of the host", names: ["host_memory_bytes"], limit: "host_memory_bytes" },
  { title: "/dev/shm", names: ["shm_bytes"], limit: "shm_bytes" },
  { title: "Network", names: ["rdma_bytes_per_second", "socket_bytes_per_second"] },
];

const OWN_NAMES = { rdma_bytes_per_second: "RDMA", socket_bytes_per_second: "sockets" };

/**
 * @typedef {{label: string, unit: string, values: (number | null)[], ranks: number[], low?: (number | null)[],
 *   high?: (number | null)[], members?: number}} Line
 * @typedef {{title: string, names: string[], unit: string, lines: Line[], limit: number | null, top: number | null,
 *   event: boolean, loose: boolean}} Chart
 */

/** @param {any} timeline @returns {Chart[]} those with anything to show */
export function chartsOf(timeline) {
  const all = timeline?.series ?? [];
  const known = new Set(CHARTS.flatMap((chart) => chart.names));
  const others = [...new Set(all.map((one) => one.name))].filter((name) => !known.has(name));
  const asked = [...CHARTS, ...others.map((name) => ({ title: name.replaceAll("_", " "), names: [name] }))];
  const found = [];
  for (const chart of asked) {
    const lines = all.filter((one) => chart.names.includes(one.name) && one.values?.some((value) => value !== null)).map(lineOf);
    if (!lines.length) continue;
    found.push({ title: say(chart.title), names: chart.names, unit: all.find((one) => chart.names.includes(one.name)).unit, lines,
      limit: timeline.limits?.[chart.limit] ?? null, top: chart.top ?? null, event: chart.event ?? false, loose: chart.loose
        ?? false });
  }
  return found;
}

function lineOf(one) {
  const ranks = one.ranks ?? (one.rank === undefined ? [] : [one.rank]);
  const label = one.gpu !== undefined ? `GPU ${one.gpu}` : one.rank !== undefined ? `rank ${one.rank}` : one.members ? say("mean")
    : say(OWN_NAMES[one.name] ?? "");
  const title = one.gpu !== undefined && ranks.length ? `${label}, rank ${ranges(ranks)}` : label;
  return { label, title, unit: one.unit, values: one.values, ranks, low: one.low, high: one.high, members: one.members };
}

/** Moments of the values. */
export function momentsOf(timeline) {
  return Array.from({ length: timeline.count }, (_, index) => timeline.began + (index + 0.5) * timeline.width_seconds);
}

/** Where nothing was read between two near readings the line goes on (undefined); a long silence stays a gap (null). */
export function bridged(values, width, always) {
  const most = Math.max(3, GAP_SECONDS / width);
  const found = [...values];
  let last = -1;
  for (let index = 0; index < found.length; index += 1) {
    if (found[index] === null) continue;
    if (last >= 0 && (always || index - last <= most)) found.fill(undefined, last + 1, index);
    last = index;
  }
  return found;
}

/** The reading at a moment, or the last one shortly before it. */
export function valueAt(values, index, width, always) {
  const most = Math.max(3, GAP_SECONDS / width);
  for (let at = Math.min(index, values.length - 1); at >= 0; at -= 1) {
    if (values[at] !== null && values[at] !== undefined) return always || index - at <= most ? values[at] : null;
  }
  return null;
}

/** Last, lowest, mean and highest of a line within [from, to). */
export function summary(line) {
  const values = line.values.filter((value) => value !== null);
  const low = (line.low ?? line.values).filter((value) => value !== null);
  const high = (line.high ?? line.values).filter((value) => value !== null);
  if (!values.length) return null;
  return { last: values[values.length - 1], least: low.reduce((one, two) => Math.min(one, two)),
    most: high.reduce((one, two) => Math.max(one, two)),
    mean: values.reduce((sum, value) => sum + value, 0) / values.length };
}

/** A chart in a sentence, for whom no picture serves. @param {Chart} chart */
export function inWords(chart) {
  const said = chart.lines.map((line) => {
    const found = summary(line);
    return `${line.label ? `${line.label} ` : ""}${say("{last}, from {least} to {most}", { last: withUnit(found.last, chart.unit),
      least: withUnit(found.least, chart.unit), most: withUnit(found.most, chart.unit) })}`;
  });
  const limit = chart.limit ? say("; limit {value}", { value: withUnit(chart.limit, chart.unit) }) : "";
  return `${chart.title}: ${said.slice(0, 8).join("; ")}${said.length > 8 ? say("; {n} more in the table", { n: said.length - 8 })
    : ""}${limit}`;
}

const QUIET_SHARE = 0.01; // of its limit, which such a chart comes nowhere near
const ALWAYS = new Set(["step_seconds", "loss", "gpu_utilization_ratio"]);

/** Whether there is nothing to see in a chart: all zero, or next to nothing of its limit. @param {Chart} chart */
export function isQuiet(chart) {
  if (chart.names.some((name) => ALWAYS.has(name))) return false;
  const most = Math.max(...chart.lines.map((line) => summary(line)?.most ?? 0));
  return chart.limit ? most < QUIET_SHARE * chart.limit : most === 0;
}

/** @returns {{phase: string, from: number, to: number}[]} */
export function phasesOf(timeline) {
  const end = timeline.began + timeline.count * timeline.width_seconds;
  const phases = timeline.phases ?? [];
  return phases.map((one, index) => ({ phase: one.phase, from: one.at, to: Math.max(one.at, phases[index + 1]?.at ?? end) }));
}
