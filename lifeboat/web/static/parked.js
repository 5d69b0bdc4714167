// The parked requests: how long, for what, how large, never what they say.

import { get } from "./api.js";
import { byId, el, follow, setText } from "./dom.js";
import { bytes, count, duration } from "./format.js";

function row() {
  const age = el("td");
  const model = el("td", { class: "name" });
  const priority = el("td");
  const estimate = el("td", { class: "number" });
  const size = el("td", { class: "number" });
  const left = el("td");
  return {
    node: el("tr", {}, age, model, priority, estimate, size, left),
    update(parked) {
      setText(age, duration(parked.age_sec) + (parked.boosted ? ", boosted" : ""));
      setText(model, parked.model);
      setText(priority, parked.priority);
      setText(estimate, count(parked.estimated_tokens));
      setText(size, bytes(parked.body_bytes));
      setText(left, duration(parked.remaining_sec));
    },
  };
}

let listed = false;

/** Say how many wait before they can be listed. */
export function announceParked(waiting) {
  if (waiting > 0 && !listed) setText(byId("parked-words"), `${count(waiting)} ${waiting === 1 ? "waits" : "wait"}.`);
}

/** Read the list again and show it. */
export async function refreshParked() {
  const page = await get("api/lb/parked");
  const shown = page.parked.length;
  listed = shown > 0;
  const words =
    page.total === 0
      ? "Nothing is parked."
      : shown < page.total
        ? `The ${count(shown)} that wait longest, of ${count(page.total)}.`
        : `${count(page.total)} ${page.total === 1 ? "request waits" : "requests wait"}, the longest first.`;
  setText(byId("parked-words"), words);
  byId("parked-region").hidden = shown === 0;
  follow(byId("parked").tBodies[0], page.parked.map((parked, place) => [place, parked]), row);
}
