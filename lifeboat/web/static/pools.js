// One card a pool: what runs, what waits, how long, and how fast it drains.

import { byId, el, facts, follow, meter, setText } from "./dom.js";
import { count, duration, limit, rate, sum } from "./format.js";
import { VERDICTS, wordsFor } from "./words.js";

function inFlight(pool) {
  const bound = pool.effective_concurrency;
  const words = `${count(pool.in_flight)} / ${limit(bound)}`;
  return {
    value: pool.in_flight,
    most: bound ?? 0,
    text: bound === 0 ? `${words}: closed` : words,
    tone: bound !== null && pool.in_flight >= bound ? "full" : "",
  };
}

function queue(pool) {
  const words = `${count(pool.queue_depth)} / ${count(pool.queue_limit)}`;
  const atCeiling = pool.queue_depth > 0 && pool.queue_depth >= pool.queue_limit;
  const note = atCeiling ? ": at its ceiling" : pool.queue_enabled ? "" : ": queue off";
  return {
    value: pool.queue_depth,
    most: pool.queue_limit,
    text: words + note,
    tone: atCeiling ? "over" : pool.queue_depth > 0 ? "full" : "",
  };
}

function wantedWords(report) {
  // Two verdicts say it all themselves, unless more is wanted than is there.
  const plain = ["ok", "insufficient_data"].includes(report.verdict) && report.desired_backends <= report.backends;
  const parts = [plain ? "" : report.advice];
  parts.push(`Demand ${report.demand.toFixed(1)} slots; backends: ${count(report.backends)} in service, ${count(report.desired_backends)} wanted.`);
  const scaling = report.scaling;
  if (scaling) parts.push(`Scaled to ${count(scaling.wanted)} (${count(scaling.min)} to ${count(scaling.max)}).`);
  if (scaling?.failure) parts.push(`Scaling failed: ${scaling.failure}`);
  return parts.filter(Boolean).join(" ");
}

function card(name) {
  const running = meter("In flight / effective limit");
  const parked = meter("Parked / ceiling");
  const figures = facts();
  const members = el("span");
  const verdict = el("strong");
  const advice = el("span");
  const node = el(
    "article", { class: "card pool" },
    el("h3", {}, name),
    running.node, parked.node, figures.node,
    el("p", { class: "verdict" }, verdict, " ", advice),
    el("p", { class: "quiet members" }, "Backends: ", members),
  );
  return {
    node,
    update([pool, report]) {
      running.update(inFlight(pool));
      parked.update(queue(pool));
      figures.update([
        ["Oldest wait", duration(pool.oldest_wait_sec)],
        ["TTL", duration(pool.queue_ttl_sec)],
        ["Wait p50", duration(pool.wait_p50_sec)],
        ["Wait p95", duration(pool.wait_p95_sec)],
        ["Wait p99", duration(pool.wait_p99_sec)],
        ["Drain rate", rate(pool.drain_rate_per_sec)],
        ["Sent", count(pool.dispatched)],
        ["Refused", count(sum(Object.values(pool.rejected)))],
      ]);
      setText(verdict, report ? wordsFor(VERDICTS, report.verdict) : "");
      setText(advice, report ? wantedWords(report) : "");
      setText(members, pool.backends.join(", ") || "none");
    },
  };
}

/** Show the pools of a state, with what the capacity of the same moment says of each. */
export function showPools(state, capacity) {
  const entries = Object.entries(state.pools).map(([name, pool]) => [
    name,
    [pool, Object.hasOwn(capacity.pools, name) ? capacity.pools[name] : null],
  ]);
  byId("no-pools").hidden = entries.length > 0;
  follow(byId("pools"), entries, card);
}
