// Figures of what modules returned or were given, as a map: a row for each module, a column for each step that has recorded modules.
const MAP_ROWS = 200, MAP_CELLS = 12000;
const MAP_FIGURES = [["abs_max", "largest magnitude"], ["mean", "mean"], ["std", "standard deviation"], ["min", "minimum"], ["max", "maximum"], ["sparsity", "share of zeros"]];
const finite = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

// Rows by module, in the order of their first call: its figures by step, the last call of a step.
function activationRows(request, side) {
  const prefix = "inferspan." + side + ".stat.", rows = new Map(), steps = [];
  const take = (title, calls) => {
    let used = false;
    for (const [number, , , , , own] of calls) {
      if (!own || finite(own[prefix + "element_count"]) === null) continue;
      const module = data.modules[number], name = plain(module.attributes["inferspan.module.name"] || module.name);
      if (!rows.has(name)) rows.set(name, { name, type: plain(typeOf(module)), cells: new Map() });
      rows.get(name).cells.set(steps.length, own);
      used = true;
    }
    if (used) steps.push(title);
  };
  take("the pass", request.calls);
  for (const phase of request.phases) for (const step of phase.steps) {
    const index = step.attributes["inferspan.step.index"];
    take(index === undefined ? plain(step.name) : "step " + plain(index), step.calls);
  }
  return { rows: [...rows.values()], steps, prefix };
}

function activationMap(found, figure, title) {
  const columns = found.steps.slice(0, Math.max(1, Math.floor(MAP_CELLS / Math.max(1, Math.min(found.rows.length, MAP_ROWS)))));
  const rows = found.rows.slice(0, MAP_ROWS), values = [];
  for (const row of rows) for (const [column, own] of row.cells) {
    const value = column < columns.length ? finite(own[found.prefix + figure]) : null;
    if (value !== null) values.push(value);
  }
  const most = highest(values.map(Math.abs)) || 1;
  const lines = rows.map((row) => {
    const cells = [...row.cells].filter(([column]) => column < columns.length).map(([column, own]) => {
      const value = finite(own[found.prefix + figure]), bad = [["NaN", own[found.prefix + "nan_count"]], ["Inf", own[found.prefix + "inf_count"]]].filter(([, count]) => finite(count));
      const cell = drawing("rect", { x: column, y: 0, width: 1, height: 1, style: "fill:" + (bad.length ? "var(--bad)" : value < 0 ? "var(--prefill)" : "var(--decode)"),
        "fill-opacity": bad.length ? 1 : value === null ? 0 : Math.max(0.04, Math.sqrt(Math.abs(value) / most)).toFixed(3) });
      cell.tip = () => row.name + " (" + row.type + "), " + columns[column] + "\n" + title + " " + real(value) + bad.map(([word, count]) => "\n" + real(count) + " " + word).join("") + "\nof " + counted(finite(own[found.prefix + "element_count"]), "value");
      return cell;
    });
    return make("div", { class: "row" }, make("div", { class: "label mono", tip: row.type }, row.name), make("div", { class: "track" },
      drawing("svg", { class: "cells", viewBox: "0 0 " + columns.length + " 1", preserveAspectRatio: "none", role: "img", "aria-label": title + " of " + row.name + " by step" }, ...cells)));
  });
  const left = [found.rows.length > rows.length && counted(found.rows.length - rows.length, "module"), found.steps.length > columns.length && counted(found.steps.length - columns.length, "step")].filter(Boolean);
  return [make("div", { class: "small dim" }, "Columns: " + columns[0] + (columns.length > 1 ? " to " + columns[columns.length - 1] + ", those with recorded modules" : "") + ". The darker, the larger: the most is " + real(most)
    + (values.some((value) => value < 0) ? "; orange is negative" : "") + ". Red: NaN or Inf." + (left.length ? " Not drawn: " + left.join(", ") + "." : "")), ...lines];
}

function activationView(request) {
  const sides = [["output", "outputs"], ["input", "inputs"]].map(([side, words]) => ({ words, ...activationRows(request, side) })).filter((found) => found.rows.length);
  if (!sides.length) return null;
  const area = make("div", { class: "timeline" }), state = { side: 0, figure: 0 };
  const fill = () => area.replaceChildren(...activationMap(sides[state.side], ...MAP_FIGURES[state.figure]));
  const choice = (label, options, act) => make("label", {}, label + " ", make("select", { onchange: (event) => { act(Number(event.target.value)); fill(); } }, options.map((text, value) => make("option", { value: String(value) }, text))));
  fill();
  return [make("h3", {}, "Activations"), make("div", { class: "panel" }, make("div", { class: "legend" },
    choice("show", MAP_FIGURES.map(([, title]) => title), (value) => { state.figure = value; }),
    sides.length > 1 && choice("of", sides.map((found) => found.words), (value) => { state.side = value; })), area)];
}
