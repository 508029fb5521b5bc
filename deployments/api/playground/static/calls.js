// The calls of an answer: a card for each, its arguments as they come.

import { element } from "./words.js";

export class Calls {
  constructor(place) {
    this.place = place;
    this.all = [];
  }

  clear() {
    this.all = [];
    this.place.replaceChildren();
    this.place.hidden = true;
  }

  // Takes in `delta.tool_calls` of an event.
  take(parts) {
    for (const part of parts) {
      const call = (this.all[part.index] ??= this.begun(part.function.name));
      call.text += part.function.arguments ?? "";
      call.shown.textContent = call.text;
    }
  }

  // Whole arguments are easier to read on several lines; what was cut off stays as it came.
  end() {
    for (const call of this.all) {
      try {
        call.shown.textContent = JSON.stringify(JSON.parse(call.text), null, 2);
        call.note.textContent = "";
      } catch {
        call.note.textContent = " cut off";
      }
    }
  }

  told() {
    if (!this.all.length) return "";
    return this.all.length === 1 ? "1 call, " : `${this.all.length} calls, `;
  }

  // What two answers must have in common to have made the same calls.
  key() {
    return JSON.stringify(this.all.map((call) => [call.name, call.text]));
  }

  begun(name) {
    const title = element("h4");
    const note = element("span");
    note.textContent = " writing";
    title.append(name, note);
    const shown = element("pre");
    const card = element("li");
    card.append(title, shown);
    this.place.append(card);
    this.place.hidden = false;
    return { name, text: "", note, shown };
  }
}
