// Memory: the peak of the run, modules by three rankings, and the curve over the steps of a request.
const MEMORY_RANKS = [
  ["after", "Allocated after the module, mean", "mostly tells when a module runs"],
  ["difference", "Difference after - before, mean", "what a module leaves allocated"],
  ["rise", "Rise of the peak inside, total", "where the peak comes from"],
];
const signedBytes = (value) => (value > 0 ? "+" : "") + bytes(value);

function memoryTable(ranking, title, meaning) {
  const m = data.memory, known = new Map(m.modules.map((one) => [one.module, one]));
  const rows = m.top[ranking].map((name) => known.get(name)).filter(Boolean);
  return make("div", {}, make("b", { class: "small" }, title), make("div", { class: "small dim" }, meaning), make("table", {},
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Module"), ["after", "difference", "peak", "readings"].map((head) => make("th", { class: "num", scope: "col" }, head)))),
    make("tbody", {}, rows.map((one) => make("tr", {}, make("td", { class: "mono" }, one.module), make("td", { class: "num" }, bytes(one.after)), make("td", { class: "num" }, signedBytes(one.difference)),
      make("td", { class: "num" }, signedBytes(one.rise)), make("td", { class: "num" }, real(one.readings)))))));
}

function memoryView() {
  const m = data.memory;
  if (!m || !m.device) return null;
  const gib = typeof m.peak === "number" ? (m.peak / KI ** 3).toFixed(2) + " GiB" : ABSENT;
  return [make("h2", { id: "memory" }, "Memory"), make("div", { class: "panel scroll" },
    make("div", { class: "facts" }, fact("peak of the run", gib + (m.note ? " resident" : " allocated on " + m.device)), fact("steps read", real(m.steps)), fact("readings of modules", m.note ? null : real(m.readings))),
    m.note && make("div", { class: "dim" }, m.note),
    m.modules.length ? MEMORY_RANKS.map(([ranking, title, meaning]) => drawn(() => memoryTable(ranking, title, meaning))) : null)];
}

// Bytes at the start and end of each step, beside the highest so far.
function memoryCurve(request) {
  const used = [], high = [];
  for (const step of request.phases.flatMap((phase) => phase.steps)) {
    for (const [time, end] of [[step.at, "start"], [step.at + (step.us || 0), "end"]]) {
      const now = Number(step.attributes["inferspan.memory." + end]), most = Number(step.attributes["inferspan.memory.high_water." + end]);
      if (Number.isFinite(now)) used.push([time, now]);
      if (Number.isFinite(most)) high.push([time, most]);
    }
  }
  if (!used.length) return null;
  const total = request.us || used[used.length - 1][0] || 1, allocator = request.phases.some((phase) => phase.steps.some((step) => "inferspan.memory.reserved.start" in step.attributes));
  const line = (label, points) => ({ label, unit: "By", name: "inferspan.memory", points });
  const lines = [line(allocator ? "allocated" : "resident", used), ...(high.length ? [line("highest so far", high)] : [])];
  return [make("h3", {}, "Memory over the steps"), make("div", { class: "panel" }, make("div", { class: "timeline" }, curve("Memory", lines, { place: (time) => time / total * 100 })))];
}
