// Requests to the service. A token is asked for when it is wanted, and kept until the tab is closed.

import { byId } from "./dom.js";

const KEY = "raydist-token";

export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function call(method, path, body) {
  for (;;) {
    const token = sessionStorage.getItem(KEY);
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    } catch {
      throw new Failure(0, "The service does not answer. Is it still running?");
    }
    if (response.status === 401) {
      await signIn();
      continue;
    }
    const said = await response.json().catch(() => ({}));
    if (!response.ok) throw new Failure(response.status, said.error ?? `The service says ${response.status}.`);
    return said;
  }
}

let asking = null; // one dialog for requests that are refused together

function signIn() {
  asking ??= new Promise((resolve) => {
    const dialog = byId("sign-in");
    const form = dialog.querySelector("form");
    const take = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, byId("token").value.trim());
      byId("token").value = "";
      form.removeEventListener("submit", take);
      dialog.removeEventListener("cancel", stay);
      dialog.close();
      asking = null;
      resolve();
    };
    const stay = (event) => event.preventDefault(); // without a token there is nothing to go back to
    form.addEventListener("submit", take);
    dialog.addEventListener("cancel", stay);
    dialog.showModal();
  });
  return asking;
}
