// Metric series with a small picture each, grouped by subject, and the resources that sent them.
const GROUPS = [
  ["Requests and tokens", (name) => /^(gen_ai|inferspan\.(generate|forward|batch|kv_cache|logits|module|numerics))/.test(name)],
  ["GPU", (name) => /^(hw\.|inferspan\.(gpu|torch))/.test(name)],
  ["Process and host", (name) => /^(process|system|cpython)\./.test(name)],
  ["Telemetry itself", (name) => /^inferspan\./.test(name)],
  ["Other", () => true],
];

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
  const low = Math.min(...values), high = Math.max(...values), range = high - low;
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
  if (data.resources.length > 1) text.push("from " + resourceName(series.resource));
  return text.join(", ") || ABSENT;
}

function resourceName(number) {
  const r = data.resources[number] || {};
  const rank = r["inferspan.distributed.rank"];
  return plain(r["service.name"] || "unnamed service") + (rank !== undefined ? " rank " + rank : "") + (data.resources.length > 1 ? " #" + (number + 1) : "");
}

function metricsView() {
  const title = make("h2", {}, "Metrics");
  if (!data.series.length) {
    return [title, make("div", { class: "panel dim" }, "No metrics are in this file: the process may have ended before the first export, or OTEL_METRICS_EXPORTER is none.")];
  }
  const left = new Set(data.series);
  const groups = GROUPS.map(([name, belongs]) => {
    const found = [...left].filter((series) => belongs(series.name));
    found.forEach((series) => left.delete(series));
    return [name, found];
  });
  const missing = groups[1][1].length ? null : make("div", { class: "dim small" }, "No GPU metrics: no NVIDIA GPU was used by this process, or its library could not be read.");
  return [title, ...groups.filter(([, found]) => found.length).map(([name, found], place) => make("details", { open: place === 0 }, make("summary", {}, name + " (" + found.length + ")"),
    make("div", { class: "panel scroll", style: { padding: "2px 4px" } }, make("table", {},
      make("thead", {}, make("tr", {}, ["Metric", "Attributes", "Value", "Over time / distribution"].map((head) => make("th", {}, head)))),
      make("tbody", {}, found.map((series) => make("tr", {},
        make("td", { class: "mono", tip: series.description + (series.unit ? "\nunit " + series.unit : "") }, series.name),
        make("td", { class: "small dim labels" }, seriesLabels(series)), make("td", {}, drawn(() => seriesValue(series))),
        make("td", {}, drawn(() => (series.histogram ? histogramPicture(series) : linePicture(series))))))))))), missing];
}

function resourcesView() {
  return [make("h2", {}, data.resources.length === 1 ? "Process" : "Processes"),
    ...data.resources.map((resource, number) => make("details", { open: data.resources.length === 1 }, make("summary", {}, resourceName(number)),
      make("div", { class: "panel scroll" }, Object.keys(resource).length ? pairs(resource) : make("span", { class: "dim" }, "The resource has no attributes."))))];
}
