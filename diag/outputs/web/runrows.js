// What there is to say of a run that has ended, a row each. Pure.

import { bytes, clean, clock, percent, plural, seconds } from "./format.js";
import { summary } from "./series.js";
import { say } from "./words.js";

/** @returns {[string, string][]} those that something is known of */
export function rowsOf({ job, timeline, rows, head }) {
  const { steps } = job;
  const lasted = job.ended_at && head?.started_at ? job.ended_at - head.started_at : null;
  const slow = (steps?.slowest ?? []).filter((one) => one.seconds > 1.5 * (steps.seconds_median ?? Infinity));
  const read = (name) => (timeline?.series ?? []).filter((one) => one.name === name).map(summary).filter(Boolean);
  const most = (found) => (found.length ? Math.max(...found.map((one) => one.most)) : null);
  const [util, memory, watts] = ["gpu_utilization_ratio", "gpu_memory_bytes", "gpu_power_watts"].map(read);
  const rank = rows.filter((row) => row.peak_rss_bytes).sort((one, two) => two.peak_rss_bytes - one.peak_rss_bytes)[0];
  const group = most(read("memory_bytes"));
  const of = (value, limit) => bytes(value) + (limit ? say(" of {limit}", { limit: bytes(limit) }) : "");
  const mean = (found) => found.reduce((sum, one) => sum + one.mean, 0) / found.length;
  const found = [
    ["exit code", String(job.returncode)],
    ["lasted", lasted > 0 && `${seconds(lasted)} (${clock(head.started_at)} ${say("to")} ${clock(job.ended_at, head.started_at)})`],
    ["iterations", job.iteration !== null && (job.total_iterations ? say("{n} of {all}", { n: job.iteration.toLocaleString("en"),
      all: job.total_iterations.toLocaleString("en") }) : job.iteration.toLocaleString("en"))],
    ["a step", steps?.seconds_median && say("median {median}, 95th percentile {high}, of {n} steps", { median: seconds(steps.seconds_median),
      high: seconds(steps.seconds_p95), n: steps.count })],
    ["slowest", slow.length && slow.map((one) => say("iteration {n}: {time}", { n: one.iteration, time: seconds(one.seconds) })).join(", ")],
    ["time in phases", phases(timeline)],
    ["GPU utilisation", util.length && say("{mean} on average, of {gpus}", { mean: percent(mean(util)), gpus: plural(util.length, "GPU") })],
    ["GPU memory", memory.length && say("at most {size}", { size: of(most(memory), timeline.limits?.gpu_memory_bytes) })],
    ["GPU power", watts.length && say("at most {size}", { size: `${Math.round(most(watts))} W` })],
    ["memory of the job", group && say("at most {size}", { size: of(group, timeline.limits?.memory_bytes) })],
    ["memory of a rank", rank && say("at most {size}", { size: `${bytes(rank.peak_rss_bytes)}, rank ${rank.rank}` })],
  ];
  return found.filter(([, value]) => value);
}

/** The longest ones, by name. */
function phases(timeline) {
  if (!timeline?.phases?.length) return "";
  const end = timeline.began + timeline.count * timeline.width_seconds;
  const total = new Map();
  timeline.phases.forEach((one, index) => {
    const length = Math.max(0, (timeline.phases[index + 1]?.at ?? end) - one.at);
    total.set(one.phase, (total.get(one.phase) ?? 0) + length);
  });
  return [...total].filter(([, length]) => length >= 1).sort((one, two) => two[1] - one[1]).slice(0, 5)
    .map(([phase, length]) => `${say(clean(phase).replaceAll("_", " "))} ${seconds(length)}`).join(", ");
}
