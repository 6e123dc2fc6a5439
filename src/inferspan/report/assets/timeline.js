// The waterfall of one request: an overview row of all steps, then phases and steps; sampled steps open into their modules.
const STEPS_AT_FIRST = 8;
const typeColours = new Map();

function typeColour(type) {
  if (!typeColours.has(type)) typeColours.set(type, cssColour(typeColours.size));
  return typeColours.get(type);
}

const typeOf = (module) => module.attributes["inferspan.module.type"] || module.attributes["inferspan.profiler.kind"] || module.name;
const phaseColour = (name) => (name.startsWith("prefill") ? "var(--prefill)" : name.startsWith("decode") ? "var(--decode)" : "var(--request)");

function axis(total, from) {
  return make("div", { class: "row" }, make("div", { class: "label dim small" }, from), make("div", { class: "axis" },
    [0, 0.25, 0.5, 0.75, 1].map((share) => make("span", { style: { left: share * 100 + "%" } }, share ? micros(total * share) : "0"))));
}

function bar(at, us, total, options) {
  const left = Math.max(0, Math.min(100, at / total * 100)), width = Math.max(0, Math.min(100 - left, us / total * 100));
  const block = make("div", { class: "bar" + (options.failed ? " failed" : "") + (options.style || ""), tip: options.tip,
    style: { left: left + "%", width: width + "%", background: options.colour }, onclick: options.onclick });
  if (!options.time) return [block];
  const text = make("span", { class: "time", style: left + width > 78 ? { right: 100 - left + "%" } : { left: left + width + "%" } }, options.time);
  if (left + width > 78 && left < 14) Object.assign(text.style, { right: "4px", left: "auto" });
  return [block, text];
}

function barTip(span) {
  const lines = [span.name + (span.failed ? " (failed)" : ""), micros(span.us) + ", starts at " + micros(span.at)];
  return () => lines.join("\n") + "\n" + attributeTip(span.attributes);
}

function row(span, total, depth, options) {
  const twist = options.open ? "▸" : "";
  const line = make("div", { class: "row" + (options.open ? " opens" : ""), tabindex: options.open ? 0 : null, role: options.open ? "button" : null, "aria-expanded": options.open ? "false" : null, tip: barTip(span) },
    make("div", { class: "label", style: { paddingLeft: 4 + depth * 12 + "px" } }, make("span", { class: "twist" }, twist), options.label || span.name,
      options.aside && make("span", { class: "dim small" }, " · " + options.aside)),
    make("div", { class: "track" }, bar(span.at - (options.from || 0), span.us, total, { colour: options.colour, failed: span.failed, time: micros(span.us) })));
  if (!options.open) return line;
  let inner = null;
  const toggle = () => {
    if (inner) { inner.remove(); inner = null; } else { inner = options.open(); line.after(inner); }
    line.setAttribute("aria-expanded", inner ? "true" : "false");
    line.querySelector(".twist").textContent = inner ? "▾" : "▸";
  };
  line.addEventListener("click", toggle);
  line.addEventListener("keydown", (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), toggle()));
  line.toggle = toggle;
  return line;
}

function moduleRows(span, calls) {
  const total = span.us || 1;
  const lines = calls.map(([number, depth, at, us, failed, own]) => {
    const module = data.modules[number];
    const type = typeOf(module);
    return row({ name: module.name, at, us, failed, attributes: { ...module.attributes, ...(own || {}) } }, total, depth,
      { colour: typeColour(type), from: span.at });
  });
  return make("div", { class: "inner" },
    make("div", { class: "legend" }, "Scale: this step, " + micros(span.us) + " by the host's clock. ",
      [...new Set(calls.map(([number]) => typeOf(data.modules[number])))].slice(0, 16).map((type) =>
        make("span", {}, make("i", { style: { background: typeColour(type) } }), type))),
    axis(total, "from the start of the step"), make("div", { class: "tall" }, lines));
}

