// The live state: server-sent events while the router serves, plain reads while it drains, and a
// patient knock while it is gone. A hidden tab holds no connection: browsers allow six a host.

import { get } from "./api.js";

const SILENCE_MS = 5000; // An event comes every second: this long without one is a dead stream.
const RETRY_MS = 1000;
const RETRY_MOST_MS = 5000;

/** Follow the state. onState(state), onConnection(kind): connecting, live, draining or gone. */
export function followState(onState, onConnection) {
  let source = null;
  let timer = 0;
  let heardAt = 0;
  let pause = RETRY_MS;

  function take(state) {
    heardAt = performance.now();
    pause = RETRY_MS;
    onConnection(state.draining ? "draining" : "live");
    onState(state);
  }

  function open() {
    close();
    heardAt = performance.now();
    source = new EventSource("api/lb/state/stream");
    source.onmessage = (event) => take(JSON.parse(event.data));
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
      const state = await get("api/lb/state");
      if (document.hidden) return;
      take(state);
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
}
