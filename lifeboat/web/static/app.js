// The dashboard: one live state, shown by its parts. Every figure is the router's own.

import { CallError, afterChanges, startToken } from "./api.js";
import { showBackends, startBackends } from "./backends.js";
import { byId, say, setAttribute, setText } from "./dom.js";
import { startExplain, suggestBody } from "./explain.js";
import { duration } from "./format.js";
import { refreshHistory, showPoolChoice, startHistory } from "./history.js";
import { startMode } from "./mode.js";
import { showOverview } from "./overview.js";
import { announceParked, refreshParked } from "./parked.js";
import { showPools } from "./pools.js";
import { refreshRejections, showRejections, startRejections } from "./rejections.js";
import { followState } from "./stream.js";

const LIST_MS = 1000; // The lists beside the stream are read at most this often.
const RETRY_MS = 5000;
const STALE_MS = 3000; // A state comes every second: one that is older is no longer what is.
const REST = 4; // Drawing a thousand pools takes a while: four times as long is left to the reader.

let latest = null;
let capacity = null;
let toldAt = 0;
let drawing = false;
let restMs = 0;
let connection = "connecting";
let showMode = () => {};

const announce = (text) => setText(byId("announcer"), text);

/** Return a reader of one page that never runs twice at once, nor more often than LIST_MS. */
function paced(read) {
  let busy = false;
  let readAt = -Infinity;
  return async function again() {
    if (busy || performance.now() - readAt < LIST_MS) return false;
    busy = true;
    readAt = performance.now();
    try {
      await read();
      return true;
    } catch (error) {
      // The stream notices a router that is gone, and says so.
      if (!(error instanceof CallError)) throw error;
      return false;
    } finally {
      busy = false;
    }
  };
}

const parked = paced(refreshParked);
const rejections = paced(refreshRejections);
let anyParked = true;
let rejectionsAreOld = true;

function draw() {
  const startedAt = performance.now();
  drawing = false;
  document.body.dataset.known = "yes";
  showOverview(latest);
  showMode(latest);
  showPools(latest, capacity);
  showBackends(latest);
  showPoolChoice(latest);
  suggestBody(latest);
  if (latest.queue_total_waiters > 0) anyParked = true;
  announceParked(latest.queue_total_waiters);
  // Read once more after the last one left.
  if (anyParked) parked().then((done) => done && latest.queue_total_waiters === 0 && (anyParked = false));
  if (showRejections(latest)) rejectionsAreOld = true;
  if (rejectionsAreOld) {
    rejections().then((done) => {
      if (!done) return;
      rejectionsAreOld = false;
      showRejections(latest);
    });
  }
  restMs = (performance.now() - startedAt) * REST;
}

function onState(state, capacityThen) {
  latest = state;
  capacity = capacityThen;
  toldAt = performance.now();
  showAge();
  // Events may come faster than a screen is drawn: the newest is enough.
  if (!drawing) {
    drawing = true;
    setTimeout(() => requestAnimationFrame(draw), restMs);
  }
}

/** Say how old the figures are, once that matters: nothing on the page is then what is now. */
function showAge() {
  const ageMs = performance.now() - toldAt;
  const stale = latest !== null && ageMs > STALE_MS;
  setAttribute(document.body, "data-stale", stale ? "yes" : null);
  say(byId("age"), stale ? `The figures below are ${duration(Math.floor(ageMs / 1000))} old.` : null);
}

const BANNERS = {
  draining: () => "The router is draining: it takes no new requests and will stop once those in flight have ended.",
  gone: () => {
    const told = latest === null ? "Nothing is known of it yet." : "The figures below are the last it told.";
    return `The router cannot be reached since ${new Date().toLocaleTimeString("en-GB")}. ${told} Trying again.`;
  },
};

function onConnection(kind) {
  if (kind === connection) return;
  connection = kind;
  const mark = byId("connection");
  mark.dataset.kind = kind;
  setText(mark, kind);
  const banner = byId("banner");
  banner.dataset.kind = kind;
  say(banner, BANNERS[kind]?.());
}

async function keepHistory() {
  let pause = RETRY_MS;
  try {
    if (!document.hidden) pause = (await refreshHistory()) * 1000;
  } catch (error) {
    if (!(error instanceof CallError)) throw error;
  }
  setTimeout(keepHistory, pause);
}

/** Run what needs a first answer of the router, until it gets one. */
async function untilAnswered(start) {
  for (;;) {
    try {
      return await start();
    } catch (error) {
      if (!(error instanceof CallError)) throw error;
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

startToken();
startBackends(announce);
startHistory();
startRejections();
afterChanges(followState(onState, onConnection));
setInterval(showAge, 1000);
keepHistory();
untilAnswered(startExplain);
untilAnswered(() => startMode(announce)).then((show) => {
  showMode = show;
  if (latest !== null) showMode(latest);
});