function stepRow(step, request) {
  const a = step.attributes, index = a["inferspan.step.index"];
  const shown = [];
  if (a["inferspan.step.tokens"] > 1) shown.push(counted(a["inferspan.step.tokens"], "token") + (request.row.batch > 1 ? " a row" : ""));
  const profiled = step.calls.filter(([number]) => data.modules[number].attributes["inferspan.profiler.kind"] !== undefined).length;
  if (step.calls.length > profiled) shown.push(counted(step.calls.length - profiled, "module"));
  if (profiled) shown.push(counted(profiled, "kernel"));
  return row(step, request.us || 1, 1, { colour: phaseColour(step.name), label: index === undefined ? step.name : "step " + index,
    aside: shown.join(", "), open: step.calls.length ? () => moduleRows(step, step.calls) : null });
}

function phaseRows(phase, request) {
  const lines = [row(phase, request.us || 1, 0, { colour: phaseColour(phase.name), label: make("b", {}, phase.name),
    aside: counted(phase.steps.length, "step") })];
  const early = phase.steps.filter((step, place) => place < STEPS_AT_FIRST || step.calls.length || step.failed);
  const rows = new Map(early.map((step) => [step, stepRow(step, request)]));
  lines.push(...rows.values());
  phase.rows = rows;
  const rest = phase.steps.length - early.length;
  if (rest > 0) {
    const button = make("button", { class: "others small", onclick: () => phase.showAll() }, "show the other " + counted(rest, "step"));
    phase.showAll = () => {
      const all = phase.steps.map((step) => {
        if (!rows.has(step)) rows.set(step, stepRow(step, request));
        return rows.get(step);
      });
      let last = lines[0];
      for (const line of all) {
        // A step that is open keeps its modules right below it.
        if (line.previousElementSibling !== last) last.after(line);
        last = line.nextElementSibling && line.nextElementSibling.className === "inner" ? line.nextElementSibling : line;
      }
      button.remove();
    };
    lines.push(button);
  }
  return lines;
}

function lane(request) {
  const steps = request.phases.flatMap((phase) => phase.steps.map((step) => [phase, step]));
  if (!steps.length) return null;
  const track = make("div", { class: "track lane" }, steps.flatMap(([phase, step]) => bar(step.at, step.us, request.us || 1, {
    colour: phaseColour(step.name), failed: step.failed, style: step.calls.length ? " sampled" : "", tip: barTip(step),
    onclick: () => {
      if (!phase.rows.has(step)) phase.showAll();
      const line = phase.rows.get(step);
      if (line.toggle && !line.nextElementSibling?.classList.contains("inner")) line.toggle();
      line.scrollIntoView({ block: "center" });
      line.classList.add("chosen");
      setTimeout(() => line.classList.remove("chosen"), 1600);
    } })));
  return make("div", { class: "row" }, make("div", { class: "label" }, make("span", { class: "twist" }), "all steps"), track);
}

function notKept(request) {
  if (request.attributes["inferspan.detail.kept"] !== false) return null;
  return "Detail not kept (keep=" + request.attributes["inferspan.detail.rule"] + "): " + counted(request.attributes["inferspan.detail.spans"] || 0, "span") +
    " of phases, steps and modules were recorded, and discarded at the end, because the request was none of these.";
}

function timeline(request) {
  const own = { name: request.row.name, at: 0, us: request.us, failed: request.row.failed, attributes: {} };
  const rows = [axis(request.us || 1, "from the start of the request"), row(own, request.us || 1, 0, { colour: "var(--request)" })];
  if (request.kind === "forward" && request.calls.length) {
    rows.push(moduleRows({ at: 0, us: request.us }, request.calls));
  } else if (request.phases.length) {
    rows.push(lane(request), ...request.phases.flatMap((phase) => phaseRows(phase, request)));
  } else if (!request.detailLeftOut) {
    rows.push(make("p", { class: "dim" }, notKept(request) || (request.row.failed ? "The request failed before a first step ended."
      : "The file holds no phases, steps or modules of this request: it was not recorded in detail, or the spans were lost.")));
  }
  const sampled = request.phases.some((phase) => phase.steps.some((step) => step.calls.length));
  return [make("h3", {}, "Phases and steps"), make("div", { class: "panel timeline" },
    request.phases.length > 0 && make("div", { class: "legend" },
      make("span", {}, make("i", { style: { background: "var(--prefill)" } }), "prefill: the prompt"),
      make("span", {}, make("i", { style: { background: "var(--decode)" } }), "decode: token by token"),
      sampled ? make("span", {}, "steps with ▸ (underlined in the first row) hold module spans: click to open") : null),
    rows)];
}
