// What the pages cannot do without a script: local times, the live tail, tokens for htmx.
"use strict";

function showLocalTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (!Number.isNaN(at.getTime())) {
      element.textContent = "short" in element.dataset
        ? at.toLocaleTimeString(undefined, { timeStyle: "short" })
        : at.toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" });
      element.title = element.dateTime;
    }
  }
}

function follow(button) {
  const state = document.getElementById("live-state");
  const rows = document.getElementById("rows");
  const most = 500;
  let source = null;

  function stop(text) {
    if (source !== null) source.close();
    source = null;
    button.setAttribute("aria-pressed", "false");
    button.textContent = "Live";
    state.textContent = text;
  }

  button.addEventListener("click", () => {
    if (source !== null) {
      stop("stopped");
      return;
    }
    source = new EventSource(button.dataset.url);
    button.setAttribute("aria-pressed", "true");
    button.textContent = "Stop";
    state.textContent = "connecting";
    source.addEventListener("state", (event) => {
      if (event.data === "live") state.textContent = "live: new records appear at the top";
      else stop(event.data);
    });
    source.addEventListener("rows", (event) => {
      // The server has escaped what records hold.
      const made = document.createElement("template");
      made.innerHTML = event.data;
      showLocalTimes(made.content);
      rows.prepend(made.content);
      while (rows.children.length > most) rows.lastElementChild.remove();
    });
    source.addEventListener("error", () => {
      if (source !== null && source.readyState === EventSource.CLOSED) stop("the connection ended");
    });
  });
}

document.addEventListener("DOMContentLoaded", () => {
  showLocalTimes(document);
  const button = document.getElementById("live");
  if (button !== null) follow(button);
});
document.addEventListener("htmx:afterSwap", (event) => showLocalTimes(event.target));
