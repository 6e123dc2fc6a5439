// What the tokens of a request attended to: a row for each layer, a mark for each key, darker for more weight.
function attentionView(request) {
  const a = request.attention;
  if (!a || !a.layers) return null;
  const panel = make("div", { class: "panel" });
  const name = (position) => position + (a.texts[position] ? " " + visible(a.texts[position]) : "");
  const where = ([step, query]) => (step === null ? "" : "step " + step + ", ") + (query === null ? "mean over its queries" : "query at " + name(query));
  const draw = (number) => {
    const chosen = a.queries[number];
    const pairs = chosen ? chosen[2].flatMap(([, keys]) => keys) : [];
    const width = Math.max(...pairs.map(([key]) => key + 1), 1);
    panel.replaceChildren(
      make("div", { class: "legend" },
        chosen && make("label", {}, "what attended: ", make("select", { "aria-label": "query", onchange: (e) => draw(Number(e.target.value)) },
          a.queries.map((one, place) => make("option", { value: place, selected: place === number }, where(one))))),
        chosen && make("span", {}, "0", make("span", { class: "ramp" }), "all weight on one key"),
        a.leftOut ? make("span", {}, counted(a.leftOut, "call") + " left out") : null),
      make("div", { class: "scroll" }, (chosen ? chosen[2] : []).map(([layer, keys]) => make("div", { class: "heat" },
        make("span", { class: "name small" }, a.layers[layer]),
        make("div", {}, keys.map(([key, weight]) => make("i", { tip: a.layers[layer] + "\nkey " + name(key) + ": " + percent(weight), style: {
          left: key / width * 100 + "%", width: 100 / width + "%", background: "rgba(var(--doubt), " + Math.min(1, 0.08 + weight).toFixed(3) + ")" } })))))),
      chosen && make("div", { class: "small dim" }, "keys 0 to " + (width - 1) + "; the keys with most weight of each layer, mean over heads"),
      a.entropies.length ? make("div", { class: "facts" }, a.entropies.map((entropy, place) => fact(a.layers[place], real(entropy) + " nats, first position " + percent(a.sinks[place])))) : null,
      a.missing.map((line) => make("div", { class: "small dim" }, "no weights of " + line)));
  };
  draw(Math.max(0, a.queries.length - 1));
  return [make("h3", {}, "Attention"), panel];
}
