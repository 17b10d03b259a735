"use strict";
// The page's data, and how texts and numbers are written. Texts from outside enter through
// textContent and setAttribute alone, so a file name is never markup.

const data = JSON.parse(document.getElementById("content").textContent);
const byId = (id) => document.getElementById(id);
const SCORES = Object.fromEntries(data.scores.map((score) => [score.name, score]));

function make(tag, text, attributes = {}) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// Text with `commands` in backticks.
function rich(node, text) {
  node.replaceChildren(...text.split("`").map((piece, index) => index % 2 ? make("code", piece) : piece));
  return node;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

// A score has as many decimals everywhere on the page; only numbers of six digits are shortened.
function scoreText(name, value) {
  if (!isNumber(value)) return "–";
  const text = Math.abs(value) >= 1e5 ? value.toExponential(1).replace("e+", "e") : value.toFixed(SCORES[name].digits);
  return text.replace("-", "−");
}

const intervalText = (name, low, high) =>
  isNumber(low) ? `${scoreText(name, low)} … ${scoreText(name, high)}` : "–";

const minutesText = (time) => `${Math.floor(time / 60)}:${(time % 60).toFixed(1).padStart(4, "0")}`;

// The scores in [0, 1] of a panel share an axis; tick labels have no more decimals than they need.
const tickText = (value) => String(Number(value.toPrecision(6))).replace("-", "−");
