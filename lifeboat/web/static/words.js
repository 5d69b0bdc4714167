// What the router's short words mean to an operator. tests/web/test_words.py holds them complete.

/** Why an effective limit is what it is. */
export const LIMIT_REASONS = {
  configured: "as configured",
  default: "the default, since none is configured",
  gguf_default: "the default for a llama.cpp server whose slots are unknown",
  engine_slots: "the server's own slots, since none is configured",
  ungated: "no gate: max_concurrency is 0",
  superfast: "clamped by the superfast mode",
  share: "this router's share of the limit",
  predecessor: "less what still runs on its server under another name",
  adaptive: "lowered by what was observed",
  saturated: "the server said it is full; rises again step by step",
  suspect: "failed repeatedly: one trial at a time",
  throttled: "the provider asked us to pause (429 with Retry-After)",
  loading: "closed while the model loads",
  down: "closed while the backend is down",
  drain: "closed: draining",
  maint: "closed: in maintenance",
};

/** What each health means. */
export const HEALTHS = {
  starting: "not probed yet",
  loading: "loading its model",
  up: "up",
  suspect: "suspect: failed repeatedly",
  down: "down",
};

/** The operator's states: button, and what it does. */
export const STATES = {
  ready: ["Ready", "takes requests"],
  drain: ["Drain", "takes no new requests; what runs there ends"],
  maint: ["Maint", "out of service until it is made ready again"],
};

/** What the last 5 minutes say of a pool. */
export const VERDICTS = {
  ok: "Little or nothing was refused for load of late.",
  under_capacity: "Too little capacity.",
  not_a_capacity_problem: "Refusals that more backends would not cure.",
  insufficient_data: "Too few requests to judge.",
};

/** Return the words for a key, or the key itself where a newer router knows more than this page. */
export const wordsFor = (table, key) => (Object.hasOwn(table, key) ? table[key] : key);
