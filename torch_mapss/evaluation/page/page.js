"use strict";
// Texts and tables of the page, and what its buttons do.

// ------------------------------------------------------------------ texts

function writeTexts() {
  byId("title").textContent = data.title;
  rich(byId("answer"), data.answer);
  byId("scored").textContent = `${data.written} · ${data.scored}`;
  byId("input").textContent = data.input.length ? `Before scoring: ${data.input.join("; ")}.` : "";
  byId("embedded").textContent = `${data.embedded}.`;
  byId("notes").replaceChildren(...data.notes.map((line) => rich(make("li"), line)));
  byId("statement").textContent = data.statement;
  byId("missing").hidden = !data.missing.length;
  rich(byId("missing").firstElementChild, `Audio that was not found. ${data.advice}.`);
  byId("missing").lastElementChild.replaceChildren(...data.missing.map((line) => make("li", line)));
  const noted = data.rows.filter((row) => row.note).length;
  if (noted) byId("warned").append(`${noted} of ${data.rows.length} estimates have remarks: see the `, make("a", "table of estimates", { href: "#estimates" }), ".");
}

// ------------------------------------------------------------------ ranking

// A row of cells, each with the name of its column, which narrow windows show.
function tableLine(head, cells) {
  const line = make("tr");
  line.append(make("th", head, { scope: "row" }));
  for (const [label, text] of cells) line.append(make("td", text, { class: "n", "data-label": label }));
  return line;
}

function showScore(name) {
  for (const button of byId("scores").children) button.setAttribute("aria-pressed", String(button.dataset.score === name));
  byId("meaning").textContent = `${SCORES[name].meaning}.`;
  const rows = data.ranking.filter((row) => row.measure === name);
  showRanking(name, rows);
  const systems = rows.map((row) => row.system);
  const sourceMean = (system, source) =>
    data.sources.means.find((row) => row.measure === name && row.system === system && row.source === source)?.mean;
  showMeans("sources", `${SCORES[name].label} of`, name, systems, data.sources.names, sourceMean);
  const channelMean = (system, channel) =>
    data.channels.means.find((row) => row.system === system && row.channel === channel)?.[name];
  showMeans("channels", `${SCORES[name].label} of channel`, name, systems, data.channels.numbers, channelMean);
  const pairs = data.pairs.filter((row) => row.measure === name);
  byId("pairs-block").hidden = !pairs.length;
  byId("pairs").tBodies[0].replaceChildren(...pairs.map((row) => tableLine(`${row.system_a} − ${row.system_b}`, [
    ["n", row.n], ["difference", scoreText(name, row.difference)], ["interval", intervalText(name, row.low, row.high)],
    ["wins/ties/losses", `${row.wins}/${row.ties}/${row.losses}`], ["p", row.p_text]])));
}

function showRanking(name, rows) {
  const valuesOf = (row) => data.values[name][row.system];
  const all = rows.flatMap((row) => [...valuesOf(row), row.mean, row.low, row.high]);
  const axis = valueAxis(all, SCORES[name]);
  byId("ranking").tBodies[0].replaceChildren(...rows.map((row) => {
    const line = tableLine(row.system, [["n", row.n], ["mean", scoreText(name, row.mean) + (row.note.includes("at the ceiling") ? " †" : "")],
      ["interval", intervalText(name, row.low, row.high)]]);
    line.append(make("td", row.group, { "data-label": "group" }));
    const chart = make("td", undefined, { class: "plot" });
    if (isNumber(row.mean)) chart.append(boxRow(valuesOf(row), row, axis));
    line.append(chart);
    return line;
  }));
  byId("ranking-axis-name").textContent = SCORES[name].label;
  byId("ranking-axis").replaceChildren(boxAxis(axis));
}

// A table of means: a row per system, a column per source or channel.
function showMeans(id, title, name, systems, columns, meanOf) {
  byId(`${id}-block`).hidden = !columns.length;
  const head = make("tr");
  head.append(make("th", title, { scope: "col" }), ...columns.map((column) => make("th", column, { scope: "col", class: "n" })));
  byId(id).tHead.replaceChildren(head);
  byId(id).tBodies[0].replaceChildren(...systems.map((system) =>
    tableLine(system, columns.map((column) => [column, scoreText(name, meanOf(system, column))]))));
}

function showControls() {
  byId("controls-block").hidden = !data.controls.length;
  byId("with-controls").hidden = !data.controls.length;
  const head = make("tr");
  head.append(make("th", "name", { scope: "col" }), ...data.scores.map((score) => make("th", score.label, { scope: "col", class: "n" })));
  byId("controls").tHead.replaceChildren(head);
  byId("controls").tBodies[0].replaceChildren(...data.controls.map((row) =>
    tableLine(row.system, data.scores.map(({ name, label }) => [label, scoreText(name, row[name])]))));
}

