// The live state: server-sent events while the router serves, plain reads while it drains, and a
// patient knock while it is gone. A hidden tab holds no connection: browsers allow six a host.

import { CallError, get } from "./api.js";

const PATH = "api/lb/state";
const CAPACITY_PATH = "api/lb/capacity";
const SILENCE_MS = 5000; // An event comes every second: this long without one is a dead stream.
const RETRY_MS = 1000;
const RETRY_MOST_MS = 5000;

/**
 * Follow the state. onState(state, capacity): both of one moment, where they come by the stream.
 * onConnection(kind): connecting, live, draining or gone.
 * Returns what reads the state at once, in between.
 */
export function followState(onState, onConnection) {
  let source = null;
  let timer = 0;
  let heardAt = 0;
  let pause = RETRY_MS;
  let newest = -Infinity; // The uptime of the state that is shown.
  let life = 0; // Another one begins where the router may have been restarted.

  function take(state, capacity) {
    heardAt = performance.now();
    pause = RETRY_MS;
    onConnection(state.draining ? "draining" : "live");
    // What was read in between has overtaken events that were on their way.
    if (state.uptime_sec < newest) return;
    newest = state.uptime_sec;
    onState(state, capacity);
  }

  async function read() {
    return Promise.all([get(PATH), get(CAPACITY_PATH)]);
  }

  function open() {
    close();
    heardAt = performance.now();
    source = new EventSource(`${PATH}/stream?capacity`);
    let capacity = { pools: {} };
    source.addEventListener("capacity", (event) => (capacity = JSON.parse(event.data)));
    source.onmessage = (event) => take(JSON.parse(event.data), capacity);
    source.onerror = ask;
    timer = setInterval(() => performance.now() - heardAt > SILENCE_MS && ask(), RETRY_MS);
  }

  function close() {
    source?.close();
    source = null;
    clearInterval(timer);
    clearTimeout(timer);
  }

  // The stream ended: a router that drains still answers reads, one that is gone does not.
  async function ask() {
    close();
    let again;
    try {
      const [state, capacity] = await read();
      if (document.hidden) return;
      // It may be another router by now, younger than the last one was.
      newest = -Infinity;
      life += 1;
      take(state, capacity);
      if (!state.draining) return open();
      again = RETRY_MS;
    } catch {
      onConnection("gone");
      again = pause;
      pause = Math.min(pause * 2, RETRY_MOST_MS);
    }
    close();
    timer = setTimeout(ask, again);
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : ask()));
  open();

  return async function readNow() {
    const mine = life;
    try {
      const [state, capacity] = await read();
      if (mine === life) take(state, capacity);
    } catch (error) {
      // The stream notices a router that is gone, and says so.
      if (!(error instanceof CallError)) throw error;
    }
  };
}
