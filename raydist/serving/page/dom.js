// Elements of texts. A text from a document or a user is only ever a text node: nothing here takes markup.

export const byId = (id) => document.getElementById(id);

// el("p", {class: "soft", dir: "auto"}, "text", child): attributes by name, `on...` a listener; null children are left out
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Offsets count characters (code points), as the service does; JavaScript's strings count other units
export function marked(text, start, end) {
  const characters = Array.from(text);
  const piece = (from, to) => characters.slice(from, to).join("");
  return [piece(0, start), el("mark", {}, piece(start, end)), piece(end)];
}

const NAMES = { bm25: "BM25", dense: "Vectors", cross_encoder: "Cross-encoder", score: "Score" };

export const number = (value, digits = 2) =>
  typeof value === "number" ? value.toLocaleString("en", { maximumFractionDigits: digits }) : String(value);

export const percent = (p) => `${number(100 * p, p > 0 && p < 0.01 ? 1 : 0)} %`;

export const scores = (found) => {
  const known = Object.entries(found).filter(([, value]) => value !== null && value !== undefined && value !== "");
  if (!known.length) return null;
  const pair = ([name, value]) => el("div", {}, el("dt", {}, NAMES[name] ?? name), el("dd", {}, number(value, 3)));
  return el("dl", { class: "scores" }, ...known.map(pair));
};

export function placeOf(source) {
  const place = source.page != null ? `page ${source.page}` : source.line != null ? `line ${source.line}` : null;
  const path = [source.document_id, ...(source.headings ?? [])];
  const steps = path.flatMap((step, at) => [at ? " › " : null, el(at ? "span" : "b", { dir: "auto" }, step)]);
  return el("p", { class: "source" }, ...steps, place ? `, ${place}` : null);
}
