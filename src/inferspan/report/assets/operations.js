// Figures by operation, the tree of what modules cost, phases.
const OPERATION_COLUMNS = [
  ["Operation", (o) => o.name, (o) => [make("span", { class: "tag" }, o.kind), make("span", { class: "mono" }, o.name)]],
  ["Calls", (o) => o.count, (o) => real(o.count), "num"],
  ["Total", (o) => o.total_duration, (o) => seconds(o.total_duration), "num", "with everything inside"],
  ["Own", (o) => o.self_duration, (o) => seconds(o.self_duration) + (o.self_count === undefined ? "" : " of " + real(o.self_count)), "num", "without recorded operations inside; of steps of which only some have recorded modules, of these alone: \"of\" is their number"],
  ["Average", (o) => o.avg_duration, (o) => seconds(o.avg_duration), "num"],
  ["Min", (o) => o.min_duration, (o) => seconds(o.min_duration), "num"],
  ["p50", (o) => o.p50, (o) => seconds(o.p50), "num", "exact up to 512 calls, then at most 1 % off"],
  ["p95", (o) => o.p95, (o) => seconds(o.p95), "num", "exact up to 512 calls, then at most 1 % off"],
  ["Max", (o) => o.max_duration, (o) => seconds(o.max_duration), "num"],
  ["Memory", (o) => (o.total_memory_delta === undefined ? null : Number(o.total_memory_delta)), (o) => (o.total_memory_delta === undefined ? ABSENT : signed(o.total_memory_delta)), "num", "allocated at the end minus at the start, of all calls"],
  ["Clock", (o) => o.clock, (o) => o.clock, "", "device: by the device's clock; host: the time to launch the work, on a GPU"],
];
const signed = (value) => (Number(value) > 0 ? "+" : "") + bytes(value);

function operationTable(operations) {
  const body = make("tbody"), more = make("div", { class: "small dim" });
  const kinds = [...new Set(operations.map((operation) => operation.kind))];
  const state = { column: 2, down: true, kind: "", words: "", most: 15 };
  const fill = () => {
    const key = OPERATION_COLUMNS[state.column][1], words = state.words.toLowerCase();
    const found = operations.filter((o) => (!state.kind || o.kind === state.kind) && (!words || o.name.toLowerCase().includes(words)));
    found.sort((a, b) => compared(key(a), key(b), state.down) || compared(a.name, b.name));
    body.replaceChildren(...found.slice(0, state.most).map((o) => make("tr", {}, OPERATION_COLUMNS.map(([, , show, style]) => make("td", { class: style }, show(o))))));
    more.textContent = found.length > state.most ? counted(found.length - state.most, "more operation") : found.length ? "" : "No operation matches.";
  };
  const header = sortableHeader(OPERATION_COLUMNS, state, fill);
  fill();
  const choice = (label, options, act) => make("label", {}, label + " ", make("select", { onchange: (event) => { act(event.target.value); fill(); } }, options.map(([value, text]) => make("option", { value }, text))));
  return [make("div", { class: "legend" }, kinds.length > 1 && choice("kind", [["", "all"], ...kinds.map((kind) => [kind, kind])], (value) => { state.kind = value; }),
    choice("show", [["15", "top 15"], ["50", "top 50"], ["250", "top 250"], ["1000", "top 1,000"]], (value) => { state.most = Number(value); }),
    operations.length > 15 && make("input", { type: "search", "aria-label": "filter operations by name", placeholder: "filter by name", oninput: (event) => { state.words = event.target.value; fill(); } })),
  make("div", { class: "panel scroll tall", style: { padding: "2px 4px" } }, make("table", {}, make("thead", {}, header), body)), more];
}

// The tree of module paths; with joined numbers, equal layers are one row. What is not recorded itself is the sum of what is inside.
function moduleTree(operations, joined) {
  const top = { name: "", children: new Map(), total: 0, own: 0, calls: 0 };
  for (const operation of operations) {
    let node = top;
    for (const part of operation.name.split(".").slice(0, 32)) {
      const name = joined && /^\d+$/.test(part) ? "*" : part;
      if (!node.children.has(name)) node.children.set(name, { name, children: new Map(), total: 0, own: 0, calls: 0, modules: 0 });
      node = node.children.get(name);
    }
    node.total += operation.total_duration;
    node.own += operation.self_duration;
    node.calls += operation.count;
    node.modules += 1;
  }
  const add = (node) => {
    const inside = [...node.children.values()].map(add).reduce((a, b) => a + b, 0);
    if (!node.calls) node.total = inside;
    return node.total;
  };
  add(top);
  return top;
}

