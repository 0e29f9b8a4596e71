// What ranks can be compared by: the numbers, how they are told, who differs. Pure.

import { bytes, percent, seconds, term } from "./format.js";
import { say } from "./words.js";

const PEERS = ["collective", "gpu_sync", "backward"]; // where a rank is found that waits for its peers
export const LEVELS = 9;
const MOST_ODD = 3; // more that differ are no exception
const FEWEST = 4; // to compare with
const SPREADS = 6; // of the usual spread (median deviation): beyond it one differs
const LEAST_SHARE = 0.25; // of the scale: less is no difference that one acts on

/**
 * @typedef {{key: string, name: string, value: (row: any, now: number) => number | null | undefined, text: (value: number) => string,
 *   full?: number, least?: number}} Metric `full`: what 100 % is; `least`: a scale below which nothing differs
 */

/** @returns {Metric[]} those that any rank has a number of. @param {any[]} rows */
export function metricsOf(rows) {
  const kinds = new Set(rows.flatMap((row) => Object.keys(row.time_shares ?? {})).filter((kind) => kind !== "samples"));
  const gpu = (name) => (row) => row.gpu?.[name];
  const shareOf = (kind) => (row) => (row.time_shares ? row.time_shares[kind] ?? 0 : null);
  const all = [
    { key: "moved", name: say("time since it moved"), value: (row, now) => (row.progress_at ? Math.max(0, now - row.progress_at) : null), text: seconds,
      least: 30 },
    { key: "util", name: say("GPU utilisation"), value: gpu("utilization_ratio"), text: percent, full: 1 },
    { key: "memory", name: say("GPU memory"), value: gpu("memory_used_bytes"), text: bytes },
    { key: "power", name: say("GPU power"), value: gpu("power_watts"), text: (value) => `${Math.round(value)} W` },
    { key: "temperature", name: say("GPU temperature"), value: gpu("temperature_celsius"), text: (value) => `${Math.round(value)} °C` },
    { key: "cpu", name: "CPU", value: (row) => row.cpu_ratio, text: percent },
    { key: "rss", name: say("memory (RSS)"), value: (row) => row.rss_bytes, text: bytes },
    { key: "peers", name: say("share of a step: waits for peers"), text: percent, full: 1,
      value: (row) => (row.time_shares ? PEERS.reduce((sum, kind) => sum + (row.time_shares[kind] ?? 0), 0) : null) },
    ...[...kinds].sort().map((kind) => ({ key: `share ${kind}`, name: say("share of a step: {kind}", { kind: term(kind) }), value: shareOf(kind),
      text: percent, full: 1 })),
  ];
  return all.filter((metric) => rows.some((row) => Number.isFinite(valueOf(metric, row, 1e12))));
}

/** Null where it was not read, and of a rank that has ended. */
export function valueOf(metric, row, now) {
  const value = row.exit ? null : metric.value(row, now);
  return Number.isFinite(value) ? value : null;
}

/** @returns {{least: number, most: number} | null} @param {Metric} metric */
export function scaleOf(metric, rows, now) {
  let [least, most] = [Infinity, -Infinity];
  for (const row of rows) {
    const value = valueOf(metric, row, now);
    if (value !== null) [least, most] = [Math.min(least, value), Math.max(most, value)];
  }
  if (least > most) return null;
  return metric.full ? { least: 0, most: Math.max(metric.full, most) } : { least, most };
}

/** From 0, pale, to LEVELS - 1; null where there is no number. */
export function levelOf(value, scale) {
  if (value === null || !scale) return null;
  if (scale.most <= scale.least) return Math.floor(LEVELS / 2);
  return Math.min(LEVELS - 1, Math.floor((LEVELS * (value - scale.least)) / (scale.most - scale.least)));
}

export function median(values) {
  const sorted = new Float64Array(values).sort();
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** Which few of these values are far from their median; null is not read. @param {(number | null)[]} values @returns {number[]} places */
function far(values, metric) {
  const read = values.filter((value) => value !== null);
  if (read.length < FEWEST) return { places: [], usual: 0 };
  const usual = median(read);
  const spread = 1.4826 * median(read.map((value) => Math.abs(value - usual)));
  const least = LEAST_SHARE * (metric.full ?? Math.max(Math.abs(usual), metric.least ?? 0));
  const limit = Math.max(SPREADS * spread, least);
  const places = [];
  for (let at = 0; at < values.length && places.length <= MOST_ODD; at += 1) {
    if (values[at] !== null && Math.abs(values[at] - usual) > limit) places.push(at);
  }
  return { places: places.length > MOST_ODD ? [] : places, usual };
}

/**
 * Nodes, places within a node, and ranks that stand out of all others in one number; the farthest first. A node is told by the median
 * of its ranks, where half of them were read: one rank makes no node odd.
 * @param {{name: string, rows: any[]}[]} nodes @param {Metric} metric
 */
export function oddOnes(nodes, metric, now) {
  const found = [];
  const told = new Set();
  const tell = (values, nameOf, ranksOf) => {
    const { places, usual } = far(values, metric);
    for (const place of places) {
      const ranks = ranksOf(place);
      if (ranks.every((rank) => told.has(rank))) continue;
      const apart = Math.abs(values[place] - usual);
      found.push({ name: nameOf(place), ranks, value: values[place], usual, metric,
        far: apart / (metric.full ?? Math.max(Math.abs(usual), Math.abs(values[place]), 1e-9)) });
      ranks.forEach((rank) => told.add(rank));
    }
  };
  const of = (values) => {
    const read = values.filter((value) => value !== null);
    return read.length && 2 * read.length >= values.length ? median(read) : null;
  };
  const valuesOfNodes = nodes.map((node) => node.rows.map((row) => valueOf(metric, row, now)));
  if (nodes.length > 1) {
    const places = new Map();
    nodes.forEach((node, which) => node.rows.forEach((row, index) => {
      const place = row.local_rank ?? index;
      if (!places.has(place)) places.set(place, { place, values: [], ranks: [] });
      places.get(place).values.push(valuesOfNodes[which][index]);
      places.get(place).ranks.push(row.rank);
    }));
    const rowsOfPlace = [...places.values()];
    tell(valuesOfNodes.map(of), (at) => nodes[at].name, (at) => nodes[at].rows.map((row) => row.rank));
    tell(rowsOfPlace.map((one) => of(one.values)), (at) => say("local rank {n}", { n: rowsOfPlace[at].place }), (at) => rowsOfPlace[at].ranks);
  }
  const rows = nodes.flatMap((node) => node.rows);
  tell(valuesOfNodes.flat(), (at) => `rank ${rows[at].rank}`, (at) => [rows[at].rank]);
  return found.sort((one, two) => two.far - one.far);
}
