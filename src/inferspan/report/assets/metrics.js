// Metric series: what matters first, each once; the rest folded by subject, then what is the same under other names.
const MATTERS = ["gen_ai.server.time_to_first_token", "gen_ai.server.time_per_output_token", "gen_ai.server.request.duration", "inferspan.forward.duration", "inferspan.stage.duration",
  "gen_ai.client.inference.usage.input_tokens", "gen_ai.client.inference.usage.output_tokens", "hw.gpu.utilization", "hw.gpu.memory.usage", "hw.power", "hw.temperature", "inferspan.torch.memory.allocated",
  "inferspan.kv_cache.usage", "process.memory.usage", "process.cpu.utilization", "inferspan.telemetry.overhead", "inferspan.telemetry.spans.dropped", "inferspan.telemetry.errors"];
const SAME = /^gen_ai\.client\.(operation\.(duration|time_to_first_chunk|time_per_output_chunk)|token\.usage|inference\.duration)$/;
const GROUPS = [
  ["What matters first", (name) => MATTERS.includes(name)],
  ["The same under other names: old names of the conventions, and those of clients", (name) => SAME.test(name)],
  ["Requests and tokens", (name) => /^(gen_ai|inferspan\.(generate|forward|batch|kv_cache|logits|module|numerics|stage|experts|time_|preempt|specul))/.test(name)],
  ["GPU", (name) => /^(hw\.|inferspan\.(gpu|torch))/.test(name)],
  ["Process and host", (name) => /^(process|system|cpython|inferspan\.cgroup)\./.test(name)],
  ["Telemetry itself", (name) => /^inferspan\./.test(name)],
  ["Other", () => true],
];
const SHOWN_LAST = 1;

function histogramPicture(series) {
  const h = series.histogram, amounts = h.counts.map(Number), most = Math.max(...amounts, 1), width = 150 / h.counts.length;
  if (h.counts.length < 2) return make("span", { class: "dim small" }, "sent without buckets");
  const label = (place) => (place === 0 ? "up to " + inUnit(h.bounds[0], series.unit, series.name)
    : place === h.bounds.length ? "over " + inUnit(h.bounds[place - 1], series.unit, series.name)
      : inUnit(h.bounds[place - 1], series.unit, series.name) + " to " + inUnit(h.bounds[place], series.unit, series.name));
  const picture = drawing("svg", { class: "spark", viewBox: "0 0 150 30" }, ...amounts.map((count, place) => {
    const height = count ? Math.max(2, count / most * 28) : 0.5;
    return drawing("rect", { x: place * width, y: 30 - height, width: Math.max(1, width - 1), height });
  }));
  return make("div", { tip: () => h.counts.map((count, place) => [count, label(place)]).filter(([count]) => count).map(([count, text]) => text + ": " + real(count)).join("\n") }, picture);
}

function linePicture(series) {
  const points = series.points.filter(([time, value]) => time !== null && value !== null).map(([time, value]) => [time, Number(value)]);
  if (points.length < 2) return make("span", { class: "dim small" }, "one point");
  const [first, last] = [points[0][0], points[points.length - 1][0]], values = points.map(([, value]) => value);
  // Joined points have their lowest and highest value behind their mean.
  const all = series.points.flatMap(([, ...found]) => found).filter((value) => value !== null).map(Number);
  const low = lowest(all), high = highest(all), range = high - low;
  const path = points.map(([time, value], place) => (place ? "L" : "M") + ((time - first) / (last - first || 1) * 148 + 1).toFixed(1) + " " +
    (range > 0 && range < Infinity ? 28 - (value - low) / range * 26 : 15).toFixed(1)).join("");
  return make("div", { tip: counted(points.length, "point") + " over " + seconds((last - first) / 1e3) + "\nlowest " + inUnit(low, series.unit, series.name) + "\nhighest " + inUnit(high, series.unit, series.name) },
    drawing("svg", { class: "spark", viewBox: "0 0 150 30", preserveAspectRatio: "none" }, drawing("path", { d: path })));
}

function seriesValue(series) {
  const show = (value) => inUnit(value, series.unit, series.name);
  if (!series.histogram) return show(series.points[series.points.length - 1][1]);
  const h = series.histogram;
  return make("span", { tip: series.kind === "summary" ? "percentiles are the program's own" : "percentiles are estimated inside the buckets" }, counted(h.count, "value") + ", mean " + show(h.sum === null || !Number(h.count) ? null : h.sum / Number(h.count)), make("span", { class: "dim" }, ", sum " + show(h.sum)),
    make("span", { class: "dim" }, ", p50 " + show(h.p50) + ", p95 " + show(h.p95)));
}

function seriesLabels(series) {
  const labels = Object.entries(series.attributes).filter(([key]) => !/^gen_ai\.(provider\.name|response\.model)$|^hw\.(vendor|driver_version|firmware_version|parent)$/.test(key));
  const text = labels.map(([key, value]) => key.replace(/^(gen_ai|inferspan|hw)\./, "") + "=" + plain(value));
  if (data.resources.length > 1) text.push("from " + processName(series.resource));
  return text.join(", ") || ABSENT;
}

const isZero = (series) => (series.histogram ? !Number(series.histogram.count) : series.kind === "sum" && series.points.every(([, value]) => !Number(value)));

function metricTable(found) {
  return make("div", { class: "panel scroll", style: { padding: "2px 4px" } }, make("table", {},
    make("thead", {}, make("tr", {}, ["Metric", "Attributes", "Value", "Over time / distribution"].map((head) => make("th", { scope: "col" }, head)))),
    make("tbody", {}, found.map((series) => make("tr", {},
      make("td", { tip: series.unit ? "unit " + series.unit : null }, make("div", { class: "mono" }, series.name), series.description && make("div", { class: "dim small" }, series.description)),
      make("td", { class: "small dim labels" }, seriesLabels(series)), make("td", {}, drawn(() => seriesValue(series))),
      make("td", {}, drawn(() => (series.histogram ? histogramPicture(series) : linePicture(series)))))))));
}

function metricsView() {
  const title = make("h2", { id: "metrics" }, "Metrics");
  if (!data.series.length) {
    return [title, make("div", { class: "panel dim" }, "No metrics are in this file: the process may have ended before the first export, or OTEL_METRICS_EXPORTER is none.")];
  }
  const zero = data.series.filter(isZero), left = new Set(data.series.filter((series) => !isZero(series)));
  const groups = GROUPS.map(([name, belongs]) => {
    const found = [...left].filter((series) => belongs(series.name));
    found.forEach((series) => left.delete(series));
    return [name, found];
  });
  const order = (series) => MATTERS.indexOf(series.name);
  groups[0][1].sort((a, b) => order(a) - order(b));
  groups.push(...groups.splice(SHOWN_LAST, 1));
  const names = [...new Set(zero.map((series) => series.name))];
  const gpu = data.series.some((series) => GROUPS[3][1](series.name));
  return [title, ...groups.filter(([, found]) => found.length).map(([name, found], place) => make("details", { open: place === 0 }, make("summary", {}, name + " (" + found.length + ")"), drawn(() => metricTable(found)))),
    names.length ? make("details", {}, make("summary", {}, "Stayed at zero (" + names.length + ")"), make("div", { class: "panel small mono labels" }, names.join(", "))) : null,
    gpu ? null : make("div", { class: "dim small" }, "No GPU metrics: no NVIDIA GPU was used by this process, or its library could not be read.")];
}