// ------------------------------------------------------------------ choosing what to play

const titleOf = (row) => `${row.mixture} · ${row.system} · ${row.source}`;
const tracksOf = (row) => Object.fromEntries(Object.entries(row.tracks).map(([role, k]) => [role, data.tracks[k]]));

function remarkOf(row) {
  const missing = ["reference", "estimate"].filter((role) => row.tracks[role] === undefined);
  return [row.note.charAt(0).toUpperCase() + row.note.slice(1), missing.length ? `No sound: the file of the ${missing.join(" and the ")} was not found.` : "",
    row.curve || row.note ? "" : "No curve: no frame is scored."].filter(Boolean).join(" ");
}

// The scores of the channels of a row, where each was scored.
function showRowChannels(row) {
  byId("row-channels-block").hidden = !row.channels.length;
  const head = make("tr");
  head.append(make("th", "channel", { scope: "col" }), ...data.scores.map(({ label }) => make("th", label, { scope: "col", class: "n" })));
  byId("row-channels").tHead.replaceChildren(head);
  byId("row-channels").tBodies[0].replaceChildren(...row.channels.map((channel) =>
    tableLine(channel.channel, data.scores.map(({ name, label }) => [label, scoreText(name, channel[name])]))));
}

function openRow(row) {
  loadSounds(row, tracksOf(row), 0);
  const scores = data.scores.map(({ name, label }) => `${label} ${scoreText(name, row[name])}`).join(", ");
  showRowChannels(row);
  byId("what").textContent = `${titleOf(row)}: ${scores}`;
  rich(byId("remark"), remarkOf(row));
  for (const line of document.querySelectorAll("tr[data-row]"))
    line.classList.toggle("chosen", Number(line.dataset.row) === row.index);
  player.end = drawPanels(row, tracksOf(row));
  placeAt("marked", null);
  follow();
}

function playSegment(segment) {
  const row = segment.of;
  openRow(row);
  const whole = ["reference", "estimate"].every((role) => (tracksOf(row)[role] || {}).embedded);
  if (!whole && segment.clips) {
    const clips = Object.entries(segment.clips).map(([role, src]) => [role, { ...tracksOf(row)[role], src, embedded: true }]);
    loadSounds(row, Object.fromEntries(clips), Math.max(0, segment.start - 0.5));
  }
  player.role = player.sounds.estimate ? "estimate" : player.role;
  player.until = segment.end + 0.5;
  placeAt("marked", segment.start, segment.end);
  byId("what").textContent = `${titleOf(row)}, ${minutesText(segment.start)} to ${minutesText(segment.end)}: ` +
    `${segment.title} ${scoreText(segment.measure, segment.score)}`;
  seek(Math.max(player.offset, segment.start - 0.1)).then(() => play());
  byId("listen").scrollIntoView({ block: "start" });
}

// ------------------------------------------------------------------ tables that sort

// `columns`: [key to sort by or null, label, class, content of a row's cell].
function sortable(table, columns, rows, options) {
  const view = { by: options.by, down: false, kept: rows, most: 200 };
  const head = make("tr");
  for (const [name, label, kind] of columns) {
    const cell = make("th", undefined, { scope: "col", class: kind });
    if (name) {
      const button = make("button", label, { type: "button" });
      button.addEventListener("click", () => { view.down = view.by === name && !view.down; view.by = name; draw(); });
      cell.append(button);
      cell.dataset.name = name;
    } else cell.append(make("span", label));
    head.append(cell);
  }
  table.tHead.replaceChildren(head);
  function fill(row) {
    const line = make("tr", undefined, { [options.mark]: row.index });
    if (player.row === row) line.classList.add("chosen");
    for (const [name, label, kind, content] of columns) {
      const cell = make("td", undefined, { class: kind, ...(name ? { "data-label": label, "data-name": name } : {}) });
      cell.append(...[content(row)].flat());
      line.append(cell);
    }
    return line;
  }
  function draw() {
    for (const cell of head.children)
      cell.setAttribute("aria-sort", cell.dataset.name !== view.by ? "none" : view.down ? "descending" : "ascending");
    const order = [...view.kept].sort((a, b) => compareCells(a[view.by], b[view.by], view.down));
    table.tBodies[0].replaceChildren(...order.slice(0, view.most).map(fill));
    if (options.drawn) options.drawn(view);
  }
  draw();
  return { view, draw };
}

// Undefined values come last in both directions.
function compareCells(a, b, down) {
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  const order = typeof a === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  return down ? -order : order;
}

function actionButton(text, label, act) {
  const button = make("button", text, { type: "button", "aria-label": label });
  button.addEventListener("click", act);
  return button;
}

