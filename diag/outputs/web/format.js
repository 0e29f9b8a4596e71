// Words and numbers for people. Text of the job is odd or hostile: `clean` makes it readable and harmless to the eye.

import { language, say, said } from "./words.js";

// CSI, OSC (closed or left open), DCS and kin, two-character escapes; 8-bit CSI.
const ESCAPES = new RegExp([
  /\x1b\[[0-?]*[ -/]*[@-~]/, /\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?/, /\x1b[PX^_][^\x1b]*(?:\x1b\\)?/, /\x1b[ -/]*[0-~]/,
  /\x9b[0-?]*[ -/]*[@-~]/,
].map((one) => one.source).join("|"), "g");
// Controls, what turns the direction of text or shows nothing, halves of surrogate pairs.
const ODD = new RegExp([
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/, /[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/,
  /[\u{e0000}-\u{e007f}]/u, /\p{Cs}/u,
].map((one) => one.source).join("|"), "gu");

/** Text as it reads: escape sequences of terminals dropped, what does not show written as \uXXXX.
 * @param {unknown} value @returns {string} */
export function clean(value) {
  const text = value === null || value === undefined ? "" : String(value);
  return text.replace(ESCAPES, "").replace(/\r\n?/g, "\n").replace(ODD, escaped);
}

/** A name or a line for a place that has room for no more. */
export function short(value, most = 120) {
  const text = clean(value);
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

function escaped(char) {
  const code = char.codePointAt(0);
  if (code < 256) return "\\x" + code.toString(16).padStart(2, "0");
  return code > 0xffff ? `\\U${code.toString(16).padStart(8, "0")}` : "\\u" + code.toString(16).padStart(4, "0");
}

/** [0, 1, 2, 5] as "0-2, 5". @param {number[]} ranks */
export function ranges(ranks) {
  return spans(ranks).map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(", ");
}

/** [0, 1, 2, 5] as [[0, 2], [5, 5]]. @param {number[]} ranks @returns {[number, number][]} */
export function spans(ranks) {
  const found = [];
  for (const rank of [...new Set(ranks)].sort((one, two) => one - two)) {
    const last = found[found.length - 1];
    if (last && rank === last[1] + 1) last[1] = rank;
    else found.push([rank, rank]);
  }
  return found;
}

/** "rank 2", "ranks 0-1, 5". @param {number[]} ranks */
export function rankWords(ranks) {
  return `${new Set(ranks).size === 1 || language() === "zh" ? "rank" : "ranks"} ${ranges(ranks)}`;
}

export function plural(count, word) {
  const n = count.toLocaleString("en");
  if (language() === "zh") return say(`{n} ${word}`, { n });
  return `${n} ${word}${count === 1 ? "" : word.endsWith("process") ? "es" : "s"}`;
}

// The rules of numbers are those of diag/text/units.py; tests/text/units.json holds both to one table of examples.

/** So many significant digits and all of those before the point, halves up. @param {number} value @param {number} figures */
function digits(value, figures) {
  let [scale, decimals] = [1, 0];
  while (value * scale > 0 && value * scale < 10 ** (figures - 1) && decimals < 12) [scale, decimals] = [scale * 10, decimals + 1];
  const text = (Math.floor(value * scale + 0.5) / scale).toFixed(decimals);
  return decimals ? text.replace(/\.?0+$/, "") : text;
}

/** Three significant digits, whole numbers from 1000 on. @param {number} value */
export function number(value) {
  if (!Number.isFinite(value)) return "-";
  if (value < 0) return `-${number(-value)}`;
  if (value === 0 || (value >= 0.001 && value < 999999.5)) return digits(value, 3);
  let power = Math.floor(Math.log10(value));
  let text = digits(power < 0 ? value * 10 ** -power : value / 10 ** power, 3);
  if (text === "10") [power, text] = [power + 1, "1"];
  return `${text}e${power < 0 ? "" : "+"}${power}`;
}

/** @param {number | null | undefined} value of bytes, as KiB, MiB, GiB */
export function bytes(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "-";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let [size, unit] = [Math.abs(value), 0];
  // What would be rounded to 1024 of a unit is 1 of the next.
  while (size >= 1023.5 && unit < units.length - 1) [size, unit] = [size / 1024, unit + 1];
  return `${value < 0 ? "-" : ""}${digits(size, 3)} ${units[unit]}`;
}

/** A span: "0.64 s", "22 s", "3 min 5 s", "2 h 4 min", "3 d 2 h". @param {number | null | undefined} value in seconds */
export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "-";
  if (value < 0) return `-${seconds(-value)}`;
  if (value > 0 && value < 0.1) return value < 0.0009995 ? `${digits(value * 1e6, 3)} µs` : `${digits(value * 1e3, 3)} ms`;
  if (value < 10) return `${digits(value, 2)} s`;
  const whole = Math.floor(value + 0.5);
  if (whole >= 86400) return inTwo(whole, 86400, "d", 3600, "h");
  if (whole >= 3600) return inTwo(whole, 3600, "h", 60, "min");
  if (whole >= 600) return `${Math.floor(whole / 60)} min`;
  return whole >= 60 ? inTwo(whole, 60, "min", 1, "s") : `${whole} s`;
}

function inTwo(whole, large, name, small, other) {
  const rest = Math.floor((whole % large) / small);
  return `${Math.floor(whole / large)} ${name}${rest ? ` ${rest} ${other}` : ""}`;
}

const two = (value) => String(value).padStart(2, "0");

// A log's times without a year are of 1972, which none of them means (diag/text/units.py: NO_YEAR).
const yearless = (at) => at >= 725 * 86400 && at < 1100 * 86400;

/** A moment of this browser's zone: "03:28:58", with its day where it is not `now`'s. @param {number} at in epoch seconds */
export function clock(at, now) {
  if (!at) return "-";
  const date = new Date(at * 1000);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const day = `${yearless(at) ? "" : `${date.getFullYear()}-`}${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return now && new Date(now * 1000).toDateString() === date.toDateString() ? time : `${day} ${time}`;
}

/** The job's sentence with its times of day in this browser's zone, as all others on the page. @param {any} report */
export function sentenceHere(report, now) {
  const sentence = said(report?.sentence);
  const times = report?.sentence_times ?? {};
  const words = Object.keys(times).sort((one, two) => two.length - one.length);
  if (!words.length) return clean(sentence);
  const any = new RegExp(words.map((one) => one.replace(/[^\d]/g, "\\$&")).join("|"), "g");
  return clean(sentence).replace(any, (word) => clock(times[word], now));
}

/** Findings of warning or above, open and over. @param {any} report */
export function troubles(report) {
  return [...(report?.findings ?? []), ...(report?.past ?? [])].filter((one) => one.severity !== "info").length;
}

/** The same moment for a ticket, which is read in another zone. */
export function stamp(at) {
  return at ? new Date(at * 1000).toISOString().slice(yearless(at) ? 5 : 0).replace(/\.\d+Z$/, "Z") : "-";
}

/** A value of a series with its unit. @param {number | null | undefined} value @param {string} unit as in diag.timeline/1 */
export function withUnit(value, unit) {
  if (value === null || value === undefined) return "-";
  if (unit === "bytes") return bytes(value);
  if (unit === "bytes/s") return `${bytes(value)}/s`;
  if (unit === "ratio") return percent(value);
  if (unit === "seconds") return seconds(value);
  if (unit === "watts") return `${Math.round(value)} W`;
  return number(value);
}

export function percent(value) {
  if (value === null || value === undefined) return "-";
  const share = value * 100;
  if (share > 0 && share < 0.01) return "<0.01 %";
  if (share >= 99.5 && share < 100) return `${digits(Math.min(share, 99.9), 3)} %`;
  return `${share > 0 && share < 10 ? digits(share, 2) : Math.floor(share + 0.5)} %`;
}

/** What a main thread does, in words; nothing where that is not known. */
export function activityWords(activity) {
  return activity && activity !== "other" ? term(activity) : "";
}

/** gpu_sync as "gpu sync". */
export function words(name) {
  return clean(name).replaceAll("_", " ");
}

/** The same in the language of the page. */
export function term(name) {
  return say(words(name));
}
