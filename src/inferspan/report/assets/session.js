// The session on one axis of time: what the program did, its requests, and below them memory, GPU, power and CPU.
const LANES = 8;
const BEGIN = data.session.start_ns ? Number(BigInt(data.session.start_ns) / 1000n) / 1000 : null;
const sinceBegin = (milliseconds) => (milliseconds - BEGIN) * 1e3;
const KINDS = new Map([["stage", "var(--c1)"], ["session", "var(--c6)"], ["load", "var(--c5)"], ["batch", "var(--c0)"], ["caller", "var(--c4)"]]);

// Title, names of metrics, and what is added up or told apart: a curve for each process and device.
const CURVES = [
  ["GPU utilisation", [["hw.gpu.utilization", (a) => !a["hw.gpu.task"] || a["hw.gpu.task"] === "general"]]],
  ["GPU memory", [["hw.gpu.memory.usage"], ["inferspan.torch.memory.allocated"]]],
  ["GPU power", [["hw.power"]]],
  ["CPU", [["process.cpu.utilization"]]],
  ["Memory", [["process.memory.usage"]]],
];

function curveLines(sources) {
  const lines = new Map();
  for (const [name, wanted] of sources) {
    for (const series of data.series) {
      if (series.name !== name || series.histogram || (wanted && !wanted(series.attributes))) continue;
      const points = series.points.filter(([time, value]) => time !== null && value !== null).map(([time, value]) => [sinceBegin(time), Number(value)]);
      const device = series.attributes["hw.name"] || series.attributes["inferspan.device.id"] || series.attributes["hw.id"];
      const label = [device, name.startsWith("inferspan.torch") ? "allocated by torch" : null, data.resources.length > 1 ? processName(series.resource) : null].filter(Boolean).join(", ") || "this process";
      // Modes of the CPU add up to its use.
      const known = lines.get(label);
      if (known && name.includes("cpu")) points.forEach(([time, value], place) => { if (known.points[place]) known.points[place][1] += value; });
      else if (points.length) lines.set(label, { label, unit: series.unit, name, points });
    }
    if (lines.size) break;
  }
  return [...lines.values()];
}

function curve(title, lines, range) {
  const unit = lines[0].unit, name = lines[0].name, show = (value) => inUnit(value, unit, name);
  const most = Math.max(highest(lines.flatMap((line) => line.points.map(([, value]) => value))), unit === "1" && name.startsWith("hw.") ? 1 : 0) || 1;
  const within = (place) => Math.max(-1e5, Math.min(1e5, place)), x = (time) => within(range.place(time) * 10), y = (value) => within(58 - value / most * 52);
  const paths = lines.map((line, number) => drawing("path", { style: "stroke:" + cssColour(number), d: line.points.map(([time, value], place) => (place ? "L" : "M") + x(time).toFixed(1) + " " + y(value).toFixed(1)).join("") + (line.points.length === 1 ? "h4" : "") }));
  const tipText = () => lines.map((line) => line.label + ": " + counted(line.points.length, "reading") + ", " + show(lowest(line.points.map(([, v]) => v))) + " to " + show(highest(line.points.map(([, v]) => v)))).join("\n");
  return make("div", { class: "row curve", tip: tipText }, make("div", { class: "label" }, title, make("div", { class: "small dim" }, "0 to " + show(most)),
    lines.length > 1 && make("div", { class: "small" }, lines.slice(0, 8).map((line, number) => make("div", { class: "legend" }, make("span", {}, make("i", { style: { background: cssColour(number) } }), line.label))))),
  make("div", { class: "track" }, drawing("svg", { class: "plot", viewBox: "0 0 1000 60", preserveAspectRatio: "none", role: "img", "aria-label": title + " over time: " + tipText() }, ...paths)));
}

function sessionBars() {
  const bars = data.bars.filter((bar) => bar[3] !== null).map(([kind, name, process, start, us, failed]) => ({ kind, name, process, at: sinceBegin(start), us: us || 0, failed, colour: KINDS.get(kind) }));
  const requests = data.requests.filter((request) => request.startMs !== null).map((request) => ({ kind: "request", name: request.number + ": " + request.row.name, process: request.resource, at: sinceBegin(request.startMs),
    us: request.us || 0, failed: request.row.failed, colour: request.row.failed ? "var(--bad)" : "var(--decode)", request }));
  return [...bars, ...requests];
}

