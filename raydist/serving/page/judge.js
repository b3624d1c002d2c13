// The view that judges mined pairs: one at a time, each verdict saved before the next pair is shown.

import { call } from "./api.js";
import { byId, el, number, scores } from "./dom.js";

const BLOCK = 20; // pairs fetched at once
const AROUND = 420; // characters of a paragraph shown before and after a sentence
const DONE = "raydist-verdicts"; // of this tab, to undo after a reload, too
const KEYS = { a: "accept", r: "reject", s: "skip", u: "undo" };
const SAID = { true: "Accepted", false: "Rejected", null: "Skipped" };
const BUTTONS = Object.values(KEYS);

let waiting = []; // pairs, the first is shown
let reached = -1; // the last place in their order that was judged
let busy = false;

const done = () => JSON.parse(sessionStorage.getItem(DONE) ?? "[]");
const keep = (ids) => sessionStorage.setItem(DONE, JSON.stringify(ids.slice(-1000)));

async function fetchPairs() {
  const wanted = { show: byId("show").value, verdict: byId("verdict").value, after: reached, limit: BLOCK };
  const query = new URLSearchParams(wanted);
  const found = await call("GET", `/v1/pairs?${query}`);
  waiting = found.pairs;
  byId("facts").dataset.run = `${found.run}, threshold ${number(found.threshold)}`;
  tell(found.progress);
}

function tell(progress) {
  const { pairs, accepted, rejected, skipped } = progress;
  const counts = `${number(accepted + rejected)} of ${number(pairs)} pairs judged`;
  const split = `${number(accepted)} accepted, ${number(rejected)} rejected, ${number(skipped)} skipped`;
  byId("facts").textContent = [byId("facts").dataset.run, counts, split].join(" · ");
}

async function start() {
  reached = -1;
  await fetchPairs();
  show();
}

async function next() {
  const [last] = waiting.splice(0, 1);
  reached = Math.max(reached, last?.place ?? -1); // one that was taken back has no place
  if (!waiting.length) await fetchPairs();
}

function show() {
  const [pair] = waiting;
  byId("pair").hidden = !pair;
  byId("pair").className = "card";
  if (pair) {
    byId("pair").replaceChildren(...told(pair));
  } else {
    byId("status").textContent = "No such pair is left.";
  }
  enable();
}

function enable() {
  for (const id of BUTTONS) byId(id).disabled = id === "undo" ? !done().length : !waiting.length;
}

function told(pair) {
  const judged = pair.verdict === "undecided" ? "" : ` Judged before: ${pair.verdict}.`;
  const why = pair.kept ? `Kept as a silver pair, weight ${number(pair.weight)}.` : `Not kept: ${pair.why_not}.`;
  const from = pair.sources?.length ? ` Found by ${pair.sources.map((name) => FROM[name] ?? name).join(" and ")}.` : "";
  const numbers = {
    p: pair.p,
    logit: pair.logit,
    "BM25 rank": pair.bm25_rank,
    "BM25 score": pair.bm25_score,
    "vector rank": pair.dense_rank,
    "vector score": pair.dense_score,
  };
  return [
    el("h2", { id: "asked", dir: "auto" }, pair.question),
    el("blockquote", { id: "context", class: "context", dir: "auto" }, ...inContext(pair)),
    el("p", { class: "why" }, why + from + judged),
    scores(numbers),
    pair.gold.length
      ? el("div", { class: "known soft" }, el("p", {}, "Known answers:"),
          el("ul", {}, ...pair.gold.map((text) => el("li", { dir: "auto" }, text))))
      : null,
  ].filter(Boolean);
}

const FROM = { bm25: "words", dense: "vectors", same_doc: "being in the same document" };

// The sentence in its paragraph, or else between its neighbours, or alone
function inContext({ sentence, passage, before, after }) {
  const at = passage?.indexOf(sentence) ?? -1;
  if (at >= 0) {
    return [lastWords(passage.slice(0, at)), el("mark", {}, sentence), firstWords(passage.slice(at + sentence.length))];
  }
  return [...before.map((text) => `${text} `), el("mark", {}, sentence), ...after.map((text) => ` ${text}`)];
}

// As much of a long paragraph as one reads, cut between words
function firstWords(text) {
  return text.length <= AROUND ? text : `${text.slice(0, AROUND).replace(/\s+\S*$/u, "")} …`;
}

function lastWords(text) {
  return text.length <= AROUND ? text : `… ${text.slice(-AROUND).replace(/^\S*\s+/u, "")}`;
}

async function alone(work) {
  if (busy) return;
  busy = true;
  byId("problem").textContent = "";
  try {
    await work();
  } catch (failure) {
    byId("problem").textContent = failure.status === 404 ? NOTHING : failure.message;
  } finally {
    busy = false;
    enable();
  }
}

const NOTHING = "No mined pairs are served here. `raydist judge RUN` shows those of a run of retrieval.";

const judge = (right) => () =>
  alone(async () => {
    const [pair] = waiting;
    if (!pair) return;
    const said = await call("POST", "/v1/pairs/verdicts", {
      question_id: pair.question_id,
      sentence_id: pair.sentence_id,
      right,
    });
    keep([...done(), said.id]);
    byId("status").textContent = `${SAID[right]}, and saved.`;
    await next();
    tell(said.progress);
    show();
    byId("pair").focus();
  });

const undo = () =>
  alone(async () => {
    const ids = done();
    if (!ids.length) return;
    const back = await call("DELETE", `/v1/pairs/verdicts/${ids[ids.length - 1]}`);
    keep(ids.slice(0, -1));
    const same = (pair) => pair.question_id === back.pair.question_id && pair.sentence_id === back.pair.sentence_id;
    waiting = [back.pair, ...waiting.filter((pair) => !same(pair))];
    byId("status").textContent = "Taken back.";
    tell(back.progress);
    show();
    byId("pair").focus();
  });

const ACTIONS = { accept: judge(true), reject: judge(false), skip: judge(null), undo };

for (const id of BUTTONS) byId(id).addEventListener("click", ACTIONS[id]);
for (const id of ["show", "verdict"]) byId(id).addEventListener("change", () => alone(start));
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input:not([type=checkbox]), select, textarea, dialog *");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || event.repeat || !byId("keys").checked) return;
  const id = KEYS[event.key.toLowerCase()];
  if (id && !byId(id).disabled) {
    event.preventDefault();
    ACTIONS[id]();
  }
});
alone(start);
