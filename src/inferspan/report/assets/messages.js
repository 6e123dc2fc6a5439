// Prompts and outputs: roles of a chat, and in a batch each output beside its input.
const MOST_TURNS = 200;

function messageList(value) {
  let list = value;
  try { list = typeof value === "string" ? JSON.parse(value) : value; } catch { list = [{ role: "?", parts: [{ content: value }] }]; }
  return (Array.isArray(list) ? list : [list]).map((message) => {
    // Lists and maps on a span come as text of each map.
    let known = message;
    if (typeof message === "string") { try { known = JSON.parse(message); } catch { known = message; } }
    known = known && typeof known === "object" ? known : { parts: [{ content: message }] };
    const parts = Array.isArray(known.parts) ? known.parts : [known];
    return { role: plain(known.role || "?"), reason: known.finish_reason ? plain(known.finish_reason) : "",
      text: parts.map((part) => plain(part && typeof part === "object" && "content" in part ? part.content : part)).join("\n") };
  });
}

function messagesOf(request) {
  if (!request.said) {
    const get = (key) => (request.messages[key] === undefined ? [] : messageList(request.messages[key]));
    request.said = { input: get("gen_ai.input.messages"), output: get("gen_ai.output.messages") };
  }
  return request.said;
}

// The rows of a batch, each with its own part of the inputs and its outputs; null where they cannot be told apart.
function pairedMessages(request) {
  const { input, output } = messagesOf(request), rows = request.row.batch;
  if (!(rows > 1) || !input.length || !output.length) return null;
  const prompts = input.length % rows ? 0 : rows;
  const pattern = (part) => part.map((message) => message.role).join();
  const size = input.length / prompts, each = output.length / prompts;
  if (!prompts || !Number.isInteger(each)) return null;
  const pairsFound = Array.from({ length: prompts }, (_, row) => ({ input: input.slice(row * size, (row + 1) * size), output: output.slice(row * each, (row + 1) * each) }));
  return pairsFound.every((pair) => pattern(pair.input) === pattern(pairsFound[0].input)) ? pairsFound : null;
}

function promptPreview(request) {
  // Of a chat its latest question counts, of a batch its first row.
  const { input } = messagesOf(request), order = request.row.batch > 1 ? input : [...input].reverse();
  const shown = order.find((message) => message.role === "user") || order[0];
  if (!shown) return ABSENT;
  const text = shown.text.replace(/\s+/g, " ").trim();
  const more = input.filter((message) => message.role === "user").length - 1;
  return make("span", { tip: text.slice(0, 400) }, text.length > 60 ? text.slice(0, 60) + "…" : text, request.row.batch > 1 && more > 0 ? make("span", { class: "dim" }, " and " + counted(more, "more prompt")) : "");
}

function messageBox(message) {
  return make("div", { class: "message " + (message.role === "assistant" ? "assistant" : message.role === "system" ? "system" : "") }, make("div", { class: "dim small" }, message.role + (message.reason ? ", " + message.reason : "")), make("pre", {}, message.text));
}

function messages(request) {
  const { input, output } = messagesOf(request);
  if (!input.length && !output.length) return null;
  const rows = pairedMessages(request);
  const content = rows ? rows.slice(0, MOST_TURNS).map((row, number) => make("div", { class: "pair" }, make("div", {}, make("div", { class: "dim small" }, "row " + (number + 1)), row.input.map(messageBox)), make("div", {}, make("div", { class: "dim small" }, "output"), row.output.map(messageBox))))
    : [...input.slice(-MOST_TURNS), ...output.slice(0, MOST_TURNS)].map(messageBox);
  return make("details", { open: true }, make("summary", {}, "Prompts and outputs"), content);
}