function sessionLanes(bars, range, choose) {
  const processes = [...new Set(bars.map((bar) => bar.process))].sort((a, b) => a - b);
  return processes.flatMap((process) => [["The program", (bar) => bar.kind !== "request"], ["Requests", (bar) => bar.kind === "request"]].flatMap(([title, belongs]) => {
    const { rows, left } = packed(bars.filter((bar) => bar.process === process && belongs(bar)), LANES);
    const label = title + (processes.length > 1 ? ", " + processName(process) : "");
    const lanes = rows.map((row, number) => make("div", { class: "row" }, make("div", { class: "label" + (number ? " dim" : "") }, number ? "" : label),
      make("div", { class: "track" }, row.filter((bar) => bar.at <= range.to && bar.at + bar.us >= range.from).map((bar) => {
        const begin = Math.max(0, range.place(bar.at)), end = Math.min(100, range.place(bar.at + bar.us));
        return make("div", { class: "bar named" + (bar.failed ? " failed" : ""), style: { left: begin + "%", width: Math.max(0, end - begin) + "%", background: bar.colour },
          tip: bar.kind + " " + bar.name + (bar.failed ? " (failed)" : "") + "\n" + micros(bar.us) + ", starts at " + micros(bar.at),
          onclick: bar.request ? () => { if (!range.dragged) choose(bar.request); } : null }, end - begin > 5 ? bar.name : "");
      }))));
    return left ? [...lanes, make("div", { class: "small dim" }, counted(left, "more bar") + " at the same time not drawn")] : lanes;
  }));
}

function sessionView(choose) {
  const bars = BEGIN === null ? [] : sessionBars();
  const curves = BEGIN === null ? [] : CURVES.map(([title, sources]) => [title, curveLines(sources)]).filter(([, lines]) => lines.length);
  if (!bars.length) return null;
  const ends = [...bars.map((bar) => bar.at + bar.us), ...curves.flatMap(([, lines]) => lines.flatMap((line) => line.points.map(([time]) => time)))];
  const total = ends.reduce((a, b) => Math.max(a, b), 0) || 1;
  const chart = make("div", { class: "timeline", tabindex: 0, role: "group", "aria-label": "timeline of the session: plus and minus zoom, arrows move, 0 shows all; the requests are in the table below" });
  const range = zoomRange(total, (now) => chart.replaceChildren(rangeAxis(now, "since the start"), ...sessionLanes(bars, now, choose), ...curves.map(([title, lines]) => drawn(() => curve(title, lines, now)))));
  zoomHandles(chart, range, () => chart.querySelector(".axis") || chart, true);
  range.reset();
  const kinds = [...new Set(bars.map((bar) => bar.kind))].filter((kind) => KINDS.has(kind));
  return [make("h2", { id: "session" }, "Timeline"), make("div", { class: "panel" }, make("div", { class: "legend" }, zoomButtons(range, "the timeline"),
    kinds.map((kind) => make("span", {}, make("i", { style: { background: KINDS.get(kind) } }), kind === "caller" ? "caller (other library)" : kind))), chart)];
}

// Events that stand on no request: on a stage or session of the program, or alone.
function momentsView() {
  if (!data.moments.length) return null;
  const rows = data.moments.map(([name, place, process, time, attributes]) => make("tr", {}, make("td", { class: "mono" }, name),
    make("td", {}, place || make("span", { class: "dim" }, "alone")), data.resources.length > 1 && make("td", { class: "small" }, processName(process)),
    make("td", { class: "num", tip: clock(time) }, time === null || BEGIN === null ? ABSENT : seconds((time - BEGIN) / 1e3)), make("td", { class: "mono line" }, attributeTip(attributes))));
  const heads = ["Event", "On", ...(data.resources.length > 1 ? ["Process"] : []), "After", "Attributes"].map((title) => make("th", { scope: "col" }, title));
  return [make("h2", { id: "events" }, "Events outside of requests"), make("div", { class: "panel scroll tall" }, make("table", {}, make("thead", {}, make("tr", {}, heads)), make("tbody", {}, rows)))];
}
