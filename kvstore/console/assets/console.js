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
  slider.addEventListener("input", () => { form.querySelector("output").textContent = slider.value; });
  slider.addEventListener("change", () => form.requestSubmit());
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
