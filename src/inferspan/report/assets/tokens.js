// Tokens of a request coloured by confidence, their table, and where the sampled steps spent their time.
const FIELDS = Object.fromEntries(data.tokenFields.map((name, place) => [name, place]));
const TOKENS_AT_FIRST = 400;
const fieldOf = (token, name) => { const value = token[FIELDS[name]]; return value === undefined ? null : value; };
const probability = (token) => { const value = fieldOf(token, "logprob"); return value === null ? null : Math.exp(value); };

// How far each measure colours a token: 0 is none, 1 is full.
const SHADES = [
  ["chance", "probability of the chosen token", (token) => { const p = probability(token); return p === null ? null : 1 - p; }, "certain", "unlikely"],
  ["entropy", "entropy of the distribution", (token) => { const e = fieldOf(token, "entropy"); return e === null ? null : Math.min(1, e / 5); }, "0 nats", "5 nats or more"],
  ["time", "time since the token before", (token, row) => {
    const interval = fieldOf(token, "interval");
    return interval === null || row[0] === token ? null : Math.min(1, interval / row.slowest);
  }, "0", "slowest token"],
];

function visible(text) {
  return text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ | $/g, "·") || "∅";
}

const TOKEN_ROWS = [
  ["text", "text", (t) => (fieldOf(t, "text") === null ? ABSENT : visible(fieldOf(t, "text")))],
  ["id", "id", (t) => (fieldOf(t, "id") === null ? ABSENT : String(fieldOf(t, "id")))],
  ["probability", "logprob", (t) => percent(probability(t))],
  ["log-probability", "logprob", (t) => real(fieldOf(t, "logprob"))],
  ["entropy (nats)", "entropy", (t) => real(fieldOf(t, "entropy"))],
  ["top-1 probability", "top1", (t) => percent(fieldOf(t, "top1"))],
  ["rank", "rank", (t) => real(fieldOf(t, "rank"))],
  ["margin (logits)", "margin", (t) => real(fieldOf(t, "margin"))],
  ["time since the last", "interval", (t) => seconds(fieldOf(t, "interval"))],
  ["most likely", "top_k", (t) => (fieldOf(t, "top_k") || []).map(([name, share]) => visible(name) + " " + percent(share)).join("  |  ")],
  ["attended to", "attended", (t) => (fieldOf(t, "attended") || []).map(([name, share]) => visible(name) + " " + percent(share)).join("  |  ")],
];

function tokenTip(token, place) {
  return () => "token " + (place + 1) + "\n" + TOKEN_ROWS.map(([name, , show]) => [name, show(token)])
    .filter(([, shown]) => shown && shown !== ABSENT).map(([name, shown]) => name + ": " + shown).join("\n");
}

function strip(row, shade) {
  return row.map((token, place) => {
    const text = fieldOf(token, "text"), depth = shade[2](token, row);
    return make("span", { class: "token" + (text === null ? " number" : ""), tip: tokenTip(token, place),
      style: depth === null ? {} : { background: "rgba(var(--doubt), " + (0.85 * depth).toFixed(3) + ")" } }, text === null ? String(place + 1) : visible(text));
  });
}

function columns(row, title, name, show, skipFirst) {
  const values = row.map((token, place) => (skipFirst && place === 0 ? null : fieldOf(token, name)));
  const most = Math.max(...values.filter((value) => value !== null), 0);
  if (!values.some((value) => value !== null)) return null;
  return make("div", {}, make("div", { class: "small dim" }, title + ", up to " + show(most)),
    make("div", { class: "columns" }, values.map((value, place) => make("i", { class: value === null ? "none" : "", tip: tokenTip(row[place], place),
      style: { height: value === null ? "100%" : Math.max(1, most ? value / most * 100 : 0) + "%" } }))),
    make("div", { class: "small dim" }, "token 1 to " + row.length));
}

function tokenTable(row) {
  const used = TOKEN_ROWS.filter(([, name]) => row.some((token) => { const value = fieldOf(token, name); return value !== null && value.length !== 0; }));
  return make("div", { class: "panel scroll tall", style: { padding: "2px 4px" } }, make("table", {},
    make("thead", {}, make("tr", {}, make("th", { class: "num" }, "token"), used.map(([title]) => make("th", { class: /text|likely|attended/.test(title) ? "" : "num" }, title)))),
    make("tbody", {}, row.map((token, place) => make("tr", {}, make("td", { class: "num dim" }, String(place + 1)),
      used.map(([title, , show]) => make("td", { class: /text|likely|attended/.test(title) ? "mono line" : "num" }, show(token))))))));
}

