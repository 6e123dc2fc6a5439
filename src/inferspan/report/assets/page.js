// Building blocks: elements, tooltips, numbers with units. Text from the session reaches the page as text nodes only, and names from the
// session are looked up in maps only: an object has properties of its own, such as __proto__ or constructor.
const data = JSON.parse(document.getElementById("data").textContent);
const ABSENT = "–";

// Of any number of values: a call has room for some 100,000 arguments.
const lowest = (values) => values.reduce((low, value) => Math.min(low, value), Infinity);
const highest = (values) => values.reduce((high, value) => Math.max(high, value), -Infinity);

function make(tag, options, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(options || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") element.className = value;
    else if (key === "style") Object.assign(element.style, value);
    else if (key === "tip") element.tip = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

function drawing(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Orders two values of a column; what is not known comes last.
function compared(x, y, down) {
  if (x === null || x === undefined || y === null || y === undefined) return (x === null || x === undefined) - (y === null || y === undefined);
  return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
}

// Heads of a table that sort it, by mouse and keyboard: columns are [title, key, show, class, meaning].
function sortableHeader(columns, state, fill) {
  const heads = columns.map(([title, , , style, meaning], column) => make("th", { class: "sortable " + (style || ""), scope: "col", tip: (meaning ? meaning + "\n" : "") + "click to sort", onclick: () => {
    state.down = state.column === column && !state.down;
    state.column = column;
    mark();
    fill();
  } }, make("button", { class: "sort" }, title)));
  const mark = () => heads.forEach((head, column) => head.setAttribute("aria-sort", column !== state.column ? "none" : state.down ? "descending" : "ascending"));
  mark();
  return make("tr", {}, heads);
}

const tip = document.getElementById("tip");
function showTip(target, x, y) {
  let element = target;
  while (element && !element.tip) element = element.parentElement;
  tip.hidden = !element;
  if (!element) return;
  tip.textContent = typeof element.tip === "function" ? element.tip() : element.tip;
  const width = tip.offsetWidth, height = tip.offsetHeight;
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - width - 8)) + "px";
  tip.style.top = (y + 18 + height > innerHeight ? Math.max(4, y - height - 10) : y + 18) + "px";
}
document.addEventListener("mousemove", (event) => showTip(event.target, event.clientX, event.clientY));
// The same for what the keyboard reaches; Escape hides it.
document.addEventListener("focusin", (event) => {
  const box = event.target.getBoundingClientRect();
  if (event.target.matches(":focus-visible")) showTip(event.target, box.left, box.bottom - 14);
});
document.addEventListener("focusout", () => { tip.hidden = true; });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

// Integers that a double cannot hold come as text of their digits.
const exact = (value) => (typeof value === "string" && /^-?\d{16,}$/.test(value) ? BigInt(value) : value);

function real(value) {
  if (value === null || value === undefined) return ABSENT;
  value = exact(value);
  if (typeof value === "bigint") return value.toLocaleString("en-US");
  if (typeof value !== "number") return plain(value);
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e15)) return value.toExponential(2);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

const counted = (value, noun) => real(value) + " " + noun + (value === 1 ? "" : "s");

function scaled(value, unit, steps) {
  if (value === null || value === undefined) return ABSENT;
  value = exact(value);
  if (typeof value === "bigint") value = Number(value);
  if (typeof value !== "number") return plain(value);
  for (const [least, name] of steps) {
    if (Math.abs(value) >= least) return real(value / least) + " " + name;
  }
  return value === 0 ? "0 " + unit : real(value) + " " + unit;
}

const KI = 1024;
const bytes = (value) => scaled(value, "B", [[KI ** 4, "TiB"], [KI ** 3, "GiB"], [KI ** 2, "MiB"], [KI, "KiB"]]);
const decimal = (value, unit) => scaled(value, unit, [[1e9, "G" + unit], [1e6, "M" + unit], [1e3, "k" + unit], [1, unit], [1e-3, "m" + unit]]);
const micros = (value) => scaled(value, "µs", [[1e6, "s"], [1e3, "ms"], [1, "µs"]]);
const seconds = (value) => (typeof value === "number" ? micros(value * 1e6) : real(value));
const percent = (value) => (typeof value === "number" ? real(value * 100) + " %" : real(value));
const perSecond = (value) => (value === null || value === undefined ? ABSENT : real(value) + " tok/s");
const joules = (value) => decimal(value, "J");

// Base units of the telemetry -> units for people.
const UNITS = new Map([
  ["s", seconds], ["By", bytes], ["1", real], ["J", joules],
  ["W", (value) => decimal(value, "W")], ["Hz", (value) => decimal(value, "Hz")], ["Cel", (value) => real(value) + " °C"],
]);

function inUnit(value, unit, name) {
  if (value === null || value === undefined) return ABSENT;
  if (unit === "1" && /utilization|ratio|activity|probability|acceptance/.test(name || "")) return percent(value);
  if (unit === "1" && /entropy/.test(name || "")) return real(value) + " nats";
  if (unit === "1" && /imbalance/.test(name || "")) return real(value) + " × the mean";
  if (unit === "1" && /status|active$/.test(name || "")) return Number(value) ? "yes" : "no";
  if (UNITS.has(unit)) return UNITS.get(unit)(value);
  return real(value) + (unit ? " " + unit.replace(/[{}]/g, "") + (unit.startsWith("{") && value !== 1 ? "s" : "") : "");
}

function plain(value) {
  if (Array.isArray(value)) return "[" + value.map(plain).join(", ") + "]";
  if (value && typeof value === "object") return JSON.stringify(value);
  return String(value);
}

// A section that cannot be drawn is replaced by one line; the rest of the page stays.
function drawn(draw) {
  try {
    return draw();
  } catch (error) {
    return make("div", { class: "note" }, "This section could not be drawn: " + error.message);
  }
}

const ATTRIBUTE_UNITS = [
  [/^inferspan\.(time_|device\.time)|time_to_first_chunk$|^gen_ai\.latency\./, seconds],
  [/memory\.(\w+\.)?(start|end|peak)$|^inferspan\.oom\.(requested|allocated|reserved|high_water)$|\.bytes$/, bytes],
  [/tokens_per_second$/, perSecond],
  [/^inferspan\.energy/, joules],
];

function attributeText(key, value) {
  if (typeof value === "number") {
    const found = ATTRIBUTE_UNITS.find(([pattern]) => pattern.test(key));
    if (found) return found[1](value);
    return Number.isInteger(value) ? value.toLocaleString("en-US", { useGrouping: Math.abs(value) >= 10000 }) : String(value);
  }
  return plain(value);
}

function attributeTip(attributes) {
  return Object.entries(attributes).map(([key, value]) => key.replace(/^inferspan\./, "") + ": " + attributeText(key, value)).join("\n");
}

const BRIEFS = new Map(Object.entries(data.briefs));

function pairs(attributes) {
  return make("table", { class: "pairs" }, make("tbody", {}, Object.entries(attributes).map(([key, value]) =>
    make("tr", { tip: BRIEFS.get(key) }, make("td", { class: "mono" }, key), make("td", {}, attributeText(key, value))))));
}

function clock(milliseconds) {
  if (milliseconds === null) return "at an unknown time";
  const date = new Date(milliseconds);
  return isNaN(date) ? ABSENT : date.toISOString().replace("T", " ").slice(0, 23) + " UTC";
}

const cssColour = (number) => "var(--c" + (number % 8) + ")";
