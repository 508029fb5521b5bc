// The rounds of an answer: a bar each, tokens up and milliseconds down, and one told in words.

import { colourOf, element, labelOf, percent } from "./words.js";

const TALLEST_PX = 41; // of the half below, as the style has it
const MARGIN_PX = 40; // of rounds that stay in view beside the one that is looked at

export class Rounds {
  constructor(chart, onPick) {
    this.chart = chart;
    this.onPick = onPick;
    this.clear();
    chart.addEventListener("pointerover", (event) => {
      const number = event.target.closest(".round")?.dataset.round;
      if (number !== undefined) onPick(Number(number));
    });
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step || !this.all.length) return;
      event.preventDefault();
      onPick(Math.min(this.all.length - 1, Math.max(0, (this.current ?? -step) + step)));
    });
  }

  clear() {
    this.all = [];
    this.bars = [];
    this.current = null;
    this.numTokens = 0;
    this.numDrafted = 0;
    this.numAccepted = 0;
    this.k = null; // of the newest plan
    this.slowest = 0;
    this.chart.replaceChildren();
  }

  add(rounds) {
    const before = this.slowest;
    for (const round of rounds) {
      this.all.push(round);
      this.numTokens += round.num_tokens;
      for (const part of round.drafted) {
        this.numDrafted += part.num_tokens;
        this.numAccepted += part.num_accepted;
      }
      this.k = round.k ?? this.k;
      if (this.all.length > 1) this.slowest = Math.max(this.slowest, round.time.round_ms);
      const bar = tokensOf(round);
      this.bars.push(bar);
      this.chart.append(bar);
    }
    const from = this.slowest > before ? 0 : this.all.length - rounds.length;
    for (let i = from; i < this.all.length; i++) this.scale(i);
    if (rounds.length) this.chart.scrollLeft = this.chart.scrollWidth;
  }

  // The k of the plan that a round was made by.
  kOf(number) {
    for (let i = number; i >= 0; i--) if (this.all[i]?.k !== null) return this.all[i].k;
    return 0;
  }

  mark(number) {
    this.bars[this.current]?.classList.remove("current");
    this.current = number;
    this.bars[number]?.classList.add("current");
    const bar = this.bars[number];
    if (!bar) return;
    const [left, right] = [bar.offsetLeft - this.chart.offsetLeft, bar.offsetLeft - this.chart.offsetLeft + bar.offsetWidth];
    if (left < this.chart.scrollLeft) this.chart.scrollLeft = left - MARGIN_PX;
    if (right > this.chart.scrollLeft + this.chart.clientWidth) {
      this.chart.scrollLeft = right - this.chart.clientWidth + MARGIN_PX;
    }
  }

  // The first round reads the prompt: it would make all others flat, so it is cut.
  scale(index) {
    const { draft_ms: draft, verify_ms: verify, round_ms: whole } = this.all[index].time;
    const perMs = TALLEST_PX / (this.slowest || whole || 1);
    const parts = { drafting: draft, verifying: verify, rest: Math.max(0, whole - draft - verify) };
    let room = TALLEST_PX;
    const down = this.bars[index].lastChild;
    down.replaceChildren(...Object.entries(parts).map(([name, ms]) => {
      const piece = element("i", name);
      const height = Math.min(room, ms * perMs);
      room -= height;
      piece.style.height = `${height}px`;
      return piece;
    }));
  }

  // A round in words, as nodes.
  told(number) {
    const round = this.all[number];
    if (!round) return [];
    const head = element("b");
    head.textContent = `Round ${number}. `;
    const time = round.time;
    const words = [
      round.why === null ? "A plain step by the plan before." : `k ${round.k}: ${whyOf(round.why)}.`,
      ...round.drafted.map((part) => `${labelOf(part.drafter)}: ${part.num_accepted} of ${part.num_tokens} accepted.`),
      round.rejected.length ? `Rejected: ${round.rejected.map((name) => JSON.stringify(name)).join(" ")}.` : "",
      `${time.round_ms.toFixed(1)} ms, of these draft ${time.draft_ms.toFixed(1)}, verify ${time.verify_ms.toFixed(1)}.`,
    ];
    return [head, words.filter(Boolean).join(" ")];
  }
}

function whyOf(why) {
  if (!why.survival.length || !why.depth) return why.reason;
  const survival = why.survival.slice(0, 4).map(percent).join(", ");
  return `${why.reason}; so many survive: ${survival}; a row must bring ${percent(why.min_survival)}`;
}

function tokensOf(round) {
  const bar = element("div", "round");
  bar.dataset.round = round.round;
  const up = element("div", "up");
  let numVain = 0;
  for (const part of round.drafted) {
    for (let i = 0; i < part.num_accepted; i++) up.append(element("i", colourOf(part.drafter)));
    numVain += part.num_tokens - part.num_accepted;
  }
  up.append(element("i", "own"));
  for (let i = 0; i < numVain; i++) up.append(element("i", "vain"));
  bar.append(up, element("div", "down"));
  return bar;
}
