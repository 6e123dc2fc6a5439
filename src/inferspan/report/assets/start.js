// Put the page together. The chosen request is in the address (#request-3), so that a link can name it.
const root = document.documentElement;
const setTheme = (dark) => { root.dataset.theme = dark ? "dark" : "light"; };
setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => setTheme(event.matches));

const detail = make("section", { id: "request" });

function choose(request, quiet) {
  for (const other of data.requests) {
    other.chosen = other === request;
    if (other.line) other.line.className = other.chosen ? "chosen" : "";
  }
  detail.replaceChildren(...[drawn(() => requestView(request))].flat(Infinity).filter(Boolean));
  if (!quiet) history.replaceState(null, "", "#request-" + request.number);
}

function contents(sections) {
  const known = sections.filter(([id, , view]) => id && view);
  return make("nav", { "aria-label": "sections" }, known.map(([id, name]) => make("a", { href: "#" + id }, name)));
}

const show = (request) => { choose(request); detail.scrollIntoView({ block: "start" }); };
const requestsSection = () => [make("h2", { id: "requests" }, "Requests"), data.requests.length ? drawn(() => requestTable((request) => choose(request))) : make("div", { class: "panel dim" },
  "No request of an instrumented model is in this file. Call inferspan.instrument(model) before the model is used, and let the process end or call inferspan.flush().")];
const SECTIONS = [["explain", "Why", drawn(findingsView)], ["session", "Timeline", drawn(() => sessionView(show))], ["requests", "Requests", requestsSection()], ["", "", detail], ["events", "Events", drawn(momentsView)],
  ["operations", "Operations", drawn(operationsView)], ["memory", "Memory", drawn(memoryView)], ["flow", "Data flow", drawn(flowView)], ["graph", "Graph", drawn(graphView)], ["metrics", "Metrics", drawn(metricsView)], ["system", "System", drawn(systemView)]];

document.getElementById("page").append(...[
  make("header", { class: "head" }, make("div", {}, make("h1", {}, data.title),
    make("div", { class: "dim small" }, "session file " + data.file + data.requests.filter((request) => request.startMs !== null).slice(0, 1).map((request) => ", from " + clock(request.startMs)))),
  make("button", { onclick: () => setTheme(root.dataset.theme !== "dark"), "aria-label": "switch between light and dark" }, "light / dark")),
  contents(SECTIONS),
  ...data.notes.map((note) => make("div", { class: "note" }, note)),
  drawn(cards),
  ...SECTIONS.map(([, , view]) => view),
  make("footer", {}, "Written by inferspan " + data.version + ". Times are host times unless a device time is named. A dash means that the session does not say."),
].flat(Infinity).filter(Boolean));

// On paper everything is open and light.
let closed = [], screen = null;
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")].filter((element) => !element.closest(".below") && element.querySelectorAll("tr").length < 400);
  closed.forEach((element) => { element.open = true; });
  screen = root.dataset.theme;
  setTheme(false);
});
addEventListener("afterprint", () => {
  closed.forEach((element) => { element.open = false; });
  setTheme(screen === "dark");
});

if (data.requests.length) {
  const named = /^#request-(\d+)$/.exec(location.hash);
  const first = data.requests.find((request) => named && request.number === Number(named[1]))
    || data.requests.find((request) => request.phases.length && !request.row.failed && !request.row.notes.includes("warm-up")) || data.requests[0];
  choose(first, true);
}
