// A word on the desktop when a critical finding is new: only where a person asked for it with the button, and the browser allows it.

import { useEffect, useState } from "./vendor/hooks.js";
import { titleOf, keyOf } from "./findings.js";
import { clean, short } from "./format.js";
import { saved } from "./saved.js";
import { on, store, useStore } from "./store.js";
import { html } from "./ui.js";
import { said, say } from "./words.js";

const NAME = "diag.notify";
const known = new Set(); // findings that were there when we first looked, or were told
let looked = false;

function wanted() {
  try {
    return localStorage.getItem(NAME) === "on";
  } catch {
    return false; // a browser that keeps nothing asks anew
  }
}

/** Only over TLS or from this machine: elsewhere browsers have none. */
const possible = () => !saved && typeof Notification !== "undefined" && globalThis.isSecureContext;

const isOn = () => possible() && Notification.permission === "granted" && wanted();

/** What is critical and was not told; those of the first report are on the page, and no news. @param {any[]} findings */
export function freshOf(findings, before, first) {
  const grave = findings.filter((one) => one.severity === "critical" && !before.has(`${keyOf(one)}/${one.opened_at}`));
  grave.forEach((one) => before.add(`${keyOf(one)}/${one.opened_at}`));
  return first ? [] : grave;
}

function look() {
  if (!store.report || store.head?.recorded) return;
  const fresh = freshOf(store.report.findings ?? [], known, !looked);
  looked = true;
  if (!isOn()) return;
  for (const one of fresh) {
    const word = new Notification(`${titleOf(one)} - ${short(store.head?.run_id, 60)}`, { body: short(clean(said(one.summary)), 240), tag: keyOf(one) });
    word.onclick = () => globalThis.focus();
  }
}

export function NotifyButton() {
  const { head } = useStore("head");
  const [active, set] = useState(isOn());
  useEffect(() => {
    look();
    const offs = [on("report", look), on("hidden", look)]; // in a hidden tab nothing is drawn, and this matters most
    return () => offs.forEach((off) => off());
  }, []);
  if (!possible() || !head || head.recorded) return null;
  const turn = async () => {
    const now = !active && (await Notification.requestPermission()) === "granted";
    try {
      localStorage.setItem(NAME, now ? "on" : "off");
    } catch { /* then it is off after a reload */ }
    set(now && isOn());
  };
  const refused = Notification.permission === "denied";
  return html`<button type="button" aria-pressed=${active} aria-disabled=${refused} onClick=${refused ? undefined : turn}
    title=${say(refused ? "this browser refuses notifications of this page" : "a notification on the desktop when a critical finding is new")}>
    ${say("Notify me")}</button>`;
}
