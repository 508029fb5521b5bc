// Names and small things that all parts of the page share.

const LABELS = {
  target: "target model",
  draft_model: "draft model",
  suffix: "copied (suffix)",
  ngram: "copied (n-gram)",
  forced: "forced by the grammar",
  recovered: "target, after a rejection",
};

export const labelOf = (origin) => LABELS[origin] ?? origin;

// The class that colours an origin; a drafter that is not known here counts as a draft model.
export function colourOf(origin) {
  if (origin === "target") return "target";
  if (origin === "suffix" || origin === "ngram") return "copied";
  return origin === "forced" ? "forced" : "draft";
}

export const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.01 ? 1 : 0)}%`;

export function element(name, className = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  return made;
}
