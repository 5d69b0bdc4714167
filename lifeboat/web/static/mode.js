// The routing mode and its switch.

import { CallError, change, get } from "./api.js";
import { byId, el, follow, say, setAttribute, setText } from "./dom.js";
import { duration } from "./format.js";

const PATH = "api/lb/mode";
// A state may have been read before the change it would undo on the page: for so long after the
// router accepted a change, a state that still says otherwise does not move the switch back.
const SETTLE_MS = 3000;
let summaries = {};
let announce = () => {};
// What a person asked of the queue and no state has shown yet, or null; held until `until`.
let asked = null;

async function set(wanted, done) {
  try {
    const mode = await change("PUT", PATH, JSON.stringify(wanted));
    say(byId("mode-error"), null);
    if (mode !== null) announce(`${done} The mode is ${mode.mode}, the queue is ${mode.queue_enabled ? "on" : "off"}.`);
    return mode !== null;
  } catch (error) {
    if (!(error instanceof CallError)) throw error;
    say(byId("mode-error"), error.message);
    return false;
  }
}

function button(mode) {
  const node = el("button", { type: "button", "aria-pressed": "false" }, mode);
  node.addEventListener("click", () => set({ mode }, "Changed."));
  return { node, update: (inForce) => setAttribute(node, "aria-pressed", String(inForce === mode)) };
}

function show(state) {
  follow(byId("mode-buttons"), Object.keys(summaries).map((mode) => [mode, state.routing_mode]), button);
  setText(byId("mode-words"), summaries[state.routing_mode] ?? "");
  const queue = byId("queue-enabled");
  if (asked !== null && (asked.wanted === state.queue_enabled || performance.now() > asked.until)) asked = null;
  queue.checked = asked === null ? state.queue_enabled : asked.wanted;
  // Under queue-all the queue is on whatever the switch says.
  queue.disabled = state.routing_mode === "queue-all";
  const ttl = `TTL ${duration(state.queue_ttl_sec)}, ceiling ${state.queue_depth_multiplier} × a pool's concurrency`;
  setText(byId("queue-words"), queue.disabled ? `always on in this mode: ${ttl}` : ttl);
  byId("mode-reset").hidden = state.sources.routing_mode !== "api" && state.sources.queue_enabled !== "api";
}

/** Wire the switch; return what shows a state. announcer(text) tells a screen reader. */
export async function startMode(announcer) {
  announce = announcer;
  const queue = byId("queue-enabled");
  queue.addEventListener("change", async () => {
    const mine = { wanted: queue.checked, until: Infinity };
    asked = mine;
    if (await set({ queue_enabled: mine.wanted }, "Changed.")) {
      mine.until = performance.now() + SETTLE_MS;
    } else if (asked === mine) {
      asked = null;
      queue.checked = !mine.wanted;
    }
  });
  byId("mode-reset").addEventListener("click", () => set({ mode: null, queue_enabled: null }, "Reset."));
  summaries = (await get(PATH)).modes;
  return show;
}
