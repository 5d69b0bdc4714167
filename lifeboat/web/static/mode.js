// The routing mode and its switch.

import { CallError, change, get } from "./api.js";
import { control } from "./asked.js";
import { byId, el, follow, say, setAttribute, setText } from "./dom.js";
import { duration } from "./format.js";

const PATH = "api/lb/mode";
const ALWAYS_QUEUES = "queue-all";
let summaries = {};
let announce = () => {};

/** Ask for a change; returns the mode and the queue in force after it, null where nothing changed. */
async function set(wanted, done) {
  try {
    const mode = await change("PUT", PATH, JSON.stringify(wanted));
    say(byId("mode-error"), null);
    if (mode !== null) announce(`${done} The mode is ${mode.mode}, the queue is ${mode.queue_enabled ? "on" : "off"}.`);
    return mode;
  } catch (error) {
    if (!(error instanceof CallError)) throw error;
    say(byId("mode-error"), error.message);
    return null;
  }
}

const mode = control((inForce) => {
  follow(byId("mode-buttons"), Object.keys(summaries).map((name) => [name, inForce]), button);
  setText(byId("mode-words"), summaries[inForce] ?? "");
  // There the queue is on whatever the switch says.
  byId("queue-enabled").disabled = inForce === ALWAYS_QUEUES;
});
const queue = control((inForce) => {
  byId("queue-enabled").checked = inForce;
});

function button(name) {
  const node = el("button", { type: "button", "aria-pressed": "false" }, name);
  node.addEventListener("click", () => mode.ask(name, async () => (await set({ mode: name }, "Changed."))?.mode));
  return { node, update: (inForce) => setAttribute(node, "aria-pressed", String(inForce === name)) };
}

function show(state) {
  byId("mode-unknown").hidden = true;
  byId("mode-card").hidden = false;
  mode.tell(state.routing_mode);
  queue.tell(state.queue_enabled);
  const ttl = `TTL ${duration(state.queue_ttl_sec)}, ceiling ${state.queue_depth_multiplier} × a pool's concurrency`;
  setText(byId("queue-words"), state.routing_mode === ALWAYS_QUEUES ? `always on in this mode: ${ttl}` : ttl);
  byId("mode-reset").hidden = state.sources.routing_mode !== "api" && state.sources.queue_enabled !== "api";
}

/** Wire the switch; return what shows a state. announcer(text) tells a screen reader. */
export async function startMode(announcer) {
  announce = announcer;
  byId("queue-enabled").addEventListener("change", ({ target }) => {
    const wanted = target.checked;
    queue.ask(wanted, async () => (await set({ queue_enabled: wanted }, "Changed."))?.queue_enabled);
  });
  byId("mode-reset").addEventListener("click", () => set({ mode: null, queue_enabled: null }, "Reset."));
  summaries = (await get(PATH)).modes;
  return show;
}
