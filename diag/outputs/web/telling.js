// A finding's sentence in parts: what is claimed, for how long, after what, why, who waits where. Pure. What is not put together
// as expected stays in the claim: nothing is lost.

const SPAN = String.raw`\d[\d.,]* ?(?:µs|ms|s|min|h|d)(?: \d+ (?:s|min|h))?`;
const PHASES = "after|while|before|in training|during";
const ENGLISH = new RegExp(String.raw`^(.+?) for ((?:at least )?${SPAN})(?: ((?:${PHASES})[^:;]*?))?(?:: (.+))?$`, "s");
const UNIT = "(?:微秒|毫秒|秒|分钟|分|小时|天)";
const CHINESE = new RegExp(String.raw`^(.+?)，已((?:至少)? ?\d[\d.,]* ?${UNIT}(?: ?\d+ ?${UNIT})?)(?:，(在[^：；]*?(?:之后|之前|时|期间)))?(?:：(.+))?$`, "s");
const SEEN = /^(.*?) ?[(（]([^()（）]*\d+ of \d+ ranks seen|看到 \d+\/\d+ 个 rank)[)）]$/s;
const PAIRS = { "(": ")", "（": "）", "[": "]", "`": "`", '"': '"', "“": "”" };

/** Splits where `mark` stands outside brackets and quotations. @param {string} text @param {RegExp} mark sticky @returns {string[]} */
export function apartAt(text, mark) {
  const found = [];
  const open = [];
  let from = 0;
  for (let at = 0; at < text.length; at += 1) {
    const char = text[at];
    if (open.length && char === open[open.length - 1]) open.pop();
    else if (Object.hasOwn(PAIRS, char) && !['"', "`"].includes(open[open.length - 1])) open.push(PAIRS[char]);
    else if (!open.length) {
      mark.lastIndex = at;
      const hit = mark.exec(text);
      if (hit) {
        found.push(text.slice(from, at));
        from = at + hit[0].length;
        at = from - 1;
      }
    }
  }
  if (open.length) return [text]; // a quotation that was cut: no mark in it is ours
  return [...found, text.slice(from)].map((one) => one.trim()).filter(Boolean);
}

/**
 * @param {string} summary in English or Chinese
 * @param {{standing: boolean, waiting: boolean}} of `standing`: it says how long something stands; `waiting`: ranks wait
 * @returns {{claim: string, span: string, after: string, why: string, waits: string[], more: string[], seen: string}}
 */
export function told(summary, { standing, waiting }) {
  const ended = SEEN.exec(summary);
  const [first = "", ...rest] = apartAt(ended ? ended[1] : summary, /; |；/y);
  const parts = standing ? ENGLISH.exec(first) ?? CHINESE.exec(first) : null;
  // The last clause of a standstill that others wait for is theirs.
  const theirs = standing && waiting && rest.length && /^(?:ranks?|all) .*(?:waits?|等)/s.test(rest[rest.length - 1]) ? rest.pop() : "";
  return {
    claim: parts ? parts[1] : first, span: parts?.[2]?.trim() ?? "", after: parts?.[3] ?? "", why: parts?.[4] ?? "",
    waits: theirs ? apartAt(theirs, /, (?=ranks? )|，(?=rank )/y) : [], more: rest, seen: ended?.[2] ?? "",
  };
}
