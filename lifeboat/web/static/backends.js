// One row a backend: slots, health, the limit and why, and the operator's buttons.

import { CallError, change } from "./api.js";
import { control } from "./asked.js";
import { byId, el, facts, follow, say, setAttribute, setText } from "./dom.js";
import { count, duration, limit } from "./format.js";
import { slotsBar } from "./slots.js";
import { HEALTHS, LIMIT_REASONS, STATES, wordsFor } from "./words.js";

let announce = () => {};

/** Ask for a change; returns the backend after it, null where nothing changed. */
async function patch(name, wanted, done) {
  try {
    const backend = await change("PATCH", `api/lb/backends/${encodeURIComponent(name)}`, JSON.stringify(wanted));
    say(byId("backend-error"), null);
    if (backend !== null) announce(`${name}: ${done}`);
    return backend;
  } catch (error) {
    if (!(error instanceof CallError)) throw error;
    say(byId("backend-error"), `${name}: ${error.message}`);
    return null;
  }
}

function stateButtons(name) {
  const buttons = Object.entries(STATES).map(([state, [label, meaning]]) => {
    const node = el("button", { type: "button", class: "small", "aria-label": `${label} ${name}`, title: meaning }, label);
    node.addEventListener("click", () => shown.ask(state, async () => (await patch(name, { state }, meaning))?.state));
    return [state, node];
  });
  const shown = control((inForce) => {
    for (const [state, button] of buttons) setAttribute(button, "aria-pressed", String(state === inForce));
  });
  const node = el("div", { class: "switch", role: "group", "aria-label": `State of ${name}` });
  node.append(...buttons.map(([, button]) => button));
  return { node, update: shown.tell };
}

function limitForm(name) {
  const shown = control((configured) => {
    if (!node.open) input.value = String(configured);
  });
  const set = (wanted, done) => async () => (await patch(name, { max_concurrency: wanted }, done))?.max_concurrency;
  const input = el("input", { type: "number", min: "0", max: "1000000", step: "1", required: "", "aria-label": `max_concurrency of ${name}` });
  const reset = el("button", { type: "button", class: "small" }, "Back to what is configured");
  reset.addEventListener("click", async () => {
    const configured = await set(null, "its limit is reset.")();
    if (configured !== undefined) input.value = String(configured);
  });
  const form = el(
    "form", { class: "row" },
    el("span", {}, "max_concurrency"), input, el("button", { type: "submit", class: "small" }, "Set"), reset,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = input.valueAsNumber;
    shown.ask(wanted, set(wanted, `max_concurrency is set to ${wanted}.`));
  });
  const node = el("details", {}, el("summary", { "aria-label": `Change the limit of ${name}` }, "Change the limit"), form);
  node.addEventListener("toggle", () => {
    if (!node.open) return;
    input.focus();
    input.select();
  });
  return {
    node,
    update(configured, source) {
      shown.tell(configured);
      reset.hidden = source !== "api";
    },
  };
}

function slotWords(backend) {
  const held = `${count(backend.in_flight)} held of ${limit(backend.effective_limit)}`;
  return `${held} (${wordsFor(LIMIT_REASONS, backend.limit_reason)})`;
}

function engineWords(engine) {
  if (engine.age_sec === null) return "The engine tells nothing of itself.";
  const told = [
    engine.running === null ? null : `${count(engine.running)} running`,
    engine.waiting === null ? null : `${count(engine.waiting)} waiting`,
    engine.slots === null ? null : `${count(engine.slots)} slots`,
  ].filter((part) => part !== null);
  return `Engine: ${told.join(", ") || "no figures"}, read ${duration(engine.age_sec)} ago`;
}

function row(name) {
  const health = el("span", { class: "health" });
  const detail = el("p", { class: "detail" });
  const bar = slotsBar();
  const slots = el("p", { class: "slot-words" });
  const engine = el("p", { class: "quiet" });
  const about = el("p", { class: "quiet about" });
  const warnings = el("ul", { class: "warnings" });
  const buttons = stateButtons(name);
  const form = limitForm(name);
  const figures = facts("facts tight");
  const node = el(
    "li", { class: "card backend" },
    el("div", { class: "who" }, el("h3", {}, name), health, about, detail),
    el("div", { class: "how" }, bar.node, slots, engine, warnings),
    el("div", { class: "do" }, buttons.node, form.node, figures.node),
  );
  return {
    node,
    update(backend) {
      setText(health, wordsFor(HEALTHS, backend.health));
      setAttribute(health, "data-health", backend.health);
      setAttribute(node, "data-state", backend.state);
      say(detail, backend.health_detail);
      setText(about, [backend.kind, backend.url ?? "", `serves ${backend.serves.join(", ")}`, backend.models.join(", ")].filter(Boolean).join(" · "));
      bar.update(backend);
      setText(slots, slotWords(backend));
      setText(engine, engineWords(backend.engine));
      buttons.update(backend.state);
      form.update(backend.max_concurrency, backend.sources.max_concurrency);
      figures.update([
        ["Sent", count(backend.dispatched)],
        ["Failed", count(backend.failed)],
        ["Cancelled", count(backend.cancelled)],
        ["Input cap", backend.max_input_tokens === 0 ? "none" : count(backend.max_input_tokens)],
      ]);
      follow(warnings, backend.warnings.map((text) => [text, text]), warning);
    },
  };
}

function warning(text) {
  return { node: el("li", {}, text), update() {} };
}

/** Wire the rows. announcer(text) tells a screen reader. */
export function startBackends(announcer) {
  announce = announcer;
}

/** Show the backends of a state, and the warnings that are about none of them. */
export function showBackends(state) {
  const entries = Object.entries(state.backends);
  byId("no-backends").hidden = entries.length > 0;
  follow(byId("backends"), entries, row);
  const general = state.warnings.filter((one) => one.backend === null).map((one) => [one.message, one.message]);
  byId("warnings").hidden = general.length === 0;
  follow(byId("warning-list"), general, warning);
}
