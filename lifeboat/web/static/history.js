// The last 15 minutes: fetched from the router, which keeps them, and drawn.

import { get } from "./api.js";
import { lineChart, reasonChart } from "./charts.js";
import { byId, el, follow } from "./dom.js";
import { count, duration, sum } from "./format.js";

const charts = {
  in_flight: lineChart("In flight", count),
  queue_depth: lineChart("Parked", count),
  wait_p95_sec: lineChart("p95 wait (last 5 minutes)", duration),
  rejected: reasonChart("Rejections by reason"),
};
let history = null;

function columns() {
  const name = byId("history-pool").value;
  if (name === "") return history.total;
  const nothing = history.age_sec.map(() => 0);
  const idle = { in_flight: nothing, queue_depth: nothing, wait_p95_sec: nothing, rejected: {} };
  return Object.hasOwn(history.pools, name.slice(1)) ? history.pools[name.slice(1)] : idle;
}

function draw() {
  if (history === null) return;
  byId("history-unknown").hidden = true;
  byId("charts").hidden = byId("history-details").hidden = false;
  const shown = columns();
  for (const [key, chart] of Object.entries(charts)) chart.update(history, shown[key]);
  if (byId("history-details").open) fillTable(shown);
}

function fillTable(shown) {
  const rows = history.age_sec.map((age, index) =>
    [
      duration(age),
      count(shown.in_flight[index]),
      count(shown.queue_depth[index]),
      duration(shown.wait_p95_sec[index]),
      count(sum(Object.values(shown.rejected).map((counts) => counts[index]))),
    ].reduce((row, text) => (row.append(el("td", {}, text)), row), el("tr")),
  );
  byId("history-table").tBodies[0].replaceChildren(...rows.reverse());
}

/** Read the history again and draw it; returns the length of a bin in seconds. */
export async function refreshHistory() {
  history = await get("api/lb/history");
  draw();
  return history.period_sec;
}

/** Offer the pools of a state; the value carries a mark, so that no name is taken for "all". */
export function showPoolChoice(state) {
  follow(byId("history-pool"), [["", ""], ...Object.keys(state.pools).map((name) => [`=${name}`, name])], (key) => ({
    node: key === "" ? byId("history-pool").options[0] : el("option", { value: key }, key.slice(1)),
    update() {},
  }));
}

/** Wire the section. */
export function startHistory() {
  byId("charts").append(...Object.values(charts).map((chart) => chart.node));
  byId("history-pool").addEventListener("change", draw);
  byId("history-details").addEventListener("toggle", draw);
}
