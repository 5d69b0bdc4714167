// The figures of the whole router, at the top.

import { byId, el, follow, setText } from "./dom.js";
import { bytes, count, duration, sum } from "./format.js";

function tile(label) {
  const figure = el("p", { class: "figure" });
  const more = el("p", { class: "quiet" });
  return {
    node: el("div", { class: "card tile" }, el("h2", { class: "label" }, label), figure, more),
    update([text, words]) {
      setText(figure, text);
      setText(more, words);
    },
  };
}

/** The refusals that no card of a pool counts: of unknown models, without a key, of pools that are gone. */
function refusedWords(state, refused) {
  const inPools = sum(Object.values(state.pools).flatMap((pool) => Object.values(pool.rejected)));
  return refused > inPools ? `since the start; ${count(refused - inPools)} of no pool below` : "since the start";
}

/** Show the totals of a state, also in the tab's title. */
export function showOverview(state) {
  const running = sum(Object.values(state.inflight));
  const parked = state.queue_total_waiters;
  const refused = sum(Object.values(state.reject_counts));
  follow(
    byId("overview"),
    [
      ["In flight", [count(running), `${count(state.dispatched_total)} sent since the start`]],
      ["Parked", [count(parked), `${bytes(state.parked_bytes)} of request bodies held`]],
      ["Wait p95", [duration(state.queue_wait_p95_sec), `p50 ${duration(state.queue_wait_p50_sec)}, p99 ${duration(state.queue_wait_p99_sec)}`]],
      ["Refused", [count(refused), refusedWords(state, refused)]],
    ],
    tile,
  );
  setText(byId("facts"), `${state.version}, up ${duration(Math.floor(state.uptime_sec))}`);
  document.title = parked > 0 ? `(${count(parked)} parked) Lifeboat` : "Lifeboat";
}