const NAMES = ["mixture", "system", "source"].map((name) => [name, name, "", (row) => row[name]]);
const SHORT_REMARK = 48;

// A long remark opens on a click.
function remarkCell(row) {
  const text = remarkOf(row);
  if (text.length <= SHORT_REMARK) return rich(make("span", undefined, { class: "quiet" }), text);
  const details = make("details");
  details.append(make("summary", `${text.slice(0, SHORT_REMARK)}…`), rich(make("span", undefined, { class: "quiet" }), text));
  return details;
}

function showEstimates() {
  data.rows.forEach((row, index) => { row.index = index; });
  const kept = () => {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const controls = byId("controls-too").checked || data.rows.every((row) => row.control);
    return data.rows.filter((row) => (controls || !row.control) && words.every((word) => titleOf(row).toLowerCase().includes(word)));
  };
  const openButton = (row) => actionButton("open", `Open ${titleOf(row)}`, () => {
    openRow(row);
    byId("listen").scrollIntoView({ block: "start" });
  });
  const table = sortable(byId("table"), [
    [null, "listen", "", openButton],
    ...NAMES,
    ...data.scores.map(({ name, label }) => [name, label, "n", (row) => scoreText(name, row[name])]),
    ["frames", "frames", "n", (row) => row.frames],
    [null, "remarks", "", remarkCell],
  ], kept(), { by: data.scores.length ? data.scores[0].name : "mixture", mark: "data-row", drawn: (view) => {
    byId("count").textContent = `${Math.min(view.most, view.kept.length)} of ${view.kept.length} shown`;
    byId("more").hidden = view.most >= view.kept.length;
  } });
  byId("more").addEventListener("click", () => { table.view.most += 500; table.draw(); });
  const filter = () => { table.view.kept = kept(); table.draw(); };
  byId("filter").addEventListener("input", filter);
  byId("controls-too").addEventListener("change", filter);
}

// ------------------------------------------------------------------ worst moments, a list per score

const FEW_MOMENTS = 5;

function worstList(name, segments) {
  const block = make("div"), heading = make("h3", SCORES[name].label), table = make("table", undefined, { class: "cards", "data-score": name });
  table.append(make("thead"), make("tbody"));
  const list = sortable(table, [
    [null, "play", "", (segment) => actionButton("▶", `Play ${titleOf(segment.of)} from ${minutesText(segment.start)}`, () => playSegment(segment))],
    ["score", "score", "n", (segment) => scoreText(name, segment.score)],
    ["start", "time", "n", (segment) => `${minutesText(segment.start)} – ${minutesText(segment.end)}`],
    ...NAMES,
    ...(segments.some((segment) => segment.leaking) ? [["leaking", "leaks in", "", (segment) => segment.leaking]] : []),
  ], segments, { by: "index", mark: "data-segment" });
  list.view.most = FEW_MOMENTS;
  list.draw();
  if (segments.length > FEW_MOMENTS) {
    const button = actionButton(`Show all ${segments.length}`, `Show all worst moments of ${SCORES[name].label}`, () => {
      list.view.most = segments.length;
      list.draw();
      button.remove();
    });
    heading.append(button);
  }
  const scroll = make("div", undefined, { class: "scroll" });
  scroll.append(table);
  block.append(heading, scroll);
  return block;
}

function showWorst() {
  const segments = data.segments.map((segment, index) => {
    const of = data.rows[segment.row], leaking = segment.title.split(" of ").slice(1).join(" of ");
    return { ...segment, of, index, leaking, mixture: of.mixture, system: of.system, source: of.source };
  });
  byId("worst-note").textContent = !segments.length ? "None are listed." : data.sampled ? "Frames were sampled, so these are single frames."
    : "Segments of at least 0.3 s in which a score is worst, over the whole set. Play starts shortly before.";
  const lists = data.scores.map(({ name }) => [name, segments.filter((segment) => segment.measure === name)]);
  byId("worst").replaceChildren(...lists.filter(([, list]) => list.length).map(([name, list]) => worstList(name, list)));
  return segments;
}

// ------------------------------------------------------------------ begin

prepareControls();
writeTexts();
for (const { name, label } of data.scores) {
  const button = make("button", label, { type: "button", "data-score": name });
  button.addEventListener("click", () => showScore(name));
  byId("scores").append(button);
}
if (data.scores.length) showScore(data.scores[0].name);
showControls();
showEstimates();
const worstSegments = showWorst();
const openedRow = worstSegments.length ? worstSegments[0].of : data.rows.find((row) => row.curve) || data.rows[0];
if (openedRow) openRow(openedRow); else { byId("what").textContent = "Nothing was scored."; showState(); }