function treeRows(node, most, depth) {
  return [...node.children.values()].sort((a, b) => b.total - a.total).slice(0, 200).map((child) => {
    let inner = child, name = child.name;
    // A chain of single children without figures of their own is one row.
    while (!inner.calls && inner.children.size === 1) { inner = [...inner.children.values()][0]; name += "." + inner.name; }
    const text = seconds(inner.total) + ", " + percent(inner.total / most) + (inner.calls ? ", own " + seconds(inner.own) : "");
    const line = make("div", { class: "meter tree", tip: name + "\n" + (inner.calls ? counted(inner.calls, "call") + (inner.modules > 1 ? " of " + counted(inner.modules, "module") : "") : "not recorded itself: sum of what is inside") },
      make("span", { class: "name mono" }, name), make("div", {}, make("div", { class: "bar", style: { width: Math.min(100, inner.total / (most || 1) * 100) + "%", background: cssColour(depth) } })), make("span", { class: "amount" }, text));
    if (!inner.children.size) return make("div", { class: "leaf" }, line);
    const below = make("div", { class: "below" });
    const open = depth < 1;
    const box = make("details", { open }, make("summary", {}, line), below);
    const fill = () => { if (!below.filled) { below.filled = true; below.append(...treeRows(inner, most, depth + 1)); } };
    box.addEventListener("toggle", fill);
    if (open) fill();
    return box;
  });
}

function moduleCosts(operations) {
  const modules = operations.filter((operation) => operation.kind === "module");
  if (!modules.length) return null;
  const holder = make("div", {});
  const fill = (joined) => {
    const tree = moduleTree(modules, joined), most = [...tree.children.values()].reduce((sum, child) => sum + child.total, 0);
    holder.replaceChildren(...treeRows(tree, most || 1, 0));
  };
  fill(true);
  const steps = data.summary.steps || {}, sampled = steps.recorded ? " Modules were recorded in " + real(steps.with_modules) + " of " + counted(steps.recorded, "step") + "." : "";
  const clocks = [...new Set(modules.map((module) => module.clock))].join(" and ");
  return [make("h3", {}, "What modules cost"), make("div", { class: "panel" }, make("div", { class: "legend" },
    make("label", {}, make("input", { type: "checkbox", checked: true, onchange: (event) => fill(event.target.checked) }), " join numbered layers"),
    make("span", {}, "Seconds over the whole recording by the " + clocks + " clock, with everything inside." + sampled)), holder)];
}

function phaseMeters() {
  if (!data.phases.length) return null;
  const most = Math.max(...data.phases.map((phase) => phase.total), 1e-12);
  return [make("h3", {}, "Phases and stages"), make("div", { class: "panel" }, data.phases.map((phase) => meter(phase.name, phase.total, most,
    seconds(phase.total) + (phase.share === null ? "" : ", " + percent(phase.share) + " of the time of requests"), phaseColour(phase.name), counted(phase.count, "time") + ", by the " + phase.clock + " clock")))];
}

function eventCounts() {
  const types = Object.entries(data.summary.event_types || {});
  if (!types.length) return null;
  return make("details", {}, make("summary", {}, counted(data.summary.total_events, "event") + " over " + seconds(data.summary.total_duration)),
    make("div", { class: "panel scroll" }, make("table", { class: "pairs" }, make("tbody", {}, types.map(([type, number]) => make("tr", {}, make("td", { class: "mono" }, type), make("td", {}, real(number))))))));
}

function operationsView() {
  if (!data.operations.length) return null;
  return [make("h2", { id: "operations" }, "Operations"), drawn(phaseMeters), drawn(() => operationTable(data.operations)), drawn(() => moduleCosts(data.operations)), drawn(eventCounts)];
}

function flowView() {
  if (!data.flow) return null;
  return [make("h2", { id: "flow" }, "Data flow"), make("p", { class: "note" }, "Which module's output fed which module's input, in the first recorded pass of the latest request that has it. Skip connections are orange, equal layers are shown once."), make("div", { class: "panel scroll" }, make("img", { src: data.flow, alt: "modules and the tensors between them" }))];
}

function graphView() {
  if (!data.graph) return null;
  return [make("h2", { id: "graph" }, "Graph"), make("div", { class: "panel scroll" }, make("img", { src: data.graph, alt: "the graph of the model: subgraphs, modules and the values between them" }))];
}
