// Where each of very many ranks stands in one picture, so that all fit: nodes beside each other, in several bands. Pure.

const LARGEST = 22; // pixels a cell
const TALLEST = 16; // ranks below each other; a larger node takes several columns
const GUTTER = 4;
const BAND = 16; // pixels for the numbers of the nodes

/** @typedef {{host: string, node: number | null, rows: any[]}} Node */

/** Where each rank stands. Pure. @param {Node[]} nodes @returns {{cell: number, step: number, width: number, height: number, perBand: number,
 *   tall: number, columns: {node: Node, from: number}[], place: Map<number, [number, number]>}} */
export function layoutOf(nodes, width, tallest) {
  const sizes = nodes.map((node) => Math.max(node.rows.length, ...node.rows.map((row) => (row.local_rank ?? 0) + 1)));
  const own = nodes.map((node, at) => sizes[at] <= 4 * node.rows.length); // by local rank, where those are a node's own
  const tall = Math.min(TALLEST, Math.max(1, ...nodes.map((node, at) => (own[at] ? sizes[at] : node.rows.length))));
  const columns = [];
  const place = new Map();
  nodes.forEach((node, at) => {
    const first = columns.length;
    const slots = own[at] ? sizes[at] : node.rows.length;
    for (let from = 0; from < slots; from += tall) columns.push({ node, from });
    const taken = new Set();
    node.rows.forEach((row, index) => {
      let slot = own[at] && row.local_rank !== null && row.local_rank !== undefined ? row.local_rank : index;
      if (taken.has(slot)) slot = [...Array(slots).keys()].find((one) => !taken.has(one)) ?? index;
      taken.add(slot);
      place.set(row.rank, [first + Math.floor(slot / tall), slot % tall]);
    });
  });
  const sized = (cell) => {
    const step = cell + (cell >= 6 ? 2 : cell >= 3 ? 1 : 0);
    const perBand = Math.max(1, Math.floor((width - 2 * GUTTER) / step));
    return { cell, step, perBand, height: Math.ceil(columns.length / perBand) * (tall * step + BAND) + GUTTER };
  };
  let size = sized(LARGEST);
  for (let cell = LARGEST - 1; cell >= 2 && size.height > tallest; cell -= 1) size = sized(cell);
  return { ...size, width, tall, columns, place };
}

export const cornerOf = ({ perBand, step, tall }, [column, row]) => [GUTTER + (column % perBand) * step,
  BAND + Math.floor(column / perBand) * (tall * step + BAND) + row * step];

/** The place under a point; null beside all. */
export function placeAt({ perBand, step, tall, columns }, x, y) {
  const band = Math.floor(y / (tall * step + BAND));
  const [inBand, row] = [Math.floor((x - GUTTER) / step), Math.floor((y - band * (tall * step + BAND) - BAND) / step)];
  const column = band * perBand + inBand;
  return inBand < 0 || inBand >= perBand || row < 0 || row >= tall || column >= columns.length || band < 0 ? null : [column, row];
}

/** The rank that a key leads to; null for other keys. */
export function rankFrom(layout, rankAt, rank, key) {
  const [column, row] = layout.place.get(rank);
  const far = [...rankAt.keys()].sort((one, two) => one - two);
  if (key === "Home" || key === "End") return rankAt.get(far[key === "Home" ? 0 : far.length - 1]);
  const way = { ArrowRight: layout.tall, ArrowLeft: -layout.tall, ArrowDown: 1, ArrowUp: -1 }[key];
  if (!way) return null;
  for (let at = column * layout.tall + row + way; at >= 0 && at <= far[far.length - 1]; at += way) if (rankAt.has(at)) return rankAt.get(at);
  return rank;
}
