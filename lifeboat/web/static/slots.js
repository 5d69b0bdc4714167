// The slots bar of a backend: the slots that the router holds, and what the engine says it runs.

import { svg } from "./dom.js";

const CELLS_MOST = 64; // More cells than this are too thin to see: whole bars then.

/** Return a bar; update(backend) redraws it when a figure changed. For the eye alone. */
export function slotsBar() {
  const node = svg("svg", { class: "slots", "aria-hidden": "true", preserveAspectRatio: "none" });
  let drawn = "";
  return {
    node,
    update(backend) {
      const { running, waiting, slots } = backend.engine;
      const bound = backend.effective_limit;
      const told = backend.live && (running !== null || slots !== null);
      const key = [backend.in_flight, bound, backend.max_concurrency, told, running, waiting, slots].join();
      if (key === drawn) return;
      drawn = key;
      const inside = (running ?? 0) + (waiting ?? 0);
      const most = Math.max(backend.in_flight, bound ?? 0, backend.max_concurrency, slots ?? 0, inside, 1);
      node.setAttribute("viewBox", `0 0 ${most} ${told ? 19 : 10}`);
      node.replaceChildren(
        ...parts(0, 10, most, [
          ["held", Math.min(backend.in_flight, bound ?? backend.in_flight)],
          ["beyond", bound === null ? 0 : Math.max(backend.in_flight - bound, 0)],
          ["free", Math.max((bound ?? 0) - backend.in_flight, 0)],
          ["closed", Math.max(backend.max_concurrency - Math.max(bound ?? 0, backend.in_flight), 0)],
        ]),
        ...(told
          ? parts(12, 7, most, [
              ["running", running ?? 0],
              ["waiting", waiting ?? 0],
              ["free", Math.max((slots ?? 0) - inside, 0)],
            ])
          : []),
      );
    },
  };
}

function parts(y, height, most, runs) {
  const cells = [];
  let x = 0;
  for (const [kind, length] of runs) {
    if (length <= 0) continue;
    const step = most <= CELLS_MOST ? 1 : length;
    const gap = Math.min(0.14, most * 0.005);
    for (let from = 0; from < length; from += step) {
      cells.push(svg("rect", { class: kind, x: x + from, y, width: step - gap, height }));
    }
    x += length;
  }
  return cells;
}
