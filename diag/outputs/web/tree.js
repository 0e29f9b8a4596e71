// Merged stacks as a prefix tree: where the ranks part; those that stand apart first. Pure: no drawing here.

import { say, said } from "./words.js";

const WAITS = new Set(["collective", "backward"]); // activities in which a rank waits for its peers

/**
 * @typedef {{kind: string, ranks: number[], count: number, title: string, activity: string, frames: string[], path: string[],
 *   reason: string, role: string, waits: string, stands_seconds: number | null, moving_ranks: number[], standing_steps: number}} StackClass
 * @typedef {{key: string, ranks: number[], count: number, frames: string[], parts: Branch[], leaf: StackClass | null}} Branch
 */

/** @param {StackClass[]} classes of ranks @returns {Branch[]} */
export function treeOf(classes) {
  return classes.length ? [branch(classes, 0, 0, "")] : [];
}

/** The few before the many; of as many, those that do not wait for their peers. */
export function apart(one, two) {
  const size = (classes) => classes.reduce((sum, each) => sum + each.count, 0);
  const waits = (classes) => classes.every((each) => WAITS.has(each.activity)) ? 1 : 0;
  return size(one) - size(two) || waits(one) - waits(two) || (one[0].ranks[0] ?? 0) - (two[0].ranks[0] ?? 0);
}

function branch(classes, depth, shown, key) {
  const ranks = [...new Set(classes.flatMap((one) => one.ranks))].sort((one, two) => one - two);
  const count = classes.reduce((sum, one) => sum + one.count, 0);
  const first = classes[0];
  if (classes.length === 1) {
    const id = `${key}/${first.path.slice(depth).join("/") || "here"}/${first.reason}`;
    return { key: id, ranks, count, frames: first.frames.slice(shown), parts: [], leaf: first };
  }
  let end = depth;
  const least = Math.min(...classes.map((one) => one.path.length));
  while (end < least && classes.every((one) => one.path[end] === first.path[end])) end += 1;
  const id = `${key}/${first.path.slice(depth, end).join("/")}`;
  const groups = new Map();
  const ends = [];
  for (const one of classes) {
    if (one.path.length <= end) ends.push([one]);
    else if (groups.has(one.path[end])) groups.get(one.path[end]).push(one);
    else groups.set(one.path[end], [one]);
  }
  const parts = [...ends, ...groups.values()].sort(apart);
  return { key: id, ranks, count, frames: first.frames.slice(shown, end), leaf: null,
    parts: parts.map((group, index) => branch(group, end, end, group === ends[index] ? `${id}/${index}` : id)) };
}

/** "waiting 21 s", "moving", or what else there is to say of a class. */
export function standing(one, words) {
  if (one.kind === "missing") return `${say("no stack: ")}${said(one.reason)}`;
  if (one.stands_seconds) return say("unchanged for {time}", { time: words.seconds(one.stands_seconds) });
  if (!one.moving_ranks?.length) return "";
  return one.moving_ranks.length === one.ranks.length ? say("moving") : say("{ranks} moving", { ranks: words.rankWords(one.moving_ranks) });
}

export const waits = (one) => WAITS.has(one.activity);
