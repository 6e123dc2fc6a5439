// Why requests took their time: causes with what shows them, what limits each part, the tree of the time, and what was not recorded.
function causeSpans(spans) {
  return make("ul", { class: "plainlist" }, spans.map((span) => {
    const request = data.requests.find((one) => one.trace === span.trace_id);
    const name = [make("span", { class: "mono" }, span.name), " " + seconds(span.seconds)];
    return make("li", {}, request ? make("a", { href: "#request-" + request.number, onclick: (event) => { event.preventDefault(); choose(request); detail.scrollIntoView({ block: "start" }); } }, ...name) : name,
      make("span", { class: "dim small mono" }, "  " + span.trace_id + " " + span.span_id));
  }));
}

function causeFigure(key, value) {
  const shown = Array.isArray(value) ? value.map(plain).join("; ") : typeof value !== "number" ? plain(value)
    : /seconds/.test(key) ? seconds(value) : /bytes|^peak_of/.test(key) ? bytes(value) : /share|utilization|acceptance|activity/.test(key) ? percent(value) : real(value);
  return make("tr", {}, make("td", { class: "dim" }, key.replace(/_/g, " ")), make("td", {}, shown));
}

const expected = (gain) => (gain ? seconds(gain.seconds) + (gain.share === null ? "" : ", " + percent(gain.share) + " of the time") + " (" + (gain.basis === "at most" ? "at most, if all of it is saved" : gain.basis) + ")" : "cannot be told from the recording");

function causeView(cause, place) {
  const rows = [["Change", cause.advice], ["Setting", cause.setting && make("span", { class: "mono" }, cause.setting)], ["Expect", expected(cause.gain)], ["How sure", cause.sure]];
  const parts = cause.evidence.parts || [];
  return make("details", { open: place === 0 }, make("summary", {}, make("span", { class: "tag" + (cause.severity === "high" ? " bad" : "") }, cause.severity), make("b", {}, cause.rule.replace(/_/g, " ")),
    cause.share === null ? "" : " " + percent(cause.share), make("span", { class: "dim" }, " " + cause.title)),
  make("table", { class: "pairs" }, make("tbody", {}, rows.filter(([, value]) => value).map(([name, value]) => make("tr", {}, make("td", { class: "dim" }, name), make("td", {}, value))),
    parts.length > 0 && make("tr", {}, make("td", { class: "dim" }, "In"), make("td", {}, parts.map((part) => make("div", {}, make("span", { class: "mono" }, part.name), (part.seconds === undefined ? "" : " " + seconds(part.seconds)) + (part.note ? " " + part.note : ""))))),
    cause.evidence.spans.length > 0 && make("tr", {}, make("td", { class: "dim" }, "Shown by"), make("td", {}, causeSpans(cause.evidence.spans))),
    Object.entries(cause.evidence.figures).map(([key, value]) => causeFigure(key, value)))));
}

function limitTable() {
  const limit = (one) => (one.bound === null ? make("span", { class: "dim" }, one.reason) : [make("span", { class: "tag" }, one.bound), one.sure + ", " + one.reason]);
  return make("table", {}, make("thead", {}, make("tr", {}, ["Part", "Share", "Time", "Limited by"].map((title, at) => make("th", { scope: "col", class: at === 1 || at === 2 ? "num" : "" }, title)))),
    make("tbody", {}, data.explanation.limits.map((one) => make("tr", {}, make("td", {}, make("span", { class: "tag" }, one.kind), make("span", { class: "mono" }, one.name)), make("td", { class: "num" }, percent(one.share)), make("td", { class: "num" }, seconds(one.seconds)), make("td", {}, limit(one))))));
}

function timeTree(node, depth) {
  const row = make("tr", {}, make("td", { class: "num" }, node.share === null ? ABSENT : percent(node.share)), make("td", { class: "num" }, node.seconds === null ? ABSENT : seconds(node.seconds)),
    make("td", { style: { paddingLeft: 10 + 18 * depth + "px" } }, node.rule && make("span", { class: "tag" }, node.rule.replace(/_/g, " ")), node.name));
  return [row, ...(node.children || []).map((child) => timeTree(child, depth + 1))].flat(Infinity);
}

function findingsView() {
  const causes = data.suggestions, missing = data.explanation.missing;
  if (!causes.length && !data.explanation.limits.length) return null;
  const folded = (title, inside, open) => make("details", { open }, make("summary", {}, title), inside);
  return [make("h2", { id: "explain" }, "Why it takes its time"),
    make("div", { class: "panel" }, causes.length ? causes.map(causeView) : make("p", { class: "dim" }, "No rule has found anything to change."),
      data.explanation.limits.length > 0 && folded("What limits each part", [data.bottlenecks.filter((one) => one.text).map((one) => make("p", {}, one.text)), limitTable()]),
      folded("Where the time went, with the causes", make("table", {}, make("tbody", {}, timeTree(data.explanation.tree, 0)))),
      missing.length > 0 && folded("Not enough data for " + counted(missing.length, "question"), make("ul", {}, missing.map((one) => make("li", {}, one.what + ": " + one.why, one.setting && [", set ", make("span", { class: "mono" }, one.setting)])))))];
}
