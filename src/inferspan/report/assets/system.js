// The machine and the settings of each process, and what its telemetry says of itself.
const SYSTEM_UNITS = new Map([["memory", bytes], ["memory_limit", bytes], ["power_limit", (value) => decimal(value, "W")], ["cpu_quota", (value) => real(value) + " CPUs"]]);
const APART = ["process", "gpus", "settings", "container"];

const processName = (number) => (data.system[number] ? plain(data.system[number].process) : "unknown process");

function factRows(facts, prefix) {
  return Object.entries(facts).filter(([key]) => !APART.includes(key)).map(([key, value]) =>
    make("tr", {}, make("td", {}, (prefix || "") + key.replace(/_/g, " ").replace(/\./g, " ")), make("td", {}, (SYSTEM_UNITS.get(key) || plain)(value))));
}

function systemView() {
  const several = data.system.length > 1;
  return [make("h2", { id: "system" }, "System"), ...data.system.map((system, number) => make("details", { open: !several }, make("summary", {}, plain(system.process)),
    make("div", { class: "panel scroll" }, make("table", { class: "pairs" }, make("tbody", {}, factRows(system), factRows(system.container || {}, "container "),
      (system.gpus || []).flatMap((gpu, place) => factRows(gpu, "GPU " + place + " "))))),
    system.settings && make("details", {}, make("summary", {}, "Settings in force (" + system.settings.length + ")"), make("div", { class: "panel scroll tall" }, make("table", { class: "pairs" },
      make("thead", {}, make("tr", {}, ["Setting", "Value", "From"].map((head) => make("th", { scope: "col" }, head)))), make("tbody", {}, system.settings.map((one) =>
        make("tr", {}, make("td", { class: "mono" }, one.name), make("td", {}, plain(one.value)), make("td", {}, one.source))))))),
    make("details", {}, make("summary", {}, "Resource attributes"), make("div", { class: "panel scroll" }, Object.keys(data.resources[number]).length ? pairs(data.resources[number]) : make("span", { class: "dim" }, "The resource has no attributes.")))))];
}
