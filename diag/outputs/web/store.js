// What diag reported last, part by part, and how fresh that is. Nothing here draws: components listen to the parts that they show.

import { useEffect, useReducer } from "./vendor/hooks.js";
import { saved } from "./saved.js";
import { hear, language, onLanguage } from "./words.js";

const QUIET_SECONDS = 20; // a live diag says its time each second
const AGAIN_SECONDS = 3; // after diag ended or refused: another run may come to this port

/**
 * @typedef {{rank: number, state: string, host: string, [name: string]: any}} Row
 * @typedef {"connecting" | "open" | "lost" | "ended"} Connection
 */
export const store = {
  now: null, head: null, report: null, stacks: null, timeline: null, nodes: null, trouble: null,
  /** @type {Map<number, Row>} */ ranks: new Map(),
  ranksHeard: false,
  ranksTurn: 0, // one more with each change of any rank
  /** @type {Connection} */ connection: "connecting",
  heardAt: 0, // by this browser's clock, milliseconds
  nowAt: 0, // when `now` was heard
  view: { open: null, selected: new Set(), filter: null, search: "", zoom: null },
};

/** @type {Map<string, Set<() => void>>} */
const listeners = new Map();
const stirred = new Set();
let frame = 0;

/** What shows `part` draws again, once a frame; in a hidden tab, when it is seen again. */
export function stir(part) {
  stirred.add(part);
  if (document.hidden) listeners.get("hidden")?.forEach((tell) => tell());
  else if (!frame) frame = requestAnimationFrame(flush);
}

function flush() {
  frame = 0;
  const parts = [...stirred];
  stirred.clear();
  const tell = new Set();
  for (const part of parts) listeners.get(part)?.forEach((one) => tell.add(one));
  tell.forEach((one) => one());
}

export function on(part, tell) {
  if (!listeners.has(part)) listeners.set(part, new Set());
  listeners.get(part).add(tell);
  return () => listeners.get(part).delete(tell);
}

/** The store; the component draws again when one of these parts changes. @param {...string} parts */
export function useStore(...parts) {
  const [, again] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    const offs = parts.map((part) => on(part, again));
    return () => offs.forEach((off) => off());
  }, []);
  return store;
}

/** Seconds of the job's clock now: that of diag's last report, and on a live run what has gone by since. */
export function jobNow() {
  if (!store.now) return 0;
  if (store.head?.recorded || store.connection !== "open") return store.now.at;
  return store.now.at + (Date.now() - store.nowAt) / 1000;
}

/** What a person chose: opened rank, selected ranks, filter, search, zoom. */
export function look(change) {
  Object.assign(store.view, change);
  stir("view");
}

// --- the stream --------------------------------------------------------------------------------------------------

const PARTS = ["now", "head", "report", "stacks", "timeline", "nodes", "trouble"];
let source = null;

function heard() {
  store.heardAt = Date.now();
  if (store.connection !== "open") {
    store.connection = "open";
    stir("connection");
  }
}

function take(part, text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return; // cut off with its connection; the next one comes whole
  }
  heard();
  if (part !== "trouble" && store.trouble) {
    store.trouble = null;
    stir("trouble");
  }
  if (part === "ranks") {
    if (value.whole) store.ranks = new Map();
    for (const row of rowsOf(value.rows)) store.ranks.set(row.rank, row);
    if (value.whole) store.ranks = new Map([...store.ranks].sort((one, two) => one[0] - two[0]));
    store.ranksHeard = true;
    store.ranksTurn += 1;
  } else {
    // What is over is in `past` too; past this line `findings` are the open ones.
    if (part === "report") value.findings = (value.findings ?? []).filter((one) => !one.resolved_at);
    store[part] = value;
    if (part === "now") store.nowAt = store.heardAt;
  }
  stir(part);
}

const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/** Rows, also where they come as columns (diag/outputs/view/columns.py). @param {any} rows @returns {Row[]} */
export function rowsOf(rows) {
  if (!rows?.columns) return rows ?? [];
  const found = Array.from({ length: rows.count }, () => ({}));
  for (const [name, column] of Object.entries(rows.columns)) valuesOf(column, rows.count).forEach((value, at) => { found[at][name] = value; });
  return found;
}

function valuesOf(column, count) {
  if (column.each) return column.each;
  if (column.of) {
    const place = column.of.length <= DIGITS.length ? (at) => DIGITS.indexOf(column.at[at])
      : (at) => DIGITS.length * DIGITS.indexOf(column.at[2 * at]) + DIGITS.indexOf(column.at[2 * at + 1]);
    return Array.from({ length: count }, (_, at) => column.of[place(at)]);
  }
  if (column.from !== undefined) return Array.from({ length: count }, (_, at) => column.from + at);
  if (!column.parts) return new Array(count).fill(column.all);
  const none = new Set(column.none);
  const objects = Array.from({ length: count - none.size }, () => ({}));
  for (const [name, part] of Object.entries(column.parts)) {
    valuesOf(part, objects.length).forEach((value, at) => { if (value !== null) objects[at][name] = value; });
  }
  let next = 0;
  return Array.from({ length: count }, (_, at) => (none.has(at) ? null : objects[next++]));
}

function lose(how) {
  if (store.connection === how) return;
  store.connection = how;
  stir("connection");
}

/** A report that was saved as a file holds all of it; nothing more comes. */
function showSaved() {
  hear(JSON.stringify(saved.chinese ?? {}));
  for (const [part, value] of Object.entries(saved.parts)) take(part, JSON.stringify(value));
}

export function listen() {
  if (saved) return showSaved();
  source?.close();
  source = new EventSource(`events?ranks=columns${language() === "zh" ? "&lang=zh" : ""}`);
  source.addEventListener("chinese", (event) => hear(event.data));
  for (const part of [...PARTS, "ranks"]) source.addEventListener(part, (event) => take(part, event.data));
  source.addEventListener("end", () => {
    lose("ended");
    retry();
  });
  source.onopen = () => store.connection === "lost" && heard();
  source.onerror = () => {
    if (store.connection !== "ended") lose("lost");
    if (source.readyState === EventSource.CLOSED) retry(); // refused: the browser does not come again by itself
  };
}

let again = 0;
function retry() {
  source.close();
  clearTimeout(again);
  again = setTimeout(listen, AGAIN_SECONDS * 1000);
}

// A clock of whole seconds for ages and for silence; it stops in a hidden tab.
setInterval(() => {
  if (document.hidden) return;
  const silent = (Date.now() - store.heardAt) / 1000 > QUIET_SECONDS;
  if (store.connection === "open" && store.heardAt && silent && !store.head?.recorded) lose("lost");
  stir("second");
}, 1000);

onLanguage(() => {
  listen();
  stir("language");
});

document.addEventListener("visibilitychange", () => !document.hidden && stirred.size && stir("second"));
