// The manual page of a finding, and the keys.

import { useState } from "./vendor/hooks.js";
import { clean } from "./format.js";
import { Dialog, Manual, html, useFetched } from "./ui.js";
import { language, say } from "./words.js";

export const KEYS = [
  ["f", "findings"], ["r", "ranks"], ["s", "stacks"], ["t", "time line"], ["n", "nodes"],
  ["j / k", "next, previous finding"], ["/", "search ranks"], ["d", "go to Dump now; Enter starts it"],
  ["← → ↑ ↓", "move between ranks; Enter opens one"], ["Esc", "close the rank, a dialog, or clear the search"],
    ["?", "this list"],
];

export function Keys({ onClose }) {
  return html`<${Dialog} title=${say("Keys")} onClose=${onClose}><dl class="keys">
    ${KEYS.map(([key, what]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${say(what)}</dd></div>`)}</dl></${Dialog}>`;
}

export function Explain({ id, onClose }) {
  const [lang, setLang] = useState(language());
  const { value, error } = useFetched(`explain/${encodeURIComponent(id)}?lang=${lang}`);
  const choose = (wanted) => { setLang(wanted); };
  return html`<${Dialog} title=${say("Manual: {id}", { id: clean(id) })} onClose=${onClose}>
    <p class="bar" role="group" aria-label=${say("Language")}>
      ${[["en", "English"], ["zh", "中文"]].map(([code, name]) => html`<button type="button" class="small" key=${code} lang=${code}
        aria-pressed=${lang === code} onClick=${() => choose(code)}>${name}</button>`)}</p>
    <div class="manual" lang=${lang} aria-live="polite">
      ${error ? html`<p class="failed">${clean(error)}</p>` : null}
      ${value ? Object.entries(value.sections ?? {}).map(([title, text]) => html`<section key=${title}><h3>${clean(title)}</h3>
        <${Manual} text=${text} /></section>`) : null}
    </div></${Dialog}>`;
}
