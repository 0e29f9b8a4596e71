// What the page says, in English and Chinese: one table. The browser's language, until a person chooses. Text of the job and of
// findings is diag's own: where it has Chinese, the stream says so (`hear`), and `said` gives it.

const NAME = "diag.language";

/** English as the code has it, with {places}: its Chinese. */
export const WORDS = {
  // sections, keys
  "Skip to the findings": "跳到结论", Findings: "结论", Ranks: "Rank", Stacks: "调用栈", "Time line": "时间线", Nodes: "节点",
  Sections: "栏目", ", {n} over": "，{n} 个已过去", Keys: "快捷键", "keys (?)": "快捷键 (?)", Close: "关闭", "Language": "语言",
  "Manual: {id}": "手册：{id}", "next, previous finding": "下一个、上一个结论", "search ranks": "搜索 rank",
  "go to Dump now; Enter starts it": "转到“立即 dump”，按 Enter 开始", "move between ranks; Enter opens one": "在 rank 间移动，按 Enter 打开",
  "close the rank, a dialog, or clear the search": "关闭 rank、对话框，或清除搜索", "this list": "这份列表",
  findings: "结论", ranks: "rank", stacks: "调用栈", "time line": "时间线", nodes: "节点",
  // small parts
  "show less": "收起", "show all {n} characters": "显示全部 {n} 个字符", "{label} of {of}": "{label}（{of}）", text: "文本",
  copied: "已复制", "select it by hand": "请手动选中复制", "before its end": "（结束前）", ago: "前", "all {n}": "全部 {n} 个",
  "Copy command: {command}": "复制命令：{command}", "diag does not answer": "diag 没有应答", ".": "。", "{n} more": "还有 {n} 个",
  "the reason": "原因", "the summary": "摘要", "what was not checked": "未检查的内容", "this evidence": "此证据", "this frame": "此帧",
  "where it is": "所在位置", "its caller": "调用者", "what the kernel says": "内核的说法", "this thread": "此线程", to: "到", from: "从",
  "{n} rank": "{n} 个 rank", "{n} more rank": "还有 {n} 个 rank", "{n} trouble": "{n} 个问题", "{n} thread": "{n} 个线程",
  "{n} open file": "打开 {n} 个文件", "{n} child process": "{n} 个子进程", "{n} sample": "{n} 次采样",
  "{n} outer frame": "外层 {n} 帧", "{n} more node": "其余 {n} 个节点", "{n} piece": "{n} 条", "{n} worker": "{n} 个 worker",
  "{n} compile worker": "{n} 个编译进程", "{n} DataLoader worker": "{n} 个 DataLoader worker",
  // the top
  on: "位于", "this node": "本节点", "Theme: {theme}": "主题：{theme}", system: "跟随系统", light: "浅色", dark: "深色",
  ", with {troubles}": "，有 {troubles}", "Waiting for the first report…": "等待第一份报告…", at: "于", since: "始于", started: "启动于",
  "connecting…": "正在连接…", "diag has ended; last state": "diag 已结束；最后的状态",
  "diag does not answer; last known state": "diag 没有应答；最后已知的状态", recorded: "录制", live: "实时", Connection: "连接",
  shorter: "收起", "whole command": "完整命令", "Copy command of the job": "复制任务的命令", "recorded in": "录制于", until: "截至",
  "Since when, and what runs": "何时开始、运行什么",
  // the job in numbers
  "The job in numbers": "任务的主要数字", Iteration: "迭代", ", about {time} left": "，约剩 {time}", "{n} tokens/s a GPU": "每卡 {n} tokens/s",
  "at most {n} tokens/s a GPU": "每卡至多 {n} tokens/s", "{n} samples/s": "{n} samples/s", "median {time}": "中位数 {time}",
  "lowest {share}, {rank}": "最低 {share}，{rank}", "memory {share}": "显存 {share}", "GPUs, mean": "GPU（平均）", "Open findings": "未解除的结论",
  "{n} over": "{n} 个已过去", "{n} not checked": "{n} 项未检查", Lasted: "历时", "Runs for": "已运行",
  // a run that has ended
  "The run in short": "运行概要", "exit code": "退出码", iterations: "迭代", "a step": "每步", slowest: "最慢", "time in phases": "各阶段用时",
  "{n} of {all}": "{n}/{all}", "median {median}, 95th percentile {high}, of {n} steps": "中位数 {median}，第 95 百分位 {high}，共 {n} 步",
  "iteration {n}: {time}": "第 {n} 步：{time}", "{mean} on average, of {gpus}": "平均 {mean}，{gpus}", "{n} GPU": "{n} 块 GPU",
  "at most {size}": "最高 {size}", "memory of the job": "任务的内存", "memory of a rank": "单个 rank 的内存",
  "The job has ended: no process is left to look at.": "任务已结束，没有进程可看。",
  // states, severities, confidence
  hung: "卡住", "held-up": "被拖住", dead: "已死", failed: "失败", starting: "启动中", checkpointing: "存 checkpoint", running: "运行中",
  finished: "已完成", stopped: "已停止", slow: "偏慢", stalled: "在等", delaying: "拖住别人", named: "有结论指向", "not seen": "没有看到", unknown: "未知",
  "the hang starts here": "卡住从这里开始", "the process died": "进程已死", "holds up the others": "拖住了其他 rank",
  "waits for such a rank": "在等这样的 rank", "writes a checkpoint": "在写 checkpoint", "not at its first step yet": "还没到第一步",
  "at work": "在干活", "ended well": "正常结束", critical: "严重", warning: "警告", info: "提示", high: "高", medium: "中", low: "低",
  "over, was critical": "已过去，当时为严重", "over, was warning": "已过去，当时为警告", "over, was info": "已过去，当时为提示",
  // findings
  "No findings were reported yet.": "还没有报告任何结论。", "; some checks could not run, see below": "；有些检查没能做，见下",
  "nothing open, {n} over": "没有未解除的，{n} 个已过去", "nothing found": "未发现问题", "Nothing found": "未发现问题",
  "Nothing is open; {n} is over": "没有未解除的结论；{n} 个已过去", "Nothing is open; {n} are over": "没有未解除的结论；{n} 个已过去",
  ", see below": "，见下", "Past findings ({n})": "已过去的结论（{n}）", "Not checked ({n})": "未检查（{n}）", "Explain {id}": "解释 {id}",
  "over at": "结束于", ", open when the job ended": "，任务结束时仍未解除", "Copy for a ticket": "复制成工单", "then: ": "当时：",
  culprit: "根源", waiting: "在等", hosts: "主机", cause: "原因", confidence: "置信度", reported: "报告于", "reported by": "报告者",
  "Culprit ranks": "根源 rank", "Waiting ranks": "在等的 rank", "What to do": "处理办法", "Copy advice": "复制处理办法",
  "Evidence ({n})": "证据（{n}）", "Copy evidence": "复制证据", "Show all {n}": "显示全部 {n} 条",
  "evidence kept": "已留存证据", "stands for": "已停住", "stood for": "停住", when: "时机", because: "原因", also: "另外", seen: "看到",
  "waits for it": "在等它", "waited for it": "当时在等它",
  // the page as a file
  Report: "报告", "this page as one file, to send: it opens without diag and without a network": "把此页存成一个文件，便于发送：无需 diag 和网络即可打开",
  "A report that was saved as a file:": "已存成文件的报告：", "Cut to keep the file small:": "为了控制文件大小而省略：",
  "this report does not hold it": "此报告中没有它",
  // a ticket
  "{severity} {title}: {confidence} confidence, since {since}": "{severity} {title}：置信度{confidence}，始于 {since}", ", over {at}": "，结束于 {at}",
  "culprit: {ranks}": "根源：{ranks}", "waiting: {ranks}": "在等：{ranks}", "cause: {cause}": "原因：{cause}", "advice: {advice}": "处理：{advice}",
  "evidence ({pieces}):": "证据（{pieces}）：", "job: {sentence}": "任务：{sentence}", "command: {command}": "命令：{command}",
  "run {run} on {host}, diag {version}": "运行 {run}，节点 {host}，diag {version}", ", recorded in {path}": "，录制于 {path}",
  // dump
  "recorded evidence: there is no live process to read": "已录制的证据：没有可读的活动进程",
  "read stacks and state of all ranks now and save them as a bundle": "立即读取所有 rank 的调用栈和状态，存成证据包",
  "Download the bundle": "下载证据包", "Notify me": "通知我", "this browser refuses notifications of this page": "此浏览器拒绝了本页的通知",
  "a notification on the desktop when a critical finding is new": "出现新的严重结论时发桌面通知",
  "Dump now": "立即 dump", Dump: "Dump", "Close dump": "关闭 dump", "Reading all ranks": "正在读取所有 rank", "No dump: ": "没有 dump：",
  "{ranks} in {time}": "{ranks}，用时 {time}", bundle: "证据包", "Copy bundle path": "复制证据包路径", "look again": "再看一次",
  "no bundle": "没有证据包", next: "下一步", missing: "缺少", "Copy dump": "复制 dump", "Text of the dump": "dump 的文本",
  // ranks
  "No rank was seen yet.": "还没有看到 rank。", "No ranks were received yet.": "还没有收到 rank。", "Filter by state": "按状态筛选",
  "a finding names it": "有结论指向它", "Search ranks": "搜索 rank", "rank, 8-15, host, function, pid": "rank、8-15、主机、函数、pid",
  "{ranks} of {n} matches": "{n} 个中有 {ranks}符合", "{ranks} of {n} match": "{n} 个中有 {ranks}符合", "{n} selected: ": "已选 {n} 个：",
  clear: "清除", "show all": "显示全部", "{ranks} of the job not seen here": "任务中{ranks}在这里没有看到",
  "Ranks named by findings": "结论指向的 rank", "and {n} more: filter by “named”": "还有 {n} 个：用“有结论指向”筛选",
  "Ranks by node": "按节点排列的 rank", "in {function}": "在 {function}", "unknown host": "未知主机", "node {n}, {name}": "节点 {n}，{name}",
  "named by {id}": "{id} 指向它", "Colour by": "按此着色", "Unlike the others": "与其他不同",
  "time since it moved": "距上次进展", "GPU temperature": "GPU 温度", "memory (RSS)": "内存（RSS）", "local rank {n}": "local rank {n}",
  "share of a step: waits for peers": "一步中等其他 rank 的比例", "share of a step: {kind}": "一步中的比例：{kind}",
  "{metric} {value}, median {usual}": "{metric} {value}，中位数 {usual}", forward: "前向", optimizer: "优化器", "cpu optimizer": "CPU 优化器",
  // one rank
  "Rank {n}": "Rank {n}", "Named by": "指向它的结论：", "diag on this node has not seen this rank.": "本节点的 diag 没有看到这个 rank。",
  "Its stacks, flame graph and time line are on the page of its node": "它的调用栈、火焰图和时间线在它所在节点的网页上",
  "(with the run's token)": "（要带这次运行的 token）", ". “Dump now” reads the stacks of all nodes.": "。“立即 dump”会读取所有节点的调用栈。",
  "is in": "停在", "called from": "调用者", activity: "在做", "there since": "停留", "no stack": "没有调用栈", "last progress": "最近进展",
  ended: "结束", phase: "阶段", process: "进程", place: "位置", CPU: "CPU", memory: "内存", GPU: "GPU", holds: "占有", limits: "上限",
  network: "网络", unlimited: "不限", " (in {context})": "（在 {context} 中）", "pid {pid} on {host}": "pid {pid}，节点 {host}",
  ", state {state} ({means})": "，状态 {state}（{means}）", ", node {n}": "，节点 {n}", "{share} of a core": "占一个核的 {share}",
  ", peak {size}": "，峰值 {size}", "{share} busy, {used} of {total}": "利用率 {share}，显存 {used}/{total}", " of {limit}": "（上限 {limit}）",
  "locked memory {size}": "锁定内存 {size}", "processes {n}": "进程数 {n}", "RDMA library loaded": "已加载 RDMA 库", "no RDMA library": "没有 RDMA 库",
  "open: {names}": "打开着：{names}", "no RDMA device open": "没有打开 RDMA 设备", runs: "运行", sleeps: "睡眠",
  "uninterruptible (in the kernel)": "不可中断（在内核里）", "stopped by a signal": "被信号暂停", "stopped by a tracer": "被调试器暂停",
  "ended, not reaped": "已结束，未回收", idle: "空闲", "?": "?", "Time of a step": "一步的时间", "{samples} of the main thread": "主线程 {samples}",
  "Stacks of rank {n}": "rank {n} 的调用栈", "Read again": "重新读取", read: "读于", "Copy stacks": "复制调用栈",
  "child pid {pid}": "子进程 pid {pid}", "no Python": "没有 Python", "{children} waiting for work": "{children}在等活", "Reading…": "正在读取…",
  "thread {id}": "线程 {id}", " (main)": "（主线程）", " (trains)": "（训练线程）", ", holds the GIL": "，持有 GIL", ", active": "，活动",
  "Time line of rank {n}": "rank {n} 的时间线", "Nothing was read of its process or GPU.": "没有读到它的进程或 GPU 的数据。",
  "Nothing was read of its process or GPU in {time}.": "{time} 内没有读到它的进程或 GPU 的数据。",
  // flame graphs
  all: "全部", "Search frames": "搜索帧", "function, file": "函数、文件", "{share} of all matches": "匹配的占全部的 {share}", "Open alone": "单独打开", "collapsed stacks": "collapsed 文本", "(recorded anew)": "（新录制的）", "Flame graph {name}": "火焰图（{name}）",
  "of all ranks": "全部 rank", "Flame graph of rank {n}": "rank {n} 的火焰图", "Flame graph": "火焰图", Seconds: "秒数", Draw: "绘制", Record: "录制",
  "the rank has ended": "该 rank 已结束", "from the recorded stacks": "用已录制的调用栈", "all threads; the rank goes on": "所有线程；rank 照常运行",
  "Recording rank {n}": "正在录制 rank {n}", "No flame graph: ": "没有火焰图：", "{gone} of {length}": "{gone} / {length}", "of rank {n}": "rank {n}",
  // stacks
  "No stacks were received yet.": "还没有收到调用栈。", "Children at work": "在干活的子进程", "Without a stack": "没有调用栈的",
  "Children that wait for work": "在等活的子进程",
  "Where the main threads are, outermost frame first; outliers come first.": "主线程停在哪里，外层帧在前；与众不同的排在最前。",
  " Of this node; “Dump now” reads all nodes.": "这里是本节点的；“立即 dump”读取所有节点。", "Flame graph of all ranks": "全部 rank 的火焰图",
  "No stack of a rank was read:": "没有读到 rank 的调用栈：", "No stack of a rank was read yet.": "还没有读到 rank 的调用栈。", Expand: "展开", Collapse: "折叠",
  "all share": "全部相同", "{n} share": "{n} 个相同", "Copy stack of {ranks}": "复制 {ranks} 的调用栈", "kernel: ": "内核：",
  "{n} more places": "还有 {n} 处", "hide outer frames": "隐藏外层帧", "waiting for work": "在等活", "child of {ranks}": "{ranks} 的子进程",
  "no stack: ": "没有调用栈：", "unchanged for {time}": "{time} 没有变化", moving: "在动", "{ranks} moving": "{ranks} 在动",
  // nodes
  "Nodes, table": "节点表", "Nodes, those that are gone or silent first": "节点，先列没了的和没有消息的", node: "节点", host: "主机", state: "状态",
  heard: "最近消息", "round trip": "往返", "clock ahead": "时钟快", "Show {nodes}": "显示{nodes}", gone: "没了", silent: "没有消息", known: "已知",
  // time line
  "Last 5 min": "最近 5 分", "Last hour": "最近 1 小时", "Last day": "最近 1 天", "Nothing that changes over time was read yet.": "还没有读到随时间变化的数据。",
  "GPUs, memory and networks are those of this node.": "GPU、内存和网络是本节点的。", "{at}, {time} after the start": "{at}，启动后 {time}",
  "; drag in a chart to zoom": "；在图上拖动可放大", "Reset zoom": "还原", Phases: "阶段",
  "No numbers were read yet: no step was logged, and no GPU, memory or network was seen.": "还没有读到数据：日志里没有训练步，也没有看到 GPU、内存或网络。",
  "Quiet charts ({n}): ": "平静的图（{n}）：", "Values as a table": "以表格显示数值", " (over)": "（已过去）", Values: "数值", "Each series over the whole run": "各序列在整个运行期间", series: "序列",
  last: "最近", lowest: "最低", mean: "平均", highest: "最高", limit: "上限", lasted: "持续", "Step time": "单步用时", Loss: "Loss",
  "GPU utilisation": "GPU 利用率", "GPU memory": "显存", "GPU power": "GPU 功耗", "CPU of the ranks": "各 rank 的 CPU",
  "Memory of the ranks (RSS)": "各 rank 的内存（RSS）", "Memory of the job's cgroup": "任务 cgroup 的内存", "Memory of the host": "主机内存",
  Network: "网络", "/dev/shm": "/dev/shm", RDMA: "RDMA", sockets: "socket", "{last}, from {least} to {most}": "{last}，从 {least} 到 {most}",
  "; limit {value}": "；上限 {value}", "; {n} more in the table": "；表格里还有 {n} 条", ", limit {value}": "，上限 {value}",
  " ({low} to {high} of {n})": "（{n} 个，{low} 到 {high}）",
  // what threads and jobs do
  collective: "集合通信", backward: "反向", "gpu sync": "等 GPU", rendezvous: "会合", "comm init": "建通信域", data: "取数据",
  preprocess: "预处理", checkpoint: "checkpoint", compile: "编译", "file lock": "文件锁", teardown: "收尾", service: "等服务", lock: "锁",
  other: "其他", "model load": "加载模型", "data prep": "准备数据", "first step": "第一步", train: "训练", training: "训练", eval: "评估",
  evaluation: "评估", launch: "启动", imports: "导入", startup: "启动", preflight: "运行前检查",
};

