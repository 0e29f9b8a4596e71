// Small things that all parts of the page are made of.

import { h } from "./vendor/preact.js";
import { useEffect, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";
import { clean, clock, rankWords, seconds, spans } from "./format.js";
import { saved } from "./saved.js";
import { jobNow, look, store, useStore } from "./store.js";
import { say } from "./words.js";

export const html = htm.bind(h);

/** Two sheets: what a font may lack. */
export const Sheets = () => html`<svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true" fill="none"
  stroke="currentColor" stroke-width="1.5">
  <rect x="5.5" y="5.5" width="8" height="8" rx="1.5" /><path d="M10.5 3.5v-1h-8v8h1" /></svg>`;

const LONG = 600; // characters that are shown before a person asks for all
const MOST_CHIPS = 12;

/** Text of the job, clipped where it is long, with a way to see all. */
export function Text({ text, long = LONG, tag = "span", of = "text" }) {
  const [all, setAll] = useState(false);
  const whole = clean(text);
  if (whole.length <= long * 1.2) return h(tag, { class: "text" }, whole);
  const shown = all ? whole : `${whole.slice(0, long)}…`;
  const label = all ? say("show less") : say("show all {n} characters", { n: whole.length.toLocaleString("en") });
  return html`<${tag} class="text">${shown}</${tag}> <button type="button" class="link" aria-expanded=${all}
    aria-label=${say("{label} of {of}", { label, of: say(of) })} onClick=${() => setAll(!all)}>${label}</button>`;
}

/** Puts text where a person can paste it from; false where the browser refuses. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text); // only where the page came from this machine or over TLS
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "unseen";
    const holder = document.querySelector("dialog[open]") ?? document.body;
    const before = document.activeElement;
    holder.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    before?.focus?.({ preventScroll: true });
    return done;
  }
}

/** `label` is its name; with `icon` only a sign shows.
 * @param {{text: string | (() => string), label: string, icon?: boolean}} props */
export function Copy({ text, label, icon = false }) {
  const [said, setSaid] = useState("");
  useEffect(() => {
    if (!said) return undefined;
    const timer = setTimeout(() => setSaid(""), 2000);
    return () => clearTimeout(timer);
  }, [said]);
  const take = async () => setSaid((await copy(typeof text === "function" ? text() : text)) ? say("copied") : say("select it by hand"));
  return html`<span class="copy"><button type="button" class="small ${icon ? "icon" : ""}" aria-label=${icon ? label : undefined}
    title=${icon ? label : undefined} onClick=${take}>${icon ? html`<${Sheets} />` : label}</button
    ><span role="status" class="said">${said}</span></span>`;
}

/** How long ago, kept current. */
export function Ago({ at }) {
  useStore("second", "now");
  return at ? html`<span title=${clock(at)}>${seconds(Math.max(0, Math.floor(jobNow() - at)))}</span>` : "-";
}

/** A moment alone, of what has come to its end. */
export function Moment({ at }) {
  useStore("now");
  return at ? html`<time datetime=${new Date(at * 1000).toISOString()}>${clock(at, store.now?.at)}</time>` : "-";
}

/** Moment and age: "03:28:58, 22 s ago"; of recorded evidence, before its end. */
export function When({ at }) {
  useStore("now");
  if (!at) return "-";
  const recorded = store.head?.recorded;
  return html`<time datetime=${new Date(at * 1000).toISOString()}>${clock(at, recorded ? 0 : jobNow())}
    </time>, <${Ago} at=${at} /> ${say(recorded ? "before its end" : "ago")}`;
}

/** Ranks as buttons that open one in its panel, or select several in the grid. */
export function RankChips({ ranks, label, kind = "" }) {
  const groups = spans(ranks ?? []);
  if (!groups.length) return null;
  const many = groups.length > MOST_CHIPS;
  return html`<span role="group" aria-label=${label} class="chips">
    ${groups.slice(0, MOST_CHIPS).map(([from, to]) => {
      const those = Array.from({ length: to - from + 1 }, (_, index) => from + index);
      return html`<button type="button" key=${from} class="chip ${kind}" onClick=${() => choose(those)}>${rankWords(those)}
        </button>`;
    })}
    ${many || groups.length > 1
      ? html`<button type="button" class="chip ${kind}" onClick=${() => choose(ranks)}>${say("all {n}", { n: ranks.length })}</button>`
      : null}
  </span>`;
}

/** One rank opens its panel, several are marked in the grid, which comes into sight. */
export function choose(ranks) {
  const some = new Set(ranks);
  look({ selected: some, open: ranks.length === 1 ? ranks[0] : store.view.open, filter: null, search: "" });
  if (ranks.length > 1) go("ranks");
}

const phone = globalThis.matchMedia?.("(max-width: 46rem)");

/** Whether this is as narrow as a phone; kept current. */
export function useNarrow() {
  const [narrow, set] = useState(Boolean(phone?.matches));
  useEffect(() => {
    const hear = () => set(phone.matches);
    phone?.addEventListener("change", hear);
    return () => phone?.removeEventListener("change", hear);
  }, []);
  return narrow;
}

const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Bring a section into sight and let the keyboard go on from there. */
export function go(id) {
  const target = document.getElementById(id);
  if (!target) return;
  target.scrollIntoView({ behavior: calm() ? "auto" : "smooth", block: "start" });
  target.focus({ preventScroll: true });
}

/** Words with `commands`: each command can be copied alone. */
export function Commands({ text }) {
  const [all, setAll] = useState(false);
  const whole = clean(text);
  const clipped = whole.length > 4 * LONG && !all;
  const parts = (clipped ? `${whole.slice(0, 4 * LONG)}…` : whole).split(/`([^`\n]+)`/);
  return html`${parts.map((part, index) => (index % 2
    ? html`<code>${part}</code>${/\s/.test(part) ? html`<${Copy} text=${part} label=${say("Copy command: {command}", { command: part })} icon />` : null}`
    : part))}${clipped ? html` <button type="button" class="link"
      onClick=${() => setAll(true)}>${say("show all {n} characters", { n: whole.length.toLocaleString("en") })}</button>` : null}`;
}

/** A manual page's text: paragraphs, lists, `code`. */
export function Manual({ text }) {
  const blocks = [];
  for (const line of clean(text).split("\n")) {
    const item = /^\s*[-*] (.*)$/.exec(line);
    const last = blocks[blocks.length - 1];
    if (item) (last?.items ? last : blocks[blocks.push({ items: [] }) - 1]).items.push(item[1]);
    else if (!line.trim()) blocks.push({});
    else if (last?.items && /^\s/.test(line)) last.items[last.items.length - 1] += ` ${line.trim()}`;
    else if (last?.words) last.words += ` ${line.trim()}`;
    else blocks.push({ words: line.trim() });
  }
  return blocks.map((block) => (block.items
    ? html`<ul>${block.items.map((item) => html`<li><${Commands} text=${item} /></li>`)}</ul>`
    : block.words ? html`<p><${Commands} text=${block.words} /></p>` : null));
}

/** A modal dialog: Esc and a click beside it close it; the focus goes back. */
export function Dialog({ title, onClose, children, wide = false }) {
  const box = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    return () => before?.focus?.({ preventScroll: true });
  }, []);
  return html`<dialog ref=${box} class=${wide ? "wide" : ""} aria-label=${title} onClose=${onClose}
    onClick=${(event) => event.target === box.current && box.current.close()}>
    <div class="dialog-body">
      <header><h2>${title}</h2><button type="button" onClick=${() => box.current.close()}>${say("Close")}</button></header>
      ${children}
    </div>
  </dialog>`;
}

/** JSON from diag; an Error with its words and its hint otherwise. */
export async function ask(path, options) {
  if (saved) return { ok: true, json: async () => savedAnswer(path) };
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(say("diag does not answer"));
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  const detail = typeof said.detail === "string" ? said.detail : `HTTP ${answer.status}`;
  throw new Error(said.hint ? `${detail} (${said.hint})` : detail);
}

function savedAnswer(path) {
  if (Object.hasOwn(saved.answers, path)) return saved.answers[path];
  throw new Error(say("this report does not hold it"));
}

/** What was fetched for `path`, and what went wrong; again when `path` or `turn` changes. */
export function useFetched(path, turn = 0) {
  const [got, setGot] = useState({ path: "", value: null, error: "" });
  useEffect(() => {
    if (!path) return undefined;
    const stop = new AbortController();
    ask(path, { signal: stop.signal })
      .then((answer) => answer.json())
      .then((value) => setGot({ path, value, error: "" }))
      .catch((error) => !stop.signal.aborted && setGot((before) => ({
        path, value: before.path === path ? before.value : null, error: error.message })));
    return () => stop.abort();
  }, [path, turn]);
  return got.path === path ? got : { path, value: null, error: "" };
}
