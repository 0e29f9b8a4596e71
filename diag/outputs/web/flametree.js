// The tree of a flame graph from collapsed stacks, and what of it is seen. Pure.

import { say } from "./words.js";

const NARROWEST = 1.5; // pixels: narrower cannot be hit
const MOST = 4000; // boxes at once
const RANKS = /^(.*) \[([\d, -]+)(?:[^\]]*)\]$/s;

/** @typedef {{name: string, label: string, ranks: number[], weight: number, from: number, depth: number, parent: Box | null, children: Box[]}} Box */

/** The tree of `outer;inner weight` lines. Pure. @param {string} text @returns {Box} */
export function treeOfLines(text) {
  const root = { name: say("all"), label: "", ranks: [], weight: 0, from: 0, depth: 0, parent: null, children: [], known: new Map() };
  for (const line of text.split("\n")) {
    const cut = line.lastIndexOf(" ");
    const weight = Number(line.slice(cut + 1));
    if (cut < 0 || !(weight > 0)) continue;
    let box = root;
    box.weight += weight;
    for (const label of line.slice(0, cut).split(";")) {
      let next = box.known.get(label);
      if (!next) {
        const [, name, ranks] = RANKS.exec(label) ?? [null, label, ""];
        next = { name, label, ranks: ranksIn(ranks), weight: 0, from: 0, depth: box.depth + 1, parent: box, children: [], known: new Map() };
        box.known.set(label, next);
        box.children.push(next);
      }
      next.weight += weight;
      box = next;
    }
  }
  const work = [root];
  while (work.length) {
    const box = work.pop();
    let from = box.from;
    for (const child of box.children) {
      child.from = from;
      from += child.weight;
      work.push(child);
    }
  }
  return root;
}

function ranksIn(text) {
  return text.split(",").filter((one) => one.trim()).flatMap((one) => {
    const [from, to] = one.split("-").map(Number);
    return Array.from({ length: Math.min(65536, (to ?? from) - from + 1) }, (_, at) => from + at);
  });
}

/** Those that a person sees with `top` as wide as the picture: its callers, and all under it that is wide enough. Pure. */
export function seenOf(top, width) {
  const found = [];
  for (let box = top.parent; box; box = box.parent) found.unshift({ box, x: 0, width });
  const work = [top];
  while (work.length && found.length < MOST) {
    const box = work.shift();
    const wide = (box.weight / top.weight) * width;
    if (wide < NARROWEST) continue;
    found.push({ box, x: ((box.from - top.from) / top.weight) * width, width: wide });
    work.push(...box.children);
  }
  return found;
}

/** What of the whole is in frames that match; a match within a match counts once. */
export function shareOf(root, matches) {
  let found = 0;
  const work = [root];
  while (work.length) {
    const box = work.pop();
    if (box.parent && matches(box)) found += box.weight;
    else work.push(...box.children);
  }
  return root.weight ? found / root.weight : 0;
}
