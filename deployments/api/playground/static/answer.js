// Shows one answer while it comes: tokens by origin, figures, and what one may ask of a token.

import { Calls } from "./calls.js";
import { Rounds } from "./rounds.js";
import { colourOf, element, labelOf, percent } from "./words.js";
import { hideTip, showTip } from "./tip.js";

const HINT = "Point at a token or at a round, or go through them with the arrow keys.";

export class AnswerView {
  constructor(place) {
    const copy = document.getElementById("answer-template").content.cloneNode(true);
    this.part = (name) => place.querySelector(`[data-part="${name}"]`);
    this.figure = (name) => place.querySelector(`[data-figure="${name}"]`);
    place.append(copy);
    this.rounds = new Rounds(this.part("chart"), (round) => this.pickRound(round));
    this.calls = new Calls(this.part("calls"));
    this.listen();
    this.clear();
  }

  clear({ mono = false } = {}) {
    this.text = "";
    this.characters = []; // code points: offsets count those
    this.tokens = [];
    this.counts = new Map();
    this.usage = null;
    this.metrics = null;
    this.began = 0;
    this.first = null;
    this.last = null;
    this.current = -1;
    this.isWhole = this.isStale = false;
    this.calls.clear();
    this.part("text").replaceChildren();
    this.part("text").classList.toggle("mono", mono);
    this.part("legend").replaceChildren();
    this.part("inspector").textContent = HINT;
    this.part("rounds").hidden = true;
    this.rounds.clear();
    for (const name of ["speed", "acceptance", "length", "k", "tokens", "first"]) {
      this.figure(name).textContent = "\u2013";
    }
  }

  begin(now) {
    this.began = now;
    this.part("text").classList.add("writing");
  }

  // Takes in one event of the stream that came at `now`, in ms.
  take(event, now) {
    const [choice] = event.choices;
    const content = choice?.delta?.content ?? "";
    const parts = choice?.delta?.tool_calls ?? [];
    const thought = choice?.delta?.reasoning_content ?? "";
    if (thought || parts.length) this.showWhole();
    if (content || thought || parts.length) {
      this.text += content;
      this.characters.push(...content);
      this.calls.take(parts);
      this.first ??= now;
      this.last = now;
    }
    if (event.metrics) this.metrics = event.metrics;
    if (event.usage) this.usage = event.usage;
    if (this.steered) this.part("inspector").textContent = this.steered;
    const [details] = event.speculation_details ?? [];
    if (details) this.takeDetails(details, Boolean(choice?.finish_reason));
    if (!this.tokens.length) this.part("text").textContent = this.text; // nothing is told of tokens
    this.showFigures();
  }

  end() {
    this.part("text").classList.remove("writing");
    this.calls.end();
    this.showFigures();
  }

  get seconds() {
    return ((this.last ?? this.began) - this.began) / 1e3;
  }

  get numTokens() {
    return this.usage?.completion_tokens ?? this.rounds.numTokens;
  }

  // What came of the words that were wished for, and what that cost; "" where there were none.
  get steered() {
    const told = this.usage?.lookahead;
    if (!told) return "";
    const words = told.hard_satisfaction ? "All words are used" : "Not all words are used";
    return `${words}: ${told.target_passes} passes of the target, ${told.draft_steps} draft steps, ${told.rollouts} roll-outs.`;
  }

  // The last event has all of them once more; what is known already is passed over.
  takeDetails(details, isAll) {
    this.rounds.add(isAll ? details.rounds.slice(this.rounds.all.length) : details.rounds);
    const tokens = isAll ? details.tokens.slice(this.tokens.length) : details.tokens;
    const place = this.part("text");
    const before = this.tokens.length;
    if (!before && tokens.length) place.replaceChildren();
    for (const token of tokens) {
      const round = this.rounds.all[token.round];
      const isLast = token.origin === "target" && round?.last === "recovered";
      const span = element("span", isLast ? "recovered" : colourOf(token.origin));
      span.dataset.index = this.tokens.length;
      this.tokens.push({ ...token, span });
      const shown = isLast ? "recovered" : token.origin;
      this.counts.set(shown, (this.counts.get(shown) ?? 0) + 1);
      place.append(span);
    }
    for (let i = this.isStale ? 0 : Math.max(0, before - 1); i < this.tokens.length; i++) {
      this.tokens[i].span.textContent = this.textOf(i);
    }
    this.isStale = false;
    this.part("rounds").hidden = this.rounds.all.length === 0;
    this.showLegend();
  }

  // From now on the turn is shown as the model wrote it: calls and reasoning are no content.
  showWhole() {
    this.isStale ||= !this.isWhole;
    this.isWhole = true;
  }

  textOf(index) {
    const { offset, token } = this.tokens[index];
    if (this.isWhole) return token;
    const end = this.tokens[index + 1]?.offset ?? this.characters.length;
    return this.characters.slice(offset, end).join("");
  }

  showLegend() {
    const items = [...this.counts].map(([origin, count]) => {
      const item = element("li");
      item.append(element("i", origin === "recovered" ? "recovered" : colourOf(origin)), `${labelOf(origin)} ${count}`);
      return item;
    });
    this.part("legend").replaceChildren(...items);
  }

  showFigures() {
    const speculation = this.metrics?.speculative_decoding;
    const [accepted, drafted] = speculation
      ? [speculation.num_accepted_draft_tokens, speculation.num_draft_tokens]
      : [this.rounds.numAccepted, this.rounds.numDrafted];
    const set = (name, value) => { this.figure(name).textContent = value; };
    if (this.seconds > 0) set("speed", (this.numTokens / this.seconds).toFixed(0));
    if (drafted) set("acceptance", percent(accepted / drafted));
    if (this.rounds.all.length) set("length", (this.numTokens / this.rounds.all.length).toFixed(2));
    if (this.rounds.k !== null) set("k", this.rounds.k);
    if (this.numTokens) set("tokens", this.numTokens);
    if (this.first !== null) set("first", `${(this.first - this.began).toFixed(0)} ms`);
  }

  listen() {
    const text = this.part("text");
    const over = (event) => {
      const index = event.target.dataset?.index;
      if (index === undefined) hideTip();
      else this.pickToken(Number(index));
    };
    text.addEventListener("pointerover", over);
    text.addEventListener("click", over);
    text.addEventListener("pointerleave", hideTip);
    text.addEventListener("blur", hideTip);
    text.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step || !this.tokens.length) return;
      event.preventDefault();
      this.pickToken(Math.min(this.tokens.length - 1, Math.max(0, this.current + step)));
    });
  }

  pickToken(index) {
    const token = this.tokens[index];
    this.tokens[this.current]?.span.classList.remove("current");
    this.current = index;
    token.span.classList.add("current");
    const round = this.rounds.all[token.round];
    const k = this.rounds.kOf(token.round);
    const name = element("b");
    name.textContent = JSON.stringify(token.token).slice(1, -1);
    const isRecovered = token.origin === "target" && round?.last === "recovered";
    const by = isRecovered ? "target, after a rejection" : labelOf(token.origin);
    showTip(token.span, [name, ` ${percent(Math.exp(token.logprob))}, ${by}, round ${token.round}, k ${k}`]);
    this.pickRound(token.round);
  }

  pickRound(number) {
    for (const token of this.tokens) token.span.classList.toggle("same-round", token.round === number);
    this.rounds.mark(number);
    this.part("inspector").replaceChildren(...this.rounds.told(number));
  }
}
