// A range of time that buttons, keys, the wheel and dragging change; charts on the same axis share one.
const LEAST_SHARE = 1e-6;

function zoomRange(total, redraw) {
  const range = { from: 0, to: total, total };
  range.set = (from, to) => {
    const width = Math.min(total, Math.max(total * LEAST_SHARE, to - from));
    range.from = Math.max(0, Math.min(total - width, from));
    range.to = range.from + width;
    redraw(range);
  };
  range.by = (factor, centre) => {
    const at = centre === undefined ? (range.from + range.to) / 2 : centre;
    range.set(at - (at - range.from) * factor, at + (range.to - at) * factor);
  };
  range.move = (share) => {
    const way = (range.to - range.from) * share;
    range.set(range.from + way, range.to + way);
  };
  range.reset = () => range.set(0, total);
  range.place = (at) => (at - range.from) / (range.to - range.from) * 100;
  return range;
}

function zoomButtons(range, what) {
  const button = (sign, meaning, act) => make("button", { class: "small", onclick: act, "aria-label": meaning + " of " + what, title: meaning }, sign);
  return make("span", { class: "zoom" }, button("−", "zoom out", () => range.by(2)), button("+", "zoom in", () => range.by(0.5)),
    button("◂", "earlier", () => range.move(-0.5)), button("▸", "later", () => range.move(0.5)), button("all", "whole range", () => range.reset()));
}

// Keys: + and - zoom, 0 or Home shows all; arrows move unless the chart has a use for them. The wheel zooms with Ctrl held, dragging chooses a range.
function zoomHandles(element, range, area, arrows) {
  const keys = new Map([["+", () => range.by(0.5)], ["=", () => range.by(0.5)], ["-", () => range.by(2)], ["0", () => range.reset()], ["Home", () => range.reset()],
    ...(arrows ? [["ArrowLeft", () => range.move(-0.25)], ["ArrowRight", () => range.move(0.25)]] : [])]);
  element.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? null : keys.get(event.key);
    if (!act) return;
    event.preventDefault();
    act();
  });
  const timeAt = (event) => {
    const box = area().getBoundingClientRect();
    return range.from + Math.max(0, Math.min(1, (event.clientX - box.left) / (box.width || 1))) * (range.to - range.from);
  };
  element.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    range.by(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event));
  }, { passive: false });
  let begun = null, at = 0;
  element.addEventListener("pointerdown", (event) => { begun = event.button === 0 ? timeAt(event) : null; at = event.clientX; });
  element.addEventListener("pointerup", (event) => {
    const end = timeAt(event), start = begun;
    begun = null;
    if (start === null || Math.abs(event.clientX - at) < 8) return;
    range.dragged = true;
    setTimeout(() => { range.dragged = false; }, 0);
    range.set(Math.min(start, end), Math.max(start, end));
  });
}

function rangeAxis(range, from) {
  return make("div", { class: "row" }, make("div", { class: "label dim small" }, from), make("div", { class: "axis" },
    [0, 0.25, 0.5, 0.75, 1].map((share) => { const at = range.from + share * (range.to - range.from); return make("span", { style: { left: share * 100 + "%" } }, at ? micros(at) : "0"); })));
}

// Bars -> rows in which none overlaps another; bars that begin first, and the longer ones, are on top.
function packed(bars, most) {
  const rows = [], ends = [];
  let left = 0;
  for (const bar of [...bars].sort((a, b) => a.at - b.at || b.us - a.us)) {
    let row = ends.findIndex((end) => end <= bar.at);
    if (row < 0) row = ends.length;
    if (row >= most) { left += 1; continue; }
    (rows[row] = rows[row] || []).push(bar);
    ends[row] = bar.at + bar.us;
  }
  return { rows, left };
}
