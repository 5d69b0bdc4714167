// Small charts of the router's own history: lines for gauges, stacked bars for refusals.

import { el, follow, setText, svg } from "./dom.js";
import { count, duration } from "./format.js";

const WIDTH = 600;
const HEIGHT = 120;

/** Reasons with a colour of their own, in the order they are stacked; the others share one. */
const COLOURED = ["gate", "queue_full", "queue_timeout", "request_too_large", "no_backends", "rate_limited", "shutting_down", "backend_unreachable"];
const colourOf = (reason) => String(COLOURED.indexOf(reason) + 1);

function frame(title, describe) {
  const name = el("h3", {}, title);
  const top = el("span", { class: "top-value", "aria-hidden": "true" });
  const marks = svg("g");
  const cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT, x1: -10, x2: -10 });
  const drawing = svg(
    "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
    svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 }),
    marks, cursor,
  );
  const pointed = el("span", { class: "pointed", "aria-hidden": "true" });
  const axis = el("p", { class: "axis quiet", "aria-hidden": "true" }, el("span", {}, "15 min ago"), pointed, el("span", {}, "now"));
  const node = el("figure", { class: "card chart" }, name, el("div", { class: "plot" }, top, drawing), axis);
  let shown = { ages: [], xs: [], words: () => "" };

  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    const nearest = shown.xs.reduce((best, at, index) => (Math.abs(at - x) < Math.abs(shown.xs[best] - x) ? index : best), 0);
    if (shown.xs.length === 0) return;
    cursor.setAttribute("x1", shown.xs[nearest]);
    cursor.setAttribute("x2", shown.xs[nearest]);
    setText(pointed, `${duration(shown.ages[nearest])} ago: ${shown.words(nearest)}`);
  });
  drawing.addEventListener("pointerleave", () => {
    cursor.setAttribute("x1", -10);
    cursor.setAttribute("x2", -10);
    setText(pointed, "");
  });
  return {
    node,
    show(history, most, form, words, shapes) {
      const xs = history.age_sec.map((age) => WIDTH * (1 - age / history.window_sec));
      shown = { ages: history.age_sec, xs, words };
      setText(top, most > 0 ? form(most) : "");
      drawing.setAttribute("aria-label", describe(words));
      marks.replaceChildren(...shapes(xs));
    },
  };
}

/** A gauge over time. form: its figure as text. */
export function lineChart(title, form) {
  let values = [];
  const chart = frame(title, (words) =>
    values.length === 0
      ? `${title}: nothing yet`
      : `${title}: now ${words(values.length - 1)}, at most ${form(Math.max(...values))} in the last 15 minutes`,
  );
  return {
    node: chart.node,
    update(history, columns) {
      values = columns;
      const most = Math.max(0, ...values);
      const y = (value) => (most > 0 ? HEIGHT - 2 - (value / most) * (HEIGHT - 8) : HEIGHT - 2);
      chart.show(history, most, form, (index) => form(values[index]), (xs) =>
        runs(history).flatMap(([from, to]) => {
          const points = xs.slice(from, to + 1).map((x, index) => `${x.toFixed(1)},${y(values[from + index]).toFixed(1)}`);
          // One bin alone is a point: give it the width of a period.
          if (points.length === 1) points.unshift(`${(xs[from] - 3).toFixed(1)},${y(values[from]).toFixed(1)}`);
          const [first, last] = [points[0].split(",")[0], points[points.length - 1].split(",")[0]];
          return [
            svg("polygon", { class: "area", points: `${first},${HEIGHT} ${points.join(" ")} ${last},${HEIGHT}` }),
            svg("polyline", { class: "line", points: points.join(" ") }),
          ];
        }),
      );
    },
  };
}

/** Stretches of bins without a gap: [first, last] of each. */
function runs(history) {
  const found = [];
  history.age_sec.forEach((age, index) => {
    const last = found[found.length - 1];
    if (last && history.age_sec[index - 1] - age <= 2 * history.period_sec) last[1] = index;
    else found.push([index, index]);
  });
  return found;
}

/** Refusals over time, stacked by reason, with a legend that names and counts them. */
export function reasonChart(title) {
  let totals = [];
  const chart = frame(title, () =>
    totals.length === 0
      ? `${title}: none in the last 15 minutes`
      : `${title} in the last 15 minutes: ${totals.map(([reason, total]) => `${count(total)} ${reason}`).join(", ")}`,
  );
  const legend = el("ul", { class: "legend", "aria-hidden": "true" });
  chart.node.append(legend);
  return {
    node: chart.node,
    update(history, rejected) {
      const reasons = Object.entries(rejected).sort(([a], [b]) => order(a) - order(b));
      totals = reasons.map(([reason, counts]) => [reason, counts.reduce((total, one) => total + one, 0)]);
      const sums = history.age_sec.map((_, index) => reasons.reduce((total, [, counts]) => total + counts[index], 0));
      const most = Math.max(0, ...sums);
      const width = (WIDTH * history.period_sec) / history.window_sec;
      const words = (index) => reasons.filter(([, counts]) => counts[index]).map(([reason, counts]) => `${count(counts[index])} ${reason}`).join(", ") || "none";
      chart.show(history, most, (value) => `${count(value)} in ${history.period_sec} s`, words, (xs) =>
        xs.flatMap((x, index) => stack(reasons, index, x - width, width * 0.9, most)),
      );
      follow(legend, totals, legendRow);
    },
  };
}

const order = (reason) => (COLOURED.includes(reason) ? COLOURED.indexOf(reason) : COLOURED.length);

function stack(reasons, index, x, width, most) {
  let y = HEIGHT;
  return reasons.filter(([, counts]) => counts[index]).map(([reason, counts]) => {
    const height = (counts[index] / most) * (HEIGHT - 6);
    y -= height;
    return svg("rect", { class: "bar", "data-colour": colourOf(reason), x: x.toFixed(1), y: y.toFixed(1), width: width.toFixed(1), height: height.toFixed(1) });
  });
}

function legendRow(reason) {
  const total = el("span");
  return {
    node: el("li", { "data-colour": colourOf(reason) }, `${reason} `, total),
    update: (value) => setText(total, count(value)),
  };
}
