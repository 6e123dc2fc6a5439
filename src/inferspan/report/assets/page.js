// Building blocks: elements, tooltips, numbers with units. Text from the session reaches the page as text nodes only, and names from the
// session are looked up in maps only: an object has properties of its own, such as __proto__ or constructor.
const data = JSON.parse(document.getElementById("data").textContent);
const ABSENT = "–";

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

const tip = document.getElementById("tip");
document.addEventListener("mousemove", (event) => {
  let element = event.target;
  while (element && !element.tip) element = element.parentElement;
  tip.hidden = !element;
  if (!element) return;
  tip.textContent = typeof element.tip === "function" ? element.tip() : element.tip;
  const width = tip.offsetWidth, height = tip.offsetHeight;
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8)) + "px";
  tip.style.top = (event.clientY + 18 + height > innerHeight ? Math.max(4, event.clientY - height - 10) : event.clientY + 18) + "px";
});

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
  if (unit === "1" && /utilization|ratio|activity/.test(name || "")) return percent(value);
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
  [/memory\.(start|end|peak)$|\.bytes$/, bytes],
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