let chosen = (globalThis.navigator?.language ?? "").toLowerCase().startsWith("zh") ? "zh" : "en";
const root = globalThis.document?.documentElement; // none where a test reads a module alone
try {
  const kept = localStorage.getItem(NAME);
  if (kept === "en" || kept === "zh") chosen = kept;
} catch { /* a browser that keeps nothing */ }
if (root) root.lang = chosen;

export const language = () => chosen;

const listeners = new Set();

/** Told after each change. @param {() => void} tell */
export const onLanguage = (tell) => listeners.add(tell);

export function nextLanguage() {
  chosen = chosen === "zh" ? "en" : "zh";
  try {
    localStorage.setItem(NAME, chosen);
  } catch { /* as above */ }
  if (root) root.lang = chosen;
  listeners.forEach((tell) => tell());
}

/** A text of the table in the language of the page, `values` in its places. What the table lacks stays as it is.
 * @param {any} english @param {Record<string, any>} values */
export function say(english, values = {}) {
  if (typeof english !== "string") return english;
  const text = chosen === "zh" && Object.hasOwn(WORDS, english) ? WORDS[english] : english;
  return text.replace(/\{(\w+)\}/g, (place, name) => (Object.hasOwn(values, name) ? String(values[name]) : place));
}

/** Of each part of the stream: English sentences of diag, and their Chinese. @type {Map<string, Map<string, string>>} */
const sentences = new Map();

/** @param {string} data as the stream sends it: {part: {English: Chinese}} */
export function hear(data) {
  let parts;
  try {
    parts = JSON.parse(data);
  } catch {
    return; // cut off with its connection
  }
  for (const [part, texts] of Object.entries(parts)) sentences.set(part, new Map(Object.entries(texts)));
}

/** A sentence of diag in the language of the page, as far as diag told its Chinese. @param {any} english */
export function said(english) {
  if (chosen !== "zh" || typeof english !== "string") return english;
  for (const texts of sentences.values()) if (texts.has(english)) return texts.get(english);
  return english;
}
