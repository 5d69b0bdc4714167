// The rejection table: live counts from the state, words and remedies from the router's table.

import { get } from "./api.js";
import { byId, el, follow, setAttribute, setText } from "./dom.js";
import { clock, count, sum } from "./format.js";

let table = [];
let counted = "";

function row(reason) {
  const name = el("span", { class: "reason" }, reason);
  const status = el("span", { class: "status" });
  const total = el("td", { role: "cell", class: "number", "data-label": "Count" });
  const seen = el("td", { role: "cell", "data-label": "Last seen" });
  const when = el("td", { role: "cell", "data-label": "When" });
  const remedy = el("td", { role: "cell", "data-label": "Remedy" });
  const node = el("tr", { role: "row" }, el("th", { role: "rowheader", scope: "row" }, status, " ", name), total, seen, when, remedy);
  return {
    node,
    update({ entry, value }) {
      setText(status, String(entry.status));
      setText(total, count(value));
      setAttribute(node, "data-met", value > 0 ? "yes" : null);
      setText(seen, entry.last_seen === null ? "never" : clock(entry.last_seen));
      setAttribute(seen, "title", entry.last_seen);
      setText(when, entry.when);
      setText(remedy, entry.advice);
    },
  };
}

/** Wire the filter. */
export function startRejections() {
  const met = byId("rejections-met");
  met.addEventListener("change", () => setAttribute(byId("rejections"), "data-met-only", met.checked ? "yes" : null));
}

/** Read the table again: statuses, words, times. */
export async function refreshRejections() {
  table = (await get("api/lb/rejections")).rejections;
}

/** Show the counts of a state; returns whether any of them moved since the last time. */
export function showRejections(state) {
  const counts = state.reject_counts;
  follow(
    byId("rejections").tBodies[0],
    table.map((entry) => [entry.reason, { entry, value: counts[entry.reason] ?? entry.count }]),
    row,
  );
  const total = sum(Object.values(counts));
  setText(byId("rejections-words"), total === 0 ? "Nothing has been refused since the start." : `${count(total)} refused since the start.`);
  const key = JSON.stringify(counts);
  const moved = key !== counted;
  counted = key;
  return moved;
}
