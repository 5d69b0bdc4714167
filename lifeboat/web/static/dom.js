// Building and updating the page. Text from outside becomes text nodes and nothing else.

const SVG = "http://www.w3.org/2000/svg";

/** Return the element with this id. */
export const byId = (id) => document.getElementById(id);

/** Return a new element; children are nodes or text. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Return a new SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Set a node's text; an unchanged one is left alone, so that selections survive. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set or clear an attribute. */
export function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** Show a message, or hide its place when there is none. */
export function say(node, message) {
  setText(node, message ?? "");
  node.hidden = !message;
}

const kept = new WeakMap();

/**
 * Make a container's children follow a list of [key, value]. Each key keeps its node, so that
 * focus, open details and half-typed numbers survive an update.
 * make(key) returns {node, update(value)}.
 */
export function follow(container, entries, make) {
  const wanted = new Map(entries);
  const parts = kept.get(container) ?? new Map();
  kept.set(container, parts);
  for (const [key, part] of parts) {
    if (!wanted.has(key)) {
      part.node.remove();
      parts.delete(key);
    }
  }
  let place = container.firstElementChild;
  for (const [key, value] of wanted) {
    if (!parts.has(key)) parts.set(key, make(key));
    const part = parts.get(key);
    part.update(value);
    // Only a node that is out of place moves: a moved one loses the focus.
    if (part.node === place) place = place.nextElementSibling;
    else container.insertBefore(part.node, place);
  }
}

/** A labelled figure over its bound, with a bar. update({value, most, text, tone}). */
export function meter(label) {
  const text = el("span", { class: "figure" });
  const fill = el("div", { class: "fill" });
  const node = el(
    "div", { class: "meter" },
    el("span", { class: "label" }, label), text,
    el("div", { class: "track", "aria-hidden": "true" }, fill),
  );
  return {
    node,
    update({ value, most, text: words, tone = "" }) {
      setText(text, words);
      setAttribute(node, "data-tone", tone);
      const part = most > 0 ? Math.min(value / most, 1) : value > 0 ? 1 : 0;
      fill.style.width = `${(part * 100).toFixed(2)}%`;
    },
  };
}

/** A list of terms and figures. update([[term, text], ...]). */
export function facts(className = "facts") {
  const node = el("dl", { class: className });
  return {
    node,
    update(rows) {
      follow(node, rows, (term) => {
        const value = el("dd");
        return {
          node: el("div", {}, el("dt", {}, term), value),
          update: (text) => setText(value, text),
        };
      });
    },
  };
}