function tokenView(request) {
  const title = make("h3", {}, "Tokens");
  const reasons = request.tokenReasons.map((reason) => make("div", { class: "dim small" }, reason));
  if (!request.tokens.length) return request.kind === "forward" ? null : [title, make("div", { class: "panel" }, reasons)];
  for (const row of request.tokens) row.slowest = Math.max(...row.slice(1).map((token) => fieldOf(token, "interval") || 0), 1e-9);
  const state = { row: 0, shade: SHADES.find((shade) => request.tokens[0].some((token) => shade[2](token, request.tokens[0]) !== null)) || SHADES[0] };
  const panel = make("div", { class: "panel" });
  const draw = (all) => {
    const row = request.tokens[state.row], shade = state.shade, some = all ? row : row.slice(0, TOKENS_AT_FIRST);
    some.slowest = row.slowest;
    const average = (name) => { const known = row.map((token) => fieldOf(token, name)).filter((value) => value !== null); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; };
    const logprob = average("logprob");
    panel.replaceChildren(
      make("div", { class: "legend" },
        request.tokens.length > 1 && make("label", {}, "sequence ", make("select", { onchange: (e) => { state.row = Number(e.target.value); draw(); } },
          request.tokens.map((_, number) => make("option", { value: number, selected: number === state.row }, number + 1 + " of " + request.tokens.length)))),
        make("label", {}, "colour: ", make("select", { onchange: (e) => { state.shade = SHADES[Number(e.target.value)]; draw(); } },
          SHADES.map(([, name], number) => make("option", { value: number, selected: SHADES[number] === shade }, name)))),
        make("span", {}, shade[3], make("span", { class: "ramp" }), shade[4]),
        logprob !== null && make("span", { tip: "exp(-mean log-probability) of the tokens shown, under the raw logits" }, "perplexity " + real(Math.exp(-logprob))),
        average("entropy") !== null && make("span", {}, "mean entropy " + real(average("entropy")) + " nats")),
      make("div", { class: "strip" }, strip(some, shade), row.length > some.length && make("button", { class: "small", onclick: () => draw(true) }, "show all " + row.length)),
      make("div", { class: "charts" }, columns(row, "Entropy", "entropy", (value) => real(value) + " nats"),
        columns(row, "Time since the token before", "interval", seconds, true)),
      ...reasons,
      make("details", {}, make("summary", {}, "Table of " + counted(row.length, "token")), tokenTable(row)));
  };
  draw();
  return [title, panel];
}

const ANALYSIS_FACTS = [["unique_tokens", "different tokens", real], ["token_entropy", "token entropy", (v) => real(v) + " bits"], ["repetition_rate", "repetition", percent], ["repetition_rate_recent", "of the last 128", percent],
  ["repetition_4gram", "4-gram repetition", percent], ["avg_logits_mean", "mean of logits", real], ["avg_logits_std", "deviation of logits", real]];
const ANALYSIS_WARNINGS = new Map([["low", "low confidence"], ["loop", "repetition"], ["flat", "flat logits"], ["nonfinite", "logits that are not finite"]]);

function analysisView(request) {
  const a = request.analysis;
  if (!a || !Object.keys(a).length) return null;
  const four = (name, group) => group && fact(name, Object.entries(group).map(([key, value]) => key + " " + percent(value)).join(", "));
  return [make("h3", {}, "Analysis"), make("div", { class: "panel" },
    a.warnings.length ? make("div", {}, a.warnings.map((kind) => make("span", { class: "tag bad" }, ANALYSIS_WARNINGS.get(kind) || kind))) : null,
    make("div", { class: "facts" }, ANALYSIS_FACTS.map(([key, name, show]) => (a[key] === undefined ? null : fact(name, show(a[key])))),
      four("confidence", a.confidence), four("probability of the chosen token", a.chosen_probability),
      a.loop && a.loop.tokens ? fact("longest loop", counted(a.loop.tokens, "token") + " with period " + real(a.loop.period) + " from token " + real(a.loop.start)) : null),
    (a.most_common || []).length ? make("div", { class: "strip" }, make("span", { class: "dim small" }, "most common "), a.most_common.map((one) => make("span", { class: "token", tip: "token " + one.id }, (one.text === undefined ? String(one.id) : visible(one.text)) + " ×" + real(one.count)))) : null)];
}

function meter(name, value, most, text, colour, tipText) {
  return make("div", { class: "meter", tip: tipText }, make("span", { class: "name" }, name),
    make("div", {}, make("div", { class: "bar", style: { width: value / (most || 1) * 100 + "%", background: colour } })), make("span", { class: "amount" }, text));
}

function breakdownView(request) {
  if (!request.breakdowns.length) {
    if (request.detailLeftOut || !request.phases.length) return null;
    return [make("h3", {}, "Where the time went"), make("div", { class: "panel dim" },
      "No module spans: the setting modules is \"none\", or the model is compiled (see inferspan.unobserved).")];
  }
  return [make("h3", {}, "Where the time went"), make("div", { class: "panel two" }, request.breakdowns.map((part) => {
    const rest = part.outside > 0 ? [{ type: "outside recorded modules", calls: null, seconds: part.outside }] : [];
    const parts = [...part.parts, ...rest], most = Math.max(...parts.map((piece) => piece.seconds), 1e-12);
    const slowest = Math.max(...part.layers.map(([, value]) => value), 1e-12);
    const where = part.phase === "forward" ? "this forward pass" : part.steps + (part.steps === 1 ? " sampled step of " : " sampled steps of ") + part.phase;
    return make("div", {},
      make("div", { class: "small dim" }, where + ", " + seconds(part.seconds) + " by the " + part.clock + " clock" + (part.clock === "host" && request.attributes["inferspan.device.type"] === "cuda" ? " (the time to launch the work, not to compute it)" : "")),
      make("b", { class: "small" }, "By module type, own time"),
      parts.map((piece) => meter(piece.type, piece.seconds, most, seconds(piece.seconds) + ", " + percent(part.seconds ? piece.seconds / part.seconds : 0),
        piece.calls === null ? "var(--request)" : typeColour(piece.type),
        piece.calls === null ? "embedding, head, sampling and everything else without a module span" : counted(piece.calls, "call") + ", " + seconds(piece.seconds / piece.calls) + " each, without recorded modules inside")),
      part.layers.length ? [make("b", { class: "small" }, "By layer, with everything inside"), make("div", { class: "columns", style: { marginTop: "6px" } },
        part.layers.map(([index, value]) => make("i", { tip: "layer " + index + "\n" + seconds(value), style: { height: Math.max(1, value / slowest * 100) + "%", background: phaseColour(part.phase) } }))),
      make("div", { class: "small dim" }, "layer " + part.layers[0][0] + " to " + part.layers[part.layers.length - 1][0] + ", up to " + seconds(slowest))] : null);
  }))];
}
