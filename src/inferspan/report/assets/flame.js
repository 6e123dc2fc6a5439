// The flame view of one request: request, stages and phases, steps, modules, kernels, each below what it ran in. Zooms; arrows walk through it.
const MOST_BOXES = 1500;

// All spans of a request as one list, parents before their children: name, depth, at, us, parent, colour.
function flameNodes(request) {
  const nodes = [];
  const add = (name, depth, at, us, parent, colour, failed, attributes) => {
    nodes.push({ name, depth, at, us: us || 0, parent, colour, failed, attributes, number: nodes.length });
    return nodes[nodes.length - 1];
  };
  const calls = (list, depth, parent) => {
    const above = [parent];
    for (const [number, below, at, us, failed, own] of list) {
      const module = data.modules[number];
      const path = module.attributes["inferspan.module.name"];
      above[below + 1] = add(path || module.name, depth + below, at, us, above[below] || parent, typeColour(typeOf(module)), failed, { ...module.attributes, ...(own || {}) });
    }
  };
  const top = add(request.row.name, 0, 0, request.us, null, "var(--request)", request.row.failed, {});
  calls(request.calls, 1, top);
  for (const phase of request.phases) {
    const node = add(phase.name, 1, phase.at, phase.us, top, phaseColour(phase.name), phase.failed, phase.attributes);
    for (const step of phase.steps) {
      const index = step.attributes["inferspan.step.index"];
      calls(step.calls, 3, add(index === undefined ? step.name : "step " + index, 2, step.at, step.us, node, phaseColour(step.name), step.failed, step.attributes));
    }
  }
  return nodes;
}

function flameView(request) {
  const nodes = flameNodes(request);
  if (nodes.length < 3 || !request.us) return null;
  const depth = Math.max(...nodes.map((node) => node.depth)) + 1;
  const area = make("div", { class: "boxes", style: { height: depth * 19 + 1 + "px" } });
  const told = make("div", { class: "small", "aria-live": "polite" }, " ");
  const heading = make("div", {}), narrow = make("div", { class: "small dim" });
  let current = nodes[0];
  const tell = () => { told.textContent = current.name + ": " + micros(current.us) + ", " + percent(current.us / request.us) + " of the request" + (current.parent && current.parent.us ? ", " + percent(current.us / current.parent.us) + " of " + current.parent.name : ""); };
  const range = zoomRange(request.us, (now) => {
    const width = now.to - now.from, least = width / 1500, ends = [];
    const boxes = [];
    let small = 0;
    for (const node of nodes) {
      if (node.at + node.us < now.from || node.at > now.to) continue;
      // Boxes too narrow to see are drawn where nothing has been drawn yet, so that a dense row still looks filled.
      if (node !== current && node.us < least && node.at < (ends[node.depth] || 0)) { small += 1; continue; }
      ends[node.depth] = Math.max(node.at + node.us, node.at + least);
      const left = Math.max(0, now.place(node.at)), right = Math.min(100, now.place(node.at + node.us));
      if (boxes.length >= MOST_BOXES && node !== current) { small += 1; continue; }
      boxes.push(make("div", { class: "box" + (node.failed ? " failed" : "") + (node === current ? " chosen" : ""), tip: flameTip(node, request),
        style: { left: left + "%", width: Math.max(0, right - left) + "%", top: node.depth * 19 + "px", background: node.colour },
        onclick: () => { if (range.dragged) return; current = node; tell(); range.set(node.at, node.at + node.us); } }, right - left > 2 ? node.name : ""));
    }
    area.replaceChildren(...boxes);
    heading.replaceChildren(rangeAxis(now, "from the start of the request"));
    narrow.textContent = small ? counted(small, "span") + " too narrow to draw here: zoom in" : "";
  });
  const go = (node) => { if (node) { current = node; tell(); range.set(range.from, range.to); } };
  const beside = (way) => {
    const row = nodes.filter((node) => node.depth === current.depth).sort((a, b) => a.at - b.at);
    return row[row.indexOf(current) + way];
  };
  const walk = new Map([
    ["ArrowUp", () => go(current.parent)], ["ArrowDown", () => go(nodes.find((node) => node.parent === current))],
    ["ArrowLeft", () => go(beside(-1))], ["ArrowRight", () => go(beside(1))],
    ["Enter", () => range.set(current.at, current.at + current.us)], ["Escape", () => { current = nodes[0]; tell(); range.reset(); }],
  ]);
  const chart = make("div", { class: "flame", tabindex: 0, role: "application",
    "aria-label": "flame view: arrows walk through the spans, Enter zooms into one, Escape shows all, plus and minus zoom",
    onkeydown: (event) => { const act = walk.get(event.key); if (act) { event.preventDefault(); act(); } } }, heading, make("div", { class: "row" }, make("div", { class: "label dim small" },
    "request", make("br"), "stage, phase", make("br"), "step", depth > 3 ? [make("br"), "modules"] : ""), area));
  zoomHandles(chart, range, () => area, false);
  range.reset();
  tell();
  return make("details", { open: true }, make("summary", {}, "Flame view"), make("div", { class: "panel" }, make("div", { class: "legend" }, zoomButtons(range, "the flame view"),
    make("span", {}, "click a box to zoom into it; drag to choose a range; Ctrl and wheel zoom")), chart, told, narrow));
}

function flameTip(node, request) {
  return () => node.name + (node.failed ? " (failed)" : "") + "\n" + micros(node.us) + ", " + percent(node.us / request.us) + " of the request, starts at " + micros(node.at) + "\n" + attributeTip(node.attributes);
}
