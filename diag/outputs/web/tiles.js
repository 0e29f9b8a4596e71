// The state of the job as a row of numbers: how far, how fast, who is there, what the GPUs do, what is open.

import { clean, percent, plural, rankWords, seconds } from "./format.js";
import { jobNow, useStore } from "./store.js";
import { html } from "./ui.js";
import { say } from "./words.js";

const GOES_ON = ["running", "checkpointing"];

const grouped = (value) => value.toLocaleString("en");
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

export function Tiles() {
  const { report, ranks, head } = useStore("report", "ranks", "head", "now");
  const job = report?.job;
  if (!job) return null;
  const rows = [...ranks.values()];
  const shown = [progress(job), speed(job), present(job, rows), gpus(rows), opened(report), lasted(job, head)].filter(Boolean);
  return html`<dl class="tiles" aria-label=${say("The job in numbers")}>${shown.map((tile) => html`<div key=${tile.name}
    class="tile ${tile.kind ?? ""}"><dt>${tile.name}</dt><dd><b class="num">${tile.value}</b>
      ${tile.share === undefined ? null : html`<progress max="1" value=${tile.share} aria-label=${tile.name}></progress>`}
      ${tile.beside ? html`<small>${tile.beside}</small>` : null}</dd></div>`)}</dl>`;
}

/** Seconds to the last iteration at the present pace; null where nothing says so. @param {any} job of diag.report/1 */
export function left(job) {
  const [done, all, pace] = [job.iteration, job.total_iterations, job.steps?.seconds_now];
  if (!all || done === null || done === undefined || !pace || done > all || !GOES_ON.includes(job.state)) return null;
  return (all - done) * pace;
}

function progress(job) {
  const { iteration, total_iterations: all } = job;
  if (iteration === null || iteration === undefined) return null;
  if (!all || iteration > all) return { name: say("Iteration"), value: job.step_words ? clean(job.step_words) : grouped(iteration) };
  const rest = left(job);
  return { name: say("Iteration"), value: `${grouped(iteration)} / ${grouped(all)}`, share: iteration / all,
    beside: percent(iteration / all) + (rest ? say(", about {time} left", { time: seconds(rest) }) : "") };
}

function speed(job) {
  const { steps, speed: fast } = job;
  const now = steps?.seconds_now ?? steps?.seconds_median;
  if (!now) return null;
  const beside = [];
  if (fast?.tokens_per_gpu_second) {
    const words = { n: grouped(Math.round(fast.tokens_per_gpu_second)) };
    beside.push(fast.at_most ? say("at most {n} tokens/s a GPU", words) : say("{n} tokens/s a GPU", words));
    if (fast.mfu) beside.push(`MFU ${percent(fast.mfu)}`);
  } else if (steps.samples_per_second) {
    beside.push(say("{n} samples/s", { n: Number(steps.samples_per_second.toPrecision(3)) }));
  }
  const usual = steps.seconds_median ? seconds(steps.seconds_median) : "";
  if (usual && usual !== seconds(now)) beside.push(say("median {time}", { time: usual }));
  return { name: say("Step time"), value: seconds(now), beside: beside.slice(0, 2).join(", ") };
}

function present(job, rows) {
  const all = Math.max(job.world_size ?? 0, rows.length);
  if (!all) return null;
  const counts = new Map();
  for (const row of rows) counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
  const few = [...counts].sort((one, two) => one[1] - two[1]).slice(0, 3);
  return { name: say("Ranks"), value: `${grouped(rows.length)} / ${grouped(all)}`, kind: rows.length < all ? "warning" : "",
    beside: few.map(([state, count]) => `${grouped(count)} ${say(clean(state))}`).join(", ") };
}

function gpus(rows) {
  const read = rows.filter((row) => Number.isFinite(row.gpu?.utilization_ratio) && !row.exit);
  if (!read.length) return null;
  const least = read.reduce((least, row) => Math.min(least, row.gpu.utilization_ratio), Infinity);
  const there = read.filter((row) => row.gpu.utilization_ratio === least);
  const full = read.filter((row) => row.gpu.memory_used_bytes && row.gpu.memory_total_bytes)
    .map((row) => row.gpu.memory_used_bytes / row.gpu.memory_total_bytes);
  const beside = [read.length > 1 ? say("lowest {share}, {rank}", { share: percent(least),
    rank: there.length > 1 ? plural(there.length, "rank") : rankWords([there[0].rank]) }) : "",
    full.length ? say("memory {share}", { share: percent(Math.max(...full)) }) : ""];
  return { name: say(read.length > 1 ? "GPUs, mean" : "GPU"), value: percent(mean(read.map((row) => row.gpu.utilization_ratio))),
    beside: beside.filter(Boolean).join(", ") };
}

function opened(report) {
  const open = report.findings ?? [];
  const grave = ["critical", "warning"].find((one) => open.some((finding) => finding.severity === one));
  const over = (report.past?.length ?? 0) + (report.past_left_out ?? 0);
  const unchecked = report.not_checked?.length ?? 0;
  const beside = [over ? say("{n} over", { n: over }) : "", unchecked ? say("{n} not checked", { n: unchecked }) : ""];
  const kinds = ["critical", "warning", "info"].map((one) => [open.filter((finding) => finding.severity === one).length, one])
    .filter(([count]) => count);
  return { name: say("Open findings"), value: kinds.length ? kinds.map(([count, one]) => `${count} ${say(one)}`).join(", ") : "0",
    kind: grave ?? "", beside: beside.filter(Boolean).join(", ") };
}

function lasted(job, head) {
  if (!head?.started_at) return null;
  const until = job.ended_at ?? jobNow();
  if (until <= head.started_at) return null;
  return { name: say(job.ended_at ? "Lasted" : "Runs for"), value: seconds(Math.floor(until - head.started_at)) };
}
