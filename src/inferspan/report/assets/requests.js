// Header, summary cards, the table of requests, and the frame of one request.
function card(what, value, more, tipText) {
  return make("div", { class: "card", tip: tipText }, make("div", { class: "what" }, what), make("div", { class: "value" }, value),
    make("div", { class: "more" }, more || " "));
}

function pairCard(what, pair, tipText) {
  return pair ? card(what + " p50", seconds(pair[0]), "p95 " + seconds(pair[1]), tipText)
    : card(what, ABSENT, "not in this session", tipText);
}

function cards() {
  const t = data.totals;
  return make("div", { class: "cards" },
    card("Requests", [real(t.requests), t.failed ? make("span", { class: "bad small" }, "  " + real(t.failed) + " failed") : ""], "over " + seconds(t.seconds)),
    card("Tokens in", real(t.input_tokens), t.input_tokens === null ? "not in this session" : "without padding"),
    card("Tokens out", real(t.output_tokens), t.output_tokens === null ? "not in this session" : "without padding"),
    pairCard("TTFT", t.ttft, "time to first token: from entry of generate() until the first token is on the host; of requests that did not fail"),
    pairCard("TPOT", t.tpot, "time per output token: (duration - time to first token) / (tokens of the longest row - 1); of requests that did not fail"),
    card("Throughput", real(t.tokens_per_second), "tokens/s inside requests", "output tokens / sum of the durations of the requests that made some"),
    card("Peak memory", bytes(t.peak_memory), t.peak_memory === null ? "not recorded" : "highest of a request", "CUDA allocator, else resident memory of the process"),
    card("Energy", joules(t.energy), t.energy === null ? "no energy counter seen" : "whole card, all requests", "needs an NVIDIA GPU with an energy counter, used by this process alone"),
  );
}

const COLUMNS = [
  ["#", (r) => r.number, (r) => String(r.number), "num"],
  ["Request", (r) => r.row.name, (r) => r.row.name],
  ...(data.system.length > 1 ? [["Process", (r) => processName(r.resource), (r) => processName(r.resource), "small"]] : []),
  ...(data.requests.some((r) => Object.keys(r.messages).length) ? [["Prompt", (r) => (messagesOf(r).input[0] || { text: "" }).text, (r) => promptPreview(r), "prompt", "the last message of the user, where content was captured"]] : []),
  ["Result", (r) => resultText(r), (r) => resultTags(r)],
  ["Batch", (r) => r.row.batch, (r) => real(r.row.batch), "num"],
  ["Tokens in", (r) => r.row.input_tokens, (r) => real(r.row.input_tokens), "num"],
  ["Tokens out", (r) => r.row.output_tokens, (r) => real(r.row.output_tokens), "num"],
  ["TTFT", (r) => r.row.ttft, (r) => seconds(r.row.ttft), "num", "time to first token"],
  ["TPOT", (r) => r.row.tpot, (r) => seconds(r.row.tpot), "num", "time per output token"],
  ["Tokens/s", (r) => r.row.tokens_per_second, (r) => real(r.row.tokens_per_second), "num"],
  ["Duration", (r) => r.us, (r) => micros(r.us), "num"],
  ...(data.requests.some((r) => r.row.dropped) ? [["Left out", (r) => r.row.dropped, (r) => (r.row.dropped ? counted(r.row.dropped, "span") : ABSENT), "num", "spans dropped over the span budget of the request"]] : []),
  ["When", (r) => r.startMs, (r) => whenBar(r)],
];

const MEANINGS = new Map(Object.entries(data.meanings));
const resultText = (r) => (r.row.failed ? "error " + (r.row.error_type || "") : r.row.finish_reasons.join(", "));
const lastOf = (list, value) => highest(list.map(value));

function resultTags(request) {
  const counts = new Map();
  for (const reason of request.row.finish_reasons) counts.set(reason, (counts.get(reason) || 0) + 1);
  const words = request.row.failed ? [] : [...counts].map(([reason, count]) => (count > 1 ? reason + " ×" + count : reason));
  return [
    request.row.failed && make("span", { class: "tag bad" }, "error" + (request.row.error_type ? " " + request.row.error_type : "")),
    ...(words.length || request.row.failed ? words : ["ok"]).map((word) => make("span", { class: "tag" }, word)),
    ...request.row.notes.map((word) => make("span", { class: "tag", tip: MEANINGS.get(word) }, word)),
  ];
}

function whenBar(request) {
  if (request.startMs === null) return ABSENT;
  const known = data.requests.filter((r) => r.startMs !== null), first = lowest(known.map((r) => r.startMs));
  whenBar.span = whenBar.span || lastOf(known, (r) => r.startMs + r.us / 1e3) - first || 1;
  return make("div", { class: "when", tip: clock(request.startMs) + "\n" + seconds((request.startMs - first) / 1e3) + " after the first request" },
    make("i", { class: request.row.failed ? "bad" : "", style: {
      left: Math.min(97, (request.startMs - first) / whenBar.span * 100) + "%", width: request.us / 10 / whenBar.span + "%" } }));
}

