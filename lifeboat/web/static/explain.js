// "Why would this be refused?": a request goes to POST /api/lb/explain, to no backend.

import { CallError, change, get } from "./api.js";
import { byId, el, setText } from "./dom.js";
import { count } from "./format.js";

function decisionWords(told) {
  if (told.decision === "dispatch") return `It would be sent to ${told.backend} at once.`;
  if (told.decision === "park") {
    const behind = told.ahead === 1 ? "1 request is" : `${count(told.ahead)} requests are`;
    return `It would be parked; ${behind} parked in its pool already.`;
  }
  const reason = told.reason ? `${told.status} ${told.reason}` : String(told.status);
  return `It would be refused: ${reason}: ${told.message}`;
}

function estimateWords(estimate) {
  const error = estimate.error > 0 ? `, give or take ${Math.round(estimate.error * 100)} %` : "";
  const batch = estimate.total_tokens !== estimate.tokens ? `; ${count(estimate.total_tokens)} over the whole batch` : "";
  return `${count(estimate.tokens)} tokens (${estimate.method}${error})${batch}`;
}

function backendRow(backend) {
  const [mark, words] = !backend.candidate ? ["no", "not a candidate"] : backend.room ? ["yes", "candidate with room"] : ["full", "candidate without room"];
  return el("li", { "data-mark": mark }, el("strong", {}, backend.name), `: ${words}: ${backend.why}`);
}

function show(told) {
  byId("explanation").hidden = false;
  const decision = byId("decision");
  setText(decision, decisionWords(told));
  decision.dataset.decision = told.decision;
  const facts = [
    ["Remedy", told.advice],
    ["Pool", told.pool],
    ["Estimate", told.estimate && estimateWords(told.estimate)],
    ["Input caps on its way", told.estimate && (told.estimate.caps.map((cap) => (cap === 0 ? "none" : count(cap))).join(", ") || "none")],
  ].filter(([, text]) => text);
  byId("explain-facts").replaceChildren(...facts.map(([term, text]) => el("div", {}, el("dt", {}, term), el("dd", {}, text))));
  byId("explain-backends").replaceChildren(...(told.backends ?? []).map(backendRow));
}

async function submit(event) {
  event.preventDefault();
  const body = byId("explain-body").value;
  const fault = byId("explain-error");
  try {
    JSON.parse(body);
  } catch (error) {
    byId("explanation").hidden = true;
    setText(fault, `This is not JSON, so it would be refused with 400 invalid_request: ${error.message}`);
    return;
  }
  const path = JSON.stringify(byId("explain-path").value);
  const priority = JSON.stringify(byId("explain-priority").value);
  try {
    // The text goes as it stands: parsed and written again, its large numbers would change.
    const told = await change("POST", "api/lb/explain", `{"path":${path},"priority":${priority},"body":${body}}`);
    setText(fault, "");
    if (told !== null) show(told);
  } catch (error) {
    if (!(error instanceof CallError)) throw error;
    byId("explanation").hidden = true;
    setText(fault, error.message);
  }
}

/** Offer the paths, from the router's own description of itself. */
async function offerPaths() {
  const page = await get("openapi.json");
  const paths = page.components.schemas.ExplainRequest.properties.path.examples;
  byId("explain-paths").replaceChildren(...paths.map((path) => el("option", { value: path })));
}

/** Wire the form. */
export function startExplain() {
  byId("explain").addEventListener("submit", submit);
  return offerPaths();
}

/** Fill in an example once a model is known, unless somebody has typed. */
export function suggestBody(state) {
  const area = byId("explain-body");
  const model = Object.keys(state.pools)[0];
  if (model === undefined || area.dataset.touched) return;
  area.dataset.touched = "yes";
  if (area.value === "") area.value = JSON.stringify({ model, messages: [{ role: "user", content: "Hello" }] }, null, 2);
}
