"use strict";
// The page's behaviour. Texts from outside enter through textContent and plotly's escaped labels
// alone, so a file name is never markup.
(() => {
  const data = JSON.parse(document.getElementById("content").textContent);
  const by = (id) => document.getElementById(id);
  const make = (tag, text, attributes = {}) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const number = (value) => value === null || value === undefined ? "–"
    : Math.abs(value) >= 1e5 ? value.toExponential(1).replace("e+", "e")
    : Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(3);
  const minutes = (time) => `${Math.floor(time / 60)}:${(time % 60).toFixed(1).padStart(4, "0")}`;
  const COLOURS = ["#0b4f7d", "#b35900"], GRID = "#e3e8ee", QUIET = { displayModeBar: false, responsive: true };
  const FONT = { family: "system-ui, Segoe UI, DejaVu Sans, sans-serif", size: 13, color: "#1b2430" };

  // log PM has no lower end: it is drawn over the logarithm of its distance to 1.
  const squeezed = (value) => value === null ? null : -Math.log10(1 - value);
  const POWERS = [1, 3, 6, 9, 12];
  const LOG = { tickvals: [0, ...POWERS.map((k) => squeezed(-(10 ** k)))], ticktext: ["0", ...POWERS.map((k) => `−10<sup>${k}</sup>`)] };
  const drawn = (measure, values) => measure === "log_pm" ? values.map(squeezed) : values;

  // ------------------------------------------------------------------ texts

  by("title").textContent = data.title;
  by("answer").textContent = data.answer;
  by("scored").textContent = `${data.written} · ${data.scored}`;
  by("embedded").textContent = `${data.embedded}.`;
  by("notes").replaceChildren(...data.notes.map((line) => make("li", line)));
  by("statement").textContent = data.statement;
  by("missing").hidden = !data.missing.length;
  by("missing").firstElementChild.textContent = `Audio that was not found. ${data.advice}.`;
  by("missing").lastElementChild.replaceChildren(...data.missing.map((line) => make("li", line)));

  // ------------------------------------------------------------------ ranking and box plots

  function showMeasure(measure) {
    for (const button of by("measures").children)
      button.setAttribute("aria-pressed", String(button.dataset.measure === measure));
    by("meaning").textContent = `${data.meanings[measure]}.`;
    const rows = data.ranking.filter((row) => row.measure === measure);
    const interval = (row) => row.low === null ? "–" : `${number(row.low)} … ${number(row.high)}`;
    const show = (id, name, numbers, given) => by(id).tBodies[0].replaceChildren(...given.map((row) => {
      const line = make("tr");
      line.append(make("th", name(row), { scope: "row" }), ...numbers(row).map((text) => make("td", text, { class: "n" })));
      if (row.group !== undefined) line.append(make("td", row.group));
      return line;
    }));
    show("ranking", (row) => row.system, (row) => [row.n, number(row.mean), interval(row)], rows);
    const pairs = data.pairs.filter((row) => row.measure === measure);
    show("pairs", (row) => `${row.system_a} − ${row.system_b}`, (row) => [row.n, number(row.difference), interval(row),
      `${row.wins}/${row.ties}/${row.losses}`, String(Number(row.p_holm.toPrecision(2)))], pairs);
    by("pairs").hidden = !pairs.length;
    const defined = rows.filter((row) => row.n);
    const names = defined.map((row) => plain(row.system));
    const at = (key) => drawn(measure, defined.map((row) => row[key] === null ? row.mean : row[key])), means = at("mean");
    const off = (key, sign) => at(key).map((value, k) => sign * (value - means[k]));
    const traces = defined.map((row) => ({
      type: "box", y: drawn(measure, data.items.filter((item) => item.system === row.system && item[measure] !== null).map((item) => item[measure])), name: plain(row.system), boxpoints: "all", hoverinfo: "x", jitter: 0.4, pointpos: 0,
      marker: { size: 4, color: "#8a94a0" }, line: { color: "#8a94a0", width: 1.5 }, fillcolor: "#eef1f4",
    }));
    traces.push({
      type: "scatter", mode: "markers", x: names, y: means, customdata: defined.map((row) => number(row.mean)),
      hovertemplate: "%{x}: %{customdata}<extra></extra>",
      marker: { symbol: "diamond", size: 9, color: COLOURS[0] },
      error_y: { type: "data", symmetric: false, array: off("high", 1), arrayminus: off("low", -1), color: COLOURS[0], thickness: 2, width: 5 },
    });
    Plotly.react("boxes", traces, {
      margin: { l: 55, r: 10, t: 26, b: 40 }, font: FONT, showlegend: false,
      yaxis: { title: { text: data.measures[measure] }, zeroline: false, gridcolor: GRID, ...(measure === "log_pm" ? LOG : {}) },
      xaxis: { automargin: true },
      annotations: defined.map((row, k) => ({ x: names[k], y: 1, yref: "paper", yanchor: "bottom", showarrow: false,
        text: `<b>${plain(row.group)}</b>` })),
    }, QUIET);
  }
  for (const [name, label] of Object.entries(data.measures)) {
    const button = make("button", label, { type: "button", "data-measure": name });
    button.addEventListener("click", () => showMeasure(name));
    by("measures").append(button);
  }

  // ------------------------------------------------------------------ the player

  // What is loaded: a row, the sounds of its roles, and the second at which those sounds begin.
  const player = { row: null, offset: 0, role: "estimate", sounds: {}, until: null };
  const ROLES = { reference: "Reference", estimate: "Estimate", mixture: "Mixture" };
  const khz = (track) => track.rate / 2000;
  const chosen = () => player.sounds[player.role];
  const now = () => chosen() ? player.offset + chosen().currentTime : 0;
  for (const [role, label] of Object.entries(ROLES)) {
    const button = make("button", label, { type: "button", "data-role": role });
    button.addEventListener("click", () => listenTo(role));
    by("roles").append(button);
  }

  // An element cannot play louder than its file: the loudest gain is 1, the others are below it.
  function levels() {
    const all = Object.values(player.sounds);
    const most = Math.max(...all.map((sound) => Number(sound.dataset.gain)), 1e-9);
    for (const sound of all)
      sound.volume = by("level").checked ? Math.min(1, Number(sound.dataset.gain) / most) : 1;
  }

  function load(row, sounds, offset) {
    for (const sound of Object.values(player.sounds)) { sound.pause(); sound.removeAttribute("src"); }
    by("players").replaceChildren();
    player.row = row; player.offset = offset; player.sounds = {}; player.until = null;
    for (const [role, given] of Object.entries(sounds)) {
      const sound = make("audio", undefined, { preload: "auto", "data-role": role, "data-gain": given.gain });
      sound.src = given.src;
      sound.addEventListener("ended", state);
      sound.addEventListener("error", () => {
        if (!sound.getAttribute("src")) return;
        sound.dataset.failed = "yes";
        by("what").textContent = `${ROLES[role]}: ` + (given.embedded ? "this browser cannot play the embedded sound."
          : sound.error.code === MediaError.MEDIA_ERR_SRC_NOT_SUPPORTED
            ? `${given.name} is not at ${decodeURI(given.src)}, where this page links it, or this browser cannot play it.`
            : `this browser cannot play ${given.name} from there.`);
        state();
      });
      player.sounds[role] = sound;
      by("players").append(sound);
    }
    if (!player.sounds[player.role]) player.role = Object.keys(player.sounds)[0] || "estimate";
    levels(); state();
  }

  function state() {
    const sound = chosen(), playing = sound && !sound.paused && !sound.ended;
    by("play").textContent = playing ? "❚❚ Pause" : "▶ Play";
    by("play").setAttribute("aria-label", playing ? "Pause" : "Play");
    by("play").disabled = !sound;
    for (const button of by("roles").children) {
      button.setAttribute("aria-pressed", String(button.dataset.role === player.role));
      button.disabled = !player.sounds[button.dataset.role];
    }
  }

  // After an error nothing plays until the sound is loaded again.
  function revive(sound) {
    if (sound.dataset.failed) { delete sound.dataset.failed; sound.load(); }
  }

  function play(on = true) {
    const sound = chosen();
    if (!sound) return;
    revive(sound);
    for (const other of Object.values(player.sounds)) if (other !== sound) other.pause();
    (on ? sound.play() : Promise.resolve(sound.pause())).then(state, state);
    if (on) requestAnimationFrame(follow);
  }

  // Resolves when the sound stands at `time`; before its length is known it cannot be moved.
  function seek(time) {
    const sound = chosen();
    if (!sound) return Promise.resolve();
    revive(sound);
    const at = Math.max(0, time - player.offset);
    return new Promise((done) => {
      const set = () => { sound.currentTime = Math.min(at, sound.duration || at); follow(); done(); };
      if (sound.readyState >= 1) set(); else sound.addEventListener("loadedmetadata", set, { once: true });
    });
  }

  function listenTo(role) {
    const target = player.sounds[role], before = chosen();
    if (!target) return;
    const playing = before && !before.paused && !before.ended, time = now();
    if (before) before.pause();
    player.role = role;
    seek(time).then(() => { if (playing) play(); });
    state();
  }

  by("play").addEventListener("click", () => { player.until = null; play(!chosen() || chosen().paused || chosen().ended); });
  by("level").addEventListener("change", levels);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input[type=search]")) return;
    const key = event.key.toLowerCase();
    if (key === " " && event.target.matches("button, input, summary")) return;
    const roles = { r: "reference", e: "estimate", m: "mixture" };
    if (roles[key]) listenTo(roles[key]);
    else if (key === " ") by("play").click();
    else if (key === "arrowleft") seek(now() - 0.5);
    else if (key === "arrowright") seek(now() + 0.5);
    else return;
    event.preventDefault();
  });

  // ------------------------------------------------------------------ the chart and its playhead

  function place(time) {
    const layout = by("curves")._fullLayout, head = by("head");
    if (!layout || !layout.xaxis) { head.style.display = "none"; return; }
    const axis = layout.xaxis, size = layout._size, x = axis.l2p(time);
    head.style.display = x < 0 || x > axis._length ? "none" : "block";
    head.style.left = `${size.l + x - 1}px`;
    head.style.top = `${size.t}px`;
    head.style.height = `${size.h}px`;
  }

  function follow() {
    const sound = chosen(), time = now();
    place(time);
    by("clock").textContent = `${time.toFixed(2)} s`;
    if (!sound) return;
    if (player.until !== null && time >= player.until) { player.until = null; play(false); return; }
    if (!sound.paused && !sound.ended) requestAnimationFrame(follow); else state();
  }

  by("stage").addEventListener("click", (event) => {
    const layout = by("curves")._fullLayout;
    if (!layout || !layout.xaxis) return;
    const x = event.clientX - by("curves").getBoundingClientRect().left - layout._size.l;
    if (x >= 0 && x <= layout.xaxis._length) { player.until = null; seek(layout.xaxis.p2l(x)); }
  });

  const PANELS = [{ curves: ["clearance", "fidelity"], range: true }, { curves: ["ps", "pm"], range: true }, { curves: ["log_pm"] }, { curves: ["bleed_db"] }];

  // Panels from the top: spectrograms that are embedded, then the scores over time.
  function chart(row) {
    const sounds = Object.entries(row.tracks).map(([role, k]) => [role, data.tracks[k]]);
    const pictures = sounds.filter(([, track]) => track.picture), curve = row.curve;
    const panels = curve ? PANELS.filter((panel) => panel.curves.some((name) => curve[name])) : [];
    if (!pictures.length && !panels.length) { Plotly.purge("curves"); by("head").style.display = "none"; return Promise.resolve(); }
    const units = [...pictures.map(() => 90), ...panels.map((panel) => panel.range ? 110 : 80)];
    const gap = 22, high = units.reduce((sum, unit) => sum + unit + gap, 0);
    const times = curve ? Object.values(curve).find(Array.isArray).map((_, k) => curve.first + k * curve.step) : [];
    const end = Math.max(...sounds.map(([, track]) => track.seconds), times.length ? times[times.length - 1] : 0);
    const layout = {
      margin: { l: 62, r: 12, t: 8, b: 42 }, font: FONT, showlegend: false, hovermode: "x", dragmode: false,
      height: high + 50, images: [], annotations: [], shapes: [],
      xaxis: { range: [0, end || 1], title: { text: "time (s)" }, anchor: "free", position: 0, showgrid: false, zeroline: false },
    };
    let top = 0;
    const domain = (k) => { const from = 1 - top / high; top += units[k] + gap; return [from - units[k] / high, from]; };
    const traces = [];
    pictures.forEach(([role, track], k) => {
      const axis = k ? `y${k + 1}` : "y";
      layout[k ? `yaxis${k + 1}` : "yaxis"] = { domain: domain(k), range: [0, khz(track)], title: { text: "kHz" }, nticks: 4,
        showgrid: false, zeroline: false };
      layout.images.push({ source: track.picture, xref: "x", yref: axis, x: 0, y: khz(track), sizex: track.seconds,
        sizey: khz(track), sizing: "stretch", layer: "below" });
      layout.annotations.push({ text: `<b>${ROLES[role]}</b>`, xref: "paper", yref: axis, x: 0.005, y: khz(track), xanchor: "left",
        yanchor: "top", showarrow: false, bgcolor: "rgba(255,255,255,0.85)", font: { size: 12 } });
      traces.push({ x: [0, track.seconds], y: [0, khz(track)], yaxis: axis, mode: "markers", marker: { opacity: 0 }, hoverinfo: "skip" });
    });
    panels.forEach((panel, j) => {
      const k = pictures.length + j, axis = k ? `y${k + 1}` : "y", shown = panel.curves.filter((name) => curve[name]).map((name) => [name, data.measures[name]]);
      const title = shown.map(([, label], n) => `<span style="color:${COLOURS[n]}">${label}</span>`).join("<br>");
      layout[k ? `yaxis${k + 1}` : "yaxis"] = { domain: domain(k), title: { text: title, font: { size: 11 } }, gridcolor: GRID,
        zeroline: false, nticks: 4, ...(panel.range ? { range: [-0.03, 1.03] } : { autorange: true }), ...(curve.log_pm && panel.curves.includes("log_pm") ? LOG : {}) };
      shown.forEach(([name, label], n) => traces.push({
        x: times, y: drawn(name, curve[name]), customdata: curve[name], name: label, yaxis: axis, mode: data.sampled || name === "bleed_db" ? "markers" : "lines",
        connectgaps: false, line: { color: COLOURS[n], width: 1.6 }, marker: { size: 4, color: COLOURS[n] },
        hovertemplate: `%{x:.2f} s: %{customdata:.3g}<extra>${label}</extra>`,
      }));
    });
    by("curves").style.height = `${layout.height}px`;
    return Plotly.react("curves", traces, layout, QUIET).then(() => place(now()));
  }

  function marked(start, end) {
    if (!by("curves")._fullLayout) return;
    Plotly.relayout("curves", { shapes: start === null ? [] : [{ type: "rect", xref: "x", yref: "paper", x0: start, x1: end,
      y0: 0, y1: 1, fillcolor: "#c2185b", opacity: 0.13, line: { width: 0 } }] });
  }

  // ------------------------------------------------------------------ choosing what to play

  const title = (row) => `${row.mixture} · ${row.system} · ${row.source}`;
  const soundsOf = (row) => Object.fromEntries(Object.entries(row.tracks).map(([role, k]) => [role, data.tracks[k]]));

  const clipsOf = (row, segment) => Object.fromEntries(Object.entries(segment.clips).map(([role, src]) =>
    [role, { src, gain: soundsOf(row)[role].gain, embedded: true }]));

  function lacks(row) {
    const gone = ["reference", "estimate"].filter((role) => row.tracks[role] === undefined);
    return [row.note.charAt(0).toUpperCase() + row.note.slice(1), gone.length ? `No sound: the file of the ${gone.join(" and the ")} was not found.` : "",
      row.curve || row.note ? "" : "No curve: no frame is scored."].filter(Boolean).join(" ");
  }

  function choose(row) {
    load(row, soundsOf(row), 0);
    const scores = Object.entries(data.measures).map(([name, label]) => `${label} ${number(row[name])}`).join(", ");
    by("what").textContent = `${title(row)}: ${scores}. ${lacks(row)}`;
    for (const line of document.querySelectorAll("tr[data-row]"))
      line.classList.toggle("chosen", Number(line.dataset.row) === row.index);
    return chart(row).then(() => { marked(null); follow(); });
  }

  function hear(segment) {
    const row = segment.of;
    choose(row).then(() => {
      const whole = ["reference", "estimate"].every((role) => (soundsOf(row)[role] || {}).embedded);
      if (!whole && segment.clips) load(row, clipsOf(row, segment), Math.max(0, segment.start - 0.5));
      player.role = player.sounds.estimate ? "estimate" : player.role;
      player.until = segment.end + 0.5;
      marked(segment.start, segment.end);
      by("what").textContent = `${title(row)}, ${minutes(segment.start)} to ${minutes(segment.end)}: ` +
        `${segment.title} ${segment.value}. ${lacks(row)}`;
      seek(Math.max(player.offset, segment.start - 0.1)).then(() => play());
      by("listen").scrollIntoView({ block: "start" });
    });
  }

  // ------------------------------------------------------------------ tables

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
      const order = [...view.kept].sort((a, b) => {
        const x = a[view.by], y = b[view.by];
        if (x === null || x === undefined) return 1;
        if (y === null || y === undefined) return -1;
        const way = typeof x === "number" ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
        return view.down ? -way : way;
      });
      table.tBodies[0].replaceChildren(...order.slice(0, view.most).map(fill));
      if (options.drawn) options.drawn(view);
    }
    draw();
    return { view, draw };
  }

  function button(text, label, act) {
    const made = make("button", text, { type: "button", "aria-label": label });
    made.addEventListener("click", act);
    return made;
  }

  const names = ["mixture", "system", "source"].map((name) => [name, name, "", (row) => row[name]]);
  data.rows.forEach((row, index) => { row.index = index; });
  const all = sortable(by("table"), [
    [null, "listen", "", (row) => button("open", `Open ${title(row)}`, () => { choose(row); by("listen").scrollIntoView({ block: "start" }); })],
    ...names,
    ...Object.entries(data.measures).map(([name, label]) => [name, label, "n", (row) => number(row[name])]),
    ["frames", "frames", "n", (row) => row.frames],
    [null, "", "", (row) => make("span", lacks(row), { class: "quiet" })],
  ], data.rows, { by: Object.keys(data.measures)[0], mark: "data-row", drawn: (view) => {
    by("count").textContent = `${Math.min(view.most, view.kept.length)} of ${view.kept.length} shown`;
    by("more").hidden = view.most >= view.kept.length;
  } });
  by("more").addEventListener("click", () => { all.view.most += 500; all.draw(); });
  by("filter").addEventListener("input", () => {
    const words = by("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    all.view.kept = data.rows.filter((row) => words.every((word) => title(row).toLowerCase().includes(word)));
    all.draw();
  });

  const segments = data.segments.map((segment, index) => {
    const of = data.rows[segment.row];
    return { ...segment, of, index, mixture: of.mixture, system: of.system, source: of.source };
  });
  by("worst-note").textContent = !segments.length ? "None are listed." : data.sampled ? "Frames were sampled, so these are single frames."
    : "Stretches of at least 0.3 s in which a measure is worst, over the whole set. Play starts shortly before.";
  sortable(by("worst"), [
    [null, "play", "", (row) => button("▶", `Play ${title(row)} from ${minutes(row.start)}`, () => hear(row))],
    ["title", "measure", "", (row) => row.title],
    [null, "score", "n", (row) => row.value],
    ["start", "from", "n", (row) => minutes(row.start)],
    ["end", "to", "n", (row) => minutes(row.end)],
    ...names,
  ], segments, { by: "index", mark: "data-segment" });

  if (Object.keys(data.measures).length) showMeasure(Object.keys(data.measures)[0]);
  const first = segments.length ? segments[0].of : data.rows.find((row) => row.curve) || data.rows[0];
  if (first) choose(first); else { by("what").textContent = "Nothing was scored."; state(); }
  window.addEventListener("resize", () => setTimeout(() => place(now()), 100));
})();