function requestTable(choose) {
  const body = make("tbody");
  const state = { column: 0, down: false, words: "" };
  const fill = () => {
    const key = COLUMNS[state.column][1], words = state.words.toLowerCase();
    const shown = data.requests.filter((r) => !words || [r.row.name, resultText(r), r.row.notes.join(" "), r.trace, processName(r.resource), ...messagesOf(r).input.map((message) => message.text)].join(" ").toLowerCase().includes(words));
    shown.sort((a, b) => compared(key(a), key(b), state.down) || a.number - b.number);
    body.replaceChildren(...shown.map((request) => {
      const open = () => choose(request);
      request.line = make("tr", { tabindex: 0, class: request.chosen ? "chosen" : "", onclick: open, "aria-label": "request " + request.number + ", " + request.row.name + ", show", onkeydown: (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); open(); } } },
        COLUMNS.map(([, , show, style]) => make("td", { class: style }, show(request))));
      return request.line;
    }));
    if (!shown.length) body.append(make("tr", {}, make("td", { colspan: COLUMNS.length, class: "dim" }, "No request matches.")));
  };
  const header = sortableHeader(COLUMNS, state, fill);
  fill();
  return [
    data.requests.length > 12 && make("input", { type: "search", "aria-label": "filter requests", placeholder: "filter by name, prompt, result or trace id", size: 36, oninput: (e) => { state.words = e.target.value; fill(); } }),
    make("div", { class: "panel scroll tall", style: { padding: "2px 4px" } }, make("table", { class: "requests" }, make("thead", {}, header), body)),
  ];
}

function fact(name, value, meaning) {
  return value === null || value === undefined || value === ABSENT ? null : make("span", { tip: meaning }, make("span", { class: "dim" }, name + " "), make("b", {}, plain(value)));
}

function failure(request) {
  if (!request.row.failed) return null;
  const trace = request.exception["exception.stacktrace"];
  const said = request.exception["exception.message"] || request.message;
  return make("div", { class: "failure" }, make("b", {}, request.row.error_type || "error"), said ? ": " + said : "",
    trace && make("details", {}, make("summary", {}, "Stack trace"), make("pre", {}, trace)));
}

// Events other than the exception, and links to other spans, which the program has added to the request.
function eventsAndLinks(request) {
  const rows = [
    ...request.events.map(([name, at, attributes]) => ["event " + name, at === null ? ABSENT : micros(at), attributes]),
    ...request.links.map(([trace, span, attributes]) => ["link to trace " + trace + ", span " + span, "", attributes]),
  ];
  if (!rows.length) return null;
  const more = request.eventsInFile - request.events.length;
  return make("details", {}, make("summary", {}, "Events and links (" + rows.length + (more > 0 ? ", and " + counted(more, "event") + " left out" : "") + ")"),
    make("div", { class: "panel scroll" }, make("table", { class: "pairs" }, make("tbody", {}, rows.map(([name, at, attributes]) =>
      make("tr", {}, make("td", { class: "mono" }, name), make("td", {}, at), make("td", { class: "mono line" }, attributeTip(attributes))))))));
}

function traceLink(request) {
  const code = make("code", {}, request.trace);
  return data.traceUrl ? make("a", { href: data.traceUrl.split("{trace_id}").join(encodeURIComponent(request.trace)), target: "_blank", rel: "noopener noreferrer" }, code) : code;
}

// The sections of a request. One that has nothing to show gives null.
const REQUEST_SECTIONS = [messages, timeline, flameView, tokenView, attentionView, analysisView, breakdownView, activationView, memoryCurve, eventsAndLinks];

function requestView(request) {
  const a = request.attributes, r = request.row;
  return [
    make("h2", { id: "request-title", tabindex: -1 }, "Request " + request.number + ": " + r.name),
    drawn(() => failure(request)),
    make("div", { class: "facts" },
      fact("duration", micros(request.us)), fact("time to first token", seconds(r.ttft)), fact("time per output token", seconds(r.tpot)),
      fact("output", r.tokens_per_second === null ? null : perSecond(r.tokens_per_second)),
      fact("prompt", a["inferspan.prefill.tokens_per_second"] === undefined ? null : perSecond(a["inferspan.prefill.tokens_per_second"]), "prompt tokens computed / time to first token"),
      fact("tokens in", real(r.input_tokens)), fact("tokens out", real(r.output_tokens)), fact("batch", r.batch), fact("KV cache", bytes(a["inferspan.kv_cache.bytes"])), fact("peak memory", bytes(r.peak_memory)),
      fact("energy", joules(r.energy)), fact("device", a["inferspan.device.id"]), fact("conversation", a["gen_ai.conversation.id"]), fact("user", a["user.id"])),
    make("div", { class: "dim small" }, clock(request.startMs), data.system.length > 1 ? " · " + processName(request.resource) : "", " · trace ", traceLink(request), " · span ", make("code", {}, request.span),
      request.callers.length ? " · called in " + request.callers.join(" › ") : ""),
    request.unobserved && make("div", { class: "note" }, "Not observed: " + request.unobserved),
    r.dropped ? make("div", { class: "note" }, counted(r.dropped, "span") + " of this request left out over its span budget (setting max_spans_per_trace).") : null,
    a["inferspan.detail.kept"] === true && make("div", { class: "note" }, "Detail kept because of: " + a["inferspan.detail.rule"] + " (setting keep)."),
    request.detailLeftOut && make("div", { class: "note" }, "The file holds more spans than one page can show; steps and modules of this request are left out here."),
    ...REQUEST_SECTIONS.map((part) => drawn(() => part(request))),
    make("details", {}, make("summary", {}, "All attributes of the request"), make("div", { class: "panel scroll" }, pairs(a))),
  ];
}
