// Keys of the console; every page works without them.
"use strict";

const rows = () => Array.from(document.querySelectorAll("main tbody tr[tabindex], main article.change, main section.batch"));

function step(by) {
  const found = rows();
  const now = document.activeElement;
  const at = found.findIndex((row) => row === now || (row.contains(now) && !row.querySelector("[tabindex='-1']")));
  const next = found[at < 0 ? (by > 0 ? 0 : found.length - 1) : at + by];
  if (next) {
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }
}

function follow(selector, root) {
  const link = (root || document).querySelector(selector);
  if (link) {
    link.click();
  }
}

const keys = {
  "/": () => {
    const field = document.querySelector("form[role='search'] input:not([type='hidden'])");
    if (field) {
      field.focus();
      field.select();
    }
  },
  "j": () => step(1),
  "k": () => step(-1),
  "n": () => follow("a[rel='next']"),
  "p": () => follow("a[rel='prev']"),
  "g": () => follow("a.home"),
  "?": () => {
    const help = document.getElementById("keys");
    help.open = !help.open;
    help.scrollIntoView({ block: "nearest" });
  },
};

for (const form of document.querySelectorAll("form.slider")) {
  const slider = form.querySelector("input[type='range']");
  const shown = (value) => (slider.name === "as_of_ms" ? new Date(Number(value)).toISOString() : value);
  slider.addEventListener("input", () => { form.querySelector("output").textContent = shown(slider.value); });
  slider.addEventListener("change", () => form.requestSubmit());
}

// Follows a changelog: new batches come as server-sent events, HTML that the server has escaped.
const BATCHES_MAX = 200;

function follower(section) {
  const arrivals = section.querySelector(".arrivals");
  const button = section.querySelector("button");
  const words = section.querySelector("output");
  let source = null;
  let wanted = false;
  let next = new URL(section.dataset.source, location.href);

  function add(event) {
    const atEnd = window.innerHeight + window.scrollY >= document.body.scrollHeight - 80;
    const template = document.createElement("template");
    template.innerHTML = event.data;
    arrivals.append(template.content);
    while (arrivals.children.length > BATCHES_MAX) {
      arrivals.firstElementChild.remove();
    }
    next.searchParams.set("start", event.lastEventId);
    words.textContent = `Offsets up to ${Number(event.lastEventId) - 1} have come.`;
    if (atEnd) {
      section.scrollIntoView({ block: "end" });
    }
  }

  function close() {
    if (source) {
      source.close();
      source = null;
    }
  }

  function open() {
    source = new EventSource(next);
    source.addEventListener("changes", add);
    source.addEventListener("failure", (event) => {
      pause(JSON.parse(event.data).error.message);
    });
    source.onerror = () => {
      words.textContent = "The console does not answer; trying again.";
      if (source && source.readyState === EventSource.CLOSED) {
        pause("The console does not answer any more.");
      }
    };
    source.onopen = () => { words.textContent = "Waiting for changes."; };
  }

  function pause(why) {
    wanted = false;
    close();
    button.textContent = "Follow";
    button.setAttribute("aria-pressed", "false");
    words.textContent = why;
  }

  function toggle() {
    if (wanted) {
      pause("Paused.");
    } else {
      wanted = true;
      button.textContent = "Pause";
      button.setAttribute("aria-pressed", "true");
      open();
    }
  }

  // A page that nobody sees asks for nothing; a browser has few connections to a host.
  document.addEventListener("visibilitychange", () => {
    close();
    if (wanted && !document.hidden) {
      open();
    }
  });
  button.addEventListener("click", toggle);
  section.hidden = false;
  keys["f"] = toggle;
}

for (const section of document.querySelectorAll("section.live")) {
  follower(section);
}

document.addEventListener("keydown", (event) => {
  const at = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || at.closest("input, select, textarea")) {
    return;
  }
  if (event.key === "Enter" && at.matches("tr, article, section")) {
    follow("a", at);
  } else if (Object.hasOwn(keys, event.key)) {
    event.preventDefault();
    keys[event.key]();
  }
});
