// Talking to the router: reads, and changes that may need the admin token.

import { byId, setText } from "./dom.js";

const KEY = "lifeboat-admin-token";
// A router that is frozen or cut off takes connections and answers none.
const READ_MS = 10_000;
const CHANGE_MS = 30_000;
let token = sessionStorage.getItem(KEY);
let readAfter = async () => {};

/** A call that the router refused; status 0 = it could not be reached. */
export class CallError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Set what reads the state again after a change; it may not throw. */
export function afterChanges(read) {
  readAfter = read;
}

/** Get a page as JSON. Throws CallError. */
export const get = (path) => call("GET", path, null);

/**
 * Make a change; text: the JSON to send. Asks for the token where the router wants one.
 * Returns the router's answer, once the page has read a state that knows of the change; null when
 * the operator gave up. Throws CallError.
 */
export async function change(method, path, text) {
  for (;;) {
    try {
      const answer = await call(method, path, text);
      if (token !== null) sessionStorage.setItem(KEY, token);
      showToken();
      await readAfter();
      return answer;
    } catch (error) {
      if (error.status !== 401 && error.status !== 403) throw error;
      const given = await askForToken(whyAsked(error));
      if (given === null) return null;
      token = given;
    }
  }
}

function whyAsked(error) {
  if (error.status === 403) return error.message;
  return token === null ? "The router wants its admin token for this." : "That token was not accepted.";
}

async function call(method, path, text) {
  const headers = text === null ? {} : { "Content-Type": "application/json" };
  if (method !== "GET" && token !== null) headers.Authorization = `Bearer ${token}`;
  const signal = AbortSignal.timeout(method === "GET" ? READ_MS : CHANGE_MS);
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: text, cache: "no-store", signal });
  } catch {
    throw new CallError(0, signal.aborted ? "the router does not answer" : "the router cannot be reached");
  }
  const page = answer.status === 204 ? {} : await answer.json().catch(() => null);
  if (!answer.ok || page === null) {
    throw new CallError(answer.status, page?.error?.message ?? `the router answered ${answer.status}`);
  }
  return page;
}

function askForToken(why) {
  const dialog = byId("token-dialog");
  const input = byId("token");
  setText(byId("token-why"), why);
  input.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        resolve(dialog.returnValue === "use" ? input.value : null);
        input.value = "";
      },
      { once: true },
    );
  });
}

function forgetToken() {
  token = null;
  sessionStorage.removeItem(KEY);
  showToken();
}

function showToken() {
  byId("forget-token").hidden = token === null;
}

/** Wire the dialog and the button that forgets. */
export function startToken() {
  byId("token-cancel").addEventListener("click", () => byId("token-dialog").close(""));
  byId("forget-token").addEventListener("click", forgetToken);
  showToken();
}
