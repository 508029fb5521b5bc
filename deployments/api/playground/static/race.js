// The same request with speculation and without. Each runs alone, so that neither slows the other
// down, and without any memory of the other's text. A grammar is compiled before: whoever came first
// would wait for it. Both can then be replayed side by side.

import { AnswerView } from "./answer.js";
import { streamed } from "./client.js";

const SHORT_S = 0.5; // below it a time says more of the machine's other work than of ours

export class Race {
  constructor(on, off, verdict) {
    this.lanes = [new AnswerView(on), new AnswerView(off)];
    this.verdict = verdict;
    this.timers = [];
  }

  async run(asked, signal, { mono }) {
    this.stopReplay();
    this.mono = mono;
    this.records = [];
    const isOff = asked.speculation.enabled === false;
    const seed = asked.seed ?? Math.floor(Math.random() * 2 ** 31);
    const drafted = { ...asked.speculation, enabled: true };
    if (isOff) delete drafted.k;
    for (const lane of this.lanes) lane.clear({ mono });
    this.verdict.textContent = "Getting ready.";
    for await (const _ of streamed({ ...asked, max_tokens: 1, speculation: { enabled: false } }, signal));
    for (const [index, speculation] of [drafted, { details: true, enabled: false }].entries()) {
      this.verdict.textContent = index ? "Now without speculation, alone." : "With speculation first, alone.";
      const body = { ...asked, seed, speculation, cache_salt: newSalt() };
      this.records.push(await this.runLane(this.lanes[index], body, signal));
    }
    this.judge();
  }

  async runLane(lane, body, signal) {
    const began = performance.now();
    const record = [];
    lane.begin(began);
    try {
      for await (const event of streamed(body, signal)) {
        const now = performance.now();
        record.push([now - began, event]);
        lane.take(event, now);
      }
    } finally {
      lane.end();
    }
    return record;
  }

  judge() {
    const [on, off] = this.lanes;
    const ratio = off.seconds / on.seconds;
    const same = on.text === off.text && on.calls.key() === off.calls.key();
    const fact = document.createElement("b");
    fact.textContent = ratio >= 1 ? `${ratio.toFixed(2)} times as fast` : `${(1 / ratio).toFixed(2)} times as long`;
    const rest = ` with speculation: ${on.seconds.toFixed(2)} s against ${off.seconds.toFixed(2)} s, each alone. `;
    const texts = document.createElement("b");
    texts.textContent = same ? "The texts are the same." : "The texts differ.";
    const doubt = Math.min(on.seconds, off.seconds) < SHORT_S ? " So short an answer says little about speed." : "";
    this.verdict.replaceChildren(fact, rest, texts, doubt);
  }

  // Both from the same moment on, at the times at which their events came.
  replay() {
    this.stopReplay();
    const began = performance.now();
    this.lanes.forEach((lane, index) => {
      lane.clear({ mono: this.mono });
      lane.begin(began);
      const record = this.records[index];
      record.forEach(([ms, event], number) => {
        this.timers.push(setTimeout(() => {
          lane.take(event, began + ms);
          if (number === record.length - 1) lane.end();
        }, ms));
      });
    });
  }

  stopReplay() {
    for (const timer of this.timers) clearTimeout(timer);
    this.timers = [];
  }
}

const newSalt = () => `race-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
