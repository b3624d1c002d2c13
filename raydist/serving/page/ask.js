// The view that asks.

import { call } from "./api.js";
import { byId, el, marked, number, percent, placeOf, scores } from "./dom.js";

const SHOWN = 5; // answers
let canJudge = false;
let asked = 0;

async function begin() {
  const library = await call("GET", "/v1/library");
  byId("name").textContent = library.name;
  document.title = `Ask ${library.name}`;
  const sizes = [["documents", library.documents], ["passages", library.passages]].filter(([, count]) => count != null);
  const notes = library.calibrated ? [] : ["probabilities are not calibrated"];
  byId("facts").textContent = [...sizes.map(([what, count]) => `${number(count)} ${what}`), ...notes].join(" · ");
  for (const kind of library.kinds ?? []) byId("kind").append(el("option", { value: kind }, kind));
  for (const [name, type] of Object.entries(library.columns ?? {})) {
    byId("columns").append(el("li", {}, el("button", { type: "button", title: type, onclick: () => insert(name) }, name)));
  }
  const views = await call("GET", "/v1/views");
  canJudge = views.answers;
  byId("more").hidden = !views.pairs;
}

function insert(name) {
  const field = byId("where");
  field.setRangeText(/^\w+$/.test(name) ? name : `"${name}"`, field.selectionStart, field.selectionEnd, "end");
  field.focus();
}

async function ask(event) {
  event.preventDefault();
  const turn = ++asked;
  const question = byId("question").value.trim();
  if (!question) return;
  const body = { question, n_best: SHOWN };
  if (byId("where").value.trim()) body.where = byId("where").value.trim();
  if (byId("kind").value) body.kind = byId("kind").value;
  if (byId("k").value) body.k = Number(byId("k").value);
  byId("problem").textContent = "";
  byId("status").textContent = "Looking …";
  byId("result").setAttribute("aria-busy", "true");
  try {
    const reply = await call("POST", "/v1/ask", body);
    if (turn === asked) show(reply);
  } catch (failure) {
    if (turn !== asked) return;
    byId("result").replaceChildren();
    byId("status").textContent = "";
    byId("problem").textContent = failure.message;
  } finally {
    if (turn === asked) byId("result").removeAttribute("aria-busy");
  }
}

function show(reply) {
  const seconds = Object.values(reply.seconds ?? {}).reduce((sum, each) => sum + each, 0);
  const [best, ...others] = reply.candidates;
  const found = reply.answered && best;
  byId("status").textContent = `${found ? "Answered" : "Not found"} in ${number(seconds)} s.`;
  const head = found ? answerCard(reply, best) : nothingCard(reply, best);
  const rest = found ? others : reply.candidates;
  const list = rest.length
    ? el("section", { class: "others", "aria-labelledby": "others" },
        el("h2", { id: "others" }, found ? "Other candidates" : "The nearest candidates"),
        el("ol", {}, ...rest.map((candidate) => item(reply, candidate))))
    : null;
  byId("result").replaceChildren(...[head, list].filter(Boolean));
  head.focus();
}

function answerCard(reply, best) {
  return el("section", { class: "card", tabindex: "-1", "aria-labelledby": "answer" },
    el("h2", { id: "answer", class: "answer", dir: "auto" }, best.text),
    sure(reply), ...evidence(reply, best));
}

const likely = (reply) =>
  `${percent(reply.probability)} ${reply.calibrated ? "likely right" : "of the reader's own scores, not calibrated"}`;

function sure(reply) {
  const meter = el("meter", { min: 0, max: 1, value: reply.probability, "aria-label": "Probability" });
  return el("p", { class: "sure" }, meter, likely(reply));
}

function nothingCard(reply, best) {
  const why = best
    ? `Best candidate: ${likely(reply)}, below the threshold of ${percent(reply.threshold)}.`
    : "No passage has anything to do with it.";
  return el("section", { class: "card", tabindex: "-1", "aria-labelledby": "answer" },
    el("h2", { id: "answer", class: "answer" }, "Not found in these documents"),
    el("p", { class: "sure" }, why),
    verdict({ question: reply.question }, ["Right, it is not in them", "Wrong, it is"]));
}

function item(reply, candidate) {
  return el("li", {}, el("h3", { dir: "auto" }, candidate.text), ...evidence(reply, candidate));
}

function evidence(reply, candidate) {
  const { source, start, end, text } = candidate;
  const judged = {
    question: reply.question,
    text: source.text,
    text_id: source.passage_id,
    document: source.document_id,
    answer: { text, start, end },
  };
  return [
    el("blockquote", { dir: "auto", lang: source.language || null }, ...marked(source.text, start, end)),
    placeOf(source),
    scores(Object.keys(source.scores ?? {}).length ? source.scores : { score: source.score }),
    verdict(judged, ["Right", "Wrong"]),
  ];
}

// Two buttons; a verdict may be changed, or taken back by pressing the same button again
function verdict(judged, [yes, no]) {
  if (!canJudge) return null;
  let said = null; // {id, right}
  const note = el("span", { role: "status", class: "soft" });
  const press = (right) => async () => {
    for (const button of buttons) button.disabled = true;
    try {
      if (said) await call("DELETE", `/v1/judgements/${said.id}`);
      said = said?.right === right ? null : { right, ...(await call("POST", "/v1/judgements", { ...judged, right })) };
      note.textContent = said ? "Saved. Press again to take it back." : "Taken back.";
    } catch (failure) {
      note.textContent = `Not saved: ${failure.message}`;
    }
    for (const [at, button] of buttons.entries()) {
      button.disabled = false;
      button.setAttribute("aria-pressed", String(said?.right === (at === 0)));
    }
    buttons[right ? 0 : 1].focus();
  };
  const button = (right, text) =>
    el("button", { type: "button", class: right ? "yes" : "no", "aria-pressed": "false", onclick: press(right) }, text);
  const buttons = [button(true, yes), button(false, no)];
  return el("div", { class: "say", role: "group", "aria-label": "Is it right?" }, ...buttons, note);
}

byId("ask").addEventListener("submit", ask);
byId("question").focus();
begin().catch((failure) => {
  byId("problem").textContent = failure.message;
});
