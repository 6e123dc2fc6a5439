// Runs the script of a report (first argument) on many sets of data (second argument, a JSON array) without a browser.
// Prints how many were drawn, and what went wrong: exceptions, parts that could not be drawn, and numbers that no browser can place.
"use strict";
const fs = require("fs");

let problems = [], inData = false;
const CANNOT = /could not be drawn|NaN|undefined|\[object/;

function note(text) {
  if (!inData && CANNOT.test(text)) problems.push(text.slice(0, 300));
}

class Element {
  constructor(tag) {
    this.tag = tag;
    this.style = {};
    this.dataset = {};
    this.classList = { contains: () => false, add() {}, remove() {} };
    this.children = [];
    this.listeners = {};
  }
  set textContent(value) { note(String(value)); this.words = String(value); }
  get textContent() { return this.words || ""; }
  append(...children) {
    for (const child of children) {
      if (!(child instanceof Element)) note(String(child));
      this.children.push(child);
    }
  }
  replaceChildren(...children) { this.children = []; this.append(...children); }
  after() {}
  remove() {}
  scrollIntoView() {}
  addEventListener(kind, handler) { this.listeners[kind] = handler; }
  setAttribute(key, value) { if (key !== "placeholder") note(key + "=" + value); }
  querySelector() { return new Element("none"); }
  get nextElementSibling() { return null; }
  get previousElementSibling() { return null; }
}

// Points at everything, and chooses every request once.
function visit(element, clicks) {
  if (!(element instanceof Element)) return;
  if (typeof element.tip === "function") note(element.tip());
  else if (element.tip) note(String(element.tip));
  if (clicks && element.tag === "tr" && element.listeners.click) element.listeners.click();
  for (const child of element.children) visit(child, clicks);
}

const html = fs.readFileSync(process.argv[2], "utf8");
const script = [...html.matchAll(/<script>([\s\S]*?)<\/script>/g)].map((match) => match[1]).join("\n");
let drawn = 0;
const found = [];
JSON.parse(fs.readFileSync(process.argv[3], "utf8")).forEach((data, number) => {
  const byId = { data: new Element("script"), page: new Element("main"), tip: new Element("div") };
  byId.data.words = JSON.stringify(data);
  inData = CANNOT.test(byId.data.words); // then it may stand on the page
  const document = {
    documentElement: new Element("html"),
    getElementById: (id) => byId[id],
    createElement: (tag) => new Element(tag),
    createElementNS: (_, tag) => new Element(tag),
    addEventListener() {},
  };
  const given = { document, location: { hash: "" }, history: { replaceState() {} }, matchMedia: () => ({ matches: false, addEventListener() {} }), addEventListener() {} };
  problems = [];
  try {
    new Function(...Object.keys(given), script)(...Object.values(given));
    visit(byId.page, true);
    visit(byId.page, false);
    drawn += 1;
  } catch (error) {
    problems.push(error.stack.split("\n").slice(0, 3).join(" "));
  }
  found.push(...problems.map((problem) => "data " + number + ": " + problem));
});
console.log(JSON.stringify({ drawn, problems: found.slice(0, 20) }));
