// What the pages cannot do without a script: local times, the live tail, tokens for htmx.
"use strict";

const TIME_STYLES = {
  short: { hour: "2-digit", minute: "2-digit" },
  time: { hour: "2-digit", minute: "2-digit", second: "2-digit" },
  day: { weekday: "short", day: "numeric" },
};

function showLocalTimes(root) {
  for (const element of root.querySelectorAll("time[datetime], [data-datetime]")) {
    const text = element.dateTime || element.dataset.datetime;
    const at = new Date(text);
    if (!Number.isNaN(at.getTime())) {
      const style = Object.keys(TIME_STYLES).find((name) => name in element.dataset);
      element.textContent = style === undefined
        ? at.toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" })
        : at.toLocaleString(undefined, TIME_STYLES[style]);
      if ("dateTime" in element) element.title = text;
    }
  }
}

function follow(button) {
  const state = document.getElementById("live-state");
  const rows = document.getElementById("rows");
  const most = 500;
  let source = null;
  let came = 0; // records, those that were not sent to this page too

  function count(made) {
    const skipped = made.querySelector("[data-skipped]");
    came += made.querySelectorAll("[data-record]").length;
    if (skipped !== null) came += Number(skipped.dataset.skipped);
  }

  function describe() {
    const shown = rows.querySelectorAll("[data-live]").length;
    const hidden = came - shown;
    state.textContent = came === 0
      ? "live: new records appear at the top"
      : `live: ${came} new records` + (hidden > 0 ? `, ${shown} shown, ${hidden} not` : "");
  }

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
    came = 0;
    for (const row of rows.querySelectorAll("[data-live]")) delete row.dataset.live;
    source = new EventSource(button.dataset.url);
    button.setAttribute("aria-pressed", "true");
    button.textContent = "Stop";
    state.textContent = "connecting";
    source.addEventListener("state", (event) => {
      if (event.data === "live") describe();
      else stop(event.data);
    });
    source.addEventListener("rows", (event) => {
      // The server has escaped what records hold.
      const made = document.createElement("template");
      made.innerHTML = event.data;
      showLocalTimes(made.content);
      count(made.content);
      for (const row of made.content.querySelectorAll("[data-record]")) row.dataset.live = "";
      rows.prepend(made.content);
      while (rows.children.length > most) rows.lastElementChild.remove();
      describe();
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
