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
    : Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(3);
  const PS = "#0b4f7d", PM = "#b35900", RANK = "#4d7c0f", QUIET = { displayModeBar: false, responsive: true };
  const FONT = { family: "system-ui, Segoe UI, DejaVu Sans, sans-serif", size: 13, color: "#1b2430" };

  // ------------------------------------------------------------------ ranking and box plots

  function showMeasure(measure) {
    for (const button of by("measures").children)
      button.setAttribute("aria-pressed", String(button.dataset.measure === measure));
    const rows = data.ranking.filter((row) => row.measure === measure);
    const body = by("ranking").tBodies[0];
    body.replaceChildren(...rows.map((row) => {
      const line = make("tr");
      const interval = row.low === null ? "–" : `${number(row.low)} … ${number(row.high)}`;
      line.append(make("th", row.system, { scope: "row" }));
      for (const text of [row.n, number(row.mean), interval]) line.append(make("td", text, { class: "n" }));
      line.append(make("td", row.group));
      return line;
    }));
    const boxes = data.boxes[measure];
    const traces = rows.map((row) => ({
      type: "box", y: boxes[row.system], name: plain(row.system), boxpoints: "all", jitter: 0.4, pointpos: 0,
      marker: { size: 4, color: PS, opacity: 0.6 }, line: { color: PS, width: 1.5 }, fillcolor: "#dbe7f0",
      showlegend: false,
    }));
    Plotly.react("boxes", traces, {
      margin: { l: 55, r: 10, t: 10, b: 40 }, font: FONT,
      yaxis: { title: { text: data.measures[measure] }, zeroline: false, gridcolor: "#e3e8ee" },
      xaxis: { automargin: true },
    }, QUIET);
  }
  for (const [name, label] of Object.entries(data.measures)) {
    const button = make("button", label, { type: "button", "data-measure": name });
    button.addEventListener("click", () => showMeasure(name));
    by("measures").append(button);
  }
  by("notes").replaceChildren(...data.notes.map((line) => make("li", line)));

  // ------------------------------------------------------------------ the player

  // What is loaded: a row, the sounds of its roles, and the second at which those sounds begin.
  const player = { row: null, offset: 0, role: "estimate", sounds: {}, until: null };
  const ROLES = { reference: "Reference", estimate: "Estimate", mixture: "Mixture" };
  const heard = () => player.sounds[player.role];
  const now = () => heard() ? player.offset + heard().currentTime : 0;

  for (const [role, label] of Object.entries(ROLES)) {
    const button = make("button", label, { type: "button", "data-role": role, "aria-pressed": "false" });
    button.addEventListener("click", () => listenTo(role));
    by("roles").append(button);
  }

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
        by("what").textContent = `${ROLES[role]} cannot be played: ${given.name || "its file is not where it was"}.`;
      });
      player.sounds[role] = sound;
      by("players").append(sound);
    }
    if (!player.sounds[player.role]) player.role = Object.keys(player.sounds)[0] || "estimate";
    levels(); state();
  }

  function state() {
    const sound = heard(), playing = sound && !sound.paused && !sound.ended;
    by("play").textContent = playing ? "❚❚ Pause" : "▶ Play";
    by("play").setAttribute("aria-label", playing ? "Pause" : "Play");
    by("play").disabled = !sound;
    for (const button of by("roles").children) {
      button.setAttribute("aria-pressed", String(button.dataset.role === player.role));
      button.disabled = !player.sounds[button.dataset.role];
    }
  }

  function play(on = true) {
    const sound = heard();
    if (!sound) return;
    for (const other of Object.values(player.sounds)) if (other !== sound) other.pause();
    (on ? sound.play() : Promise.resolve(sound.pause())).then(state, state);
    if (on) requestAnimationFrame(follow);
  }

  // Resolves when the sound stands at `time`; before its length is known it cannot be moved.
  function seek(time) {
    const sound = heard();
    if (!sound) return Promise.resolve();
    const at = Math.max(0, time - player.offset);
    return new Promise((done) => {
      const set = () => { sound.currentTime = Math.min(at, sound.duration || at); follow(); done(); };
      if (sound.readyState >= 1) set(); else sound.addEventListener("loadedmetadata", set, { once: true });
    });
  }

  function listenTo(role) {
    const target = player.sounds[role], before = heard();
    if (!target) return;
    const playing = before && !before.paused && !before.ended, time = now();
    if (before) before.pause();
    player.role = role;
    seek(time).then(() => { if (playing) play(); });
    state();
  }

  by("play").addEventListener("click", () => { player.until = null; play(!heard() || heard().paused || heard().ended); });
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
    const plot = by("curves"), head = by("head"), layout = plot._fullLayout;
    if (!layout || !layout.xaxis) { head.style.display = "none"; return; }
    const axis = layout.xaxis, size = layout._size, x = axis.l2p(time);
    head.style.display = x < 0 || x > axis._length ? "none" : "block";
    head.style.left = `${size.l + x - 1}px`;
    head.style.top = `${size.t}px`;
    head.style.height = `${size.h}px`;
    head.dataset.time = time.toFixed(3);
  }

  function follow() {
    const sound = heard(), time = now();
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

  function chart(detail, span) {
    const times = detail.ps.map((_, k) => detail.first + k * detail.step);
    const lone = data.sampled ? "markers" : "lines";
    const line = (values, name, colour, axis) => ({
      x: times, y: values, name, yaxis: axis, mode: lone, connectgaps: false, line: { color: colour, width: 1.6 },
      marker: { size: 4, color: colour }, hovertemplate: `%{x:.2f} s: %{y:.3g}<extra>${name}</extra>`,
    });
    const shown = Object.entries(detail.tracks).filter(([, k]) => k !== null).map(([role, k]) => [role, data.tracks[k]]);
    const end = Math.max(...shown.map(([, track]) => track.seconds), times.length ? times[times.length - 1] : 1);
    const pictures = shown.filter(([, track]) => track.picture);
    const ranked = detail.pm_rank !== undefined;
    // Panels from the bottom: log PM, PM's rank where there is one, PS; the spectrograms above.
    const panels = ranked ? [[0, 0.14], [0.18, 0.32], [0.36, 0.5]] : [[0, 0.22], null, [0.26, 0.46]];
    const top0 = panels[2][1] + 0.04, high = (1 - top0) / Math.max(1, pictures.length), images = [], notes = [];
    const layout = {
      margin: { l: 62, r: 12, t: 8, b: 42 }, font: FONT, showlegend: false, hovermode: "x", dragmode: false,
      images, annotations: notes,
      xaxis: { range: span || [0, end], title: { text: "time (s)" }, anchor: "y2", gridcolor: "#e3e8ee", zeroline: false },
      yaxis: { domain: panels[2], range: [-0.03, 1.03], title: { text: "PS" }, gridcolor: "#e3e8ee", zeroline: false },
      yaxis2: { domain: panels[0], title: { text: "log PM" }, gridcolor: "#e3e8ee", zeroline: false, autorange: true },
      shapes: [],
    };
    pictures.forEach(([role, track], k) => {
      const top = 1 - k * high, bottom = top - high + 0.012, axis = `y${k + 3}`;
      layout[`yaxis${k + 3}`] = { domain: [bottom, top], range: [0, track.khz], title: { text: "kHz" }, nticks: 4, showgrid: false };
      images.push({ source: track.picture, xref: "x", yref: axis, x: 0, y: track.khz, sizex: track.seconds, sizey: track.khz,
        sizing: "stretch", layer: "below" });
      notes.push({ text: `<b>${ROLES[role]}</b>`, xref: "paper", yref: axis, x: 0.005, y: track.khz, xanchor: "left",
        yanchor: "top", showarrow: false, bgcolor: "rgba(255,255,255,0.85)", font: { size: 12 } });
    });
    const traces = [line(detail.ps, "PS", PS, "y"), line(detail.log_pm, "log PM", PM, "y2")];
    if (ranked) {
      const axis = pictures.length + 3;
      layout[`yaxis${axis}`] = { domain: panels[1], range: [-0.03, 1.03], title: { text: "PM rank" }, gridcolor: "#e3e8ee", zeroline: false };
      traces.push(line(detail.pm_rank, "PM rank", RANK, `y${axis}`));
    }
    pictures.forEach(([, track], k) => traces.push({ x: [0, track.seconds], y: [0, track.khz], yaxis: `y${k + 3}`,
      mode: "markers", marker: { opacity: 0 }, hoverinfo: "skip" }));
    return Plotly.react("curves", traces, layout, QUIET).then(() => place(now()));
  }

  function marked(start, end) {
    Plotly.relayout("curves", { shapes: start === null ? [] : [{ type: "rect", xref: "x", yref: "paper", x0: start, x1: end,
      y0: 0, y1: 1, fillcolor: "#c2185b", opacity: 0.13, line: { width: 0 } }] });
  }

  // ------------------------------------------------------------------ choosing what to hear

  function title(row) { return `${row.mixture} · ${row.system} · ${row.source}`; }

  function soundsOf(row) {
    if (row.detail === null) return {};
    const found = {};
    for (const [role, k] of Object.entries(data.details[row.detail].tracks))
      if (k !== null) found[role] = data.tracks[k];
    return found;
  }

  function choose(index) {
    const row = data.rows[index];
    load(row, soundsOf(row), 0);
    const scores = Object.entries(data.measures).map(([name, label]) => `${label} ${number(row[name])}`).join(", ");
    by("what").textContent = `${title(row)}: ${scores}.` + (row.note ? ` ${row.note}` : "");
    highlight(index);
    if (row.detail === null) { Plotly.purge("curves"); by("head").style.display = "none"; return Promise.resolve(); }
    return chart(data.details[row.detail]).then(() => { marked(null); follow(); });
  }

  function highlight(index) {
    for (const line of document.querySelectorAll("tr[data-row]"))
      line.classList.toggle("chosen", Number(line.dataset.row) === index);
  }

  function hear(segment) {
    const row = data.rows[segment.row];
    choose(segment.row).then(() => {
      const whole = soundsOf(row);
      const embedded = ["reference", "estimate"].every((role) => whole[role] && whole[role].embedded);
      if (!embedded && segment.clips) load(row, segment.clips, segment.offset);
      player.role = player.sounds.estimate ? "estimate" : player.role;
      player.until = segment.end + 0.5;
      if (row.detail !== null) marked(segment.start, segment.end);
      seek(Math.max(player.offset, segment.start - 0.1)).then(() => play());
      by("what").textContent = `${title(row)}, ${segment.start.toFixed(2)} to ${segment.end.toFixed(2)} s: ` +
        `${segment.label} ${number(segment.score)}.`;
      by("listen").scrollIntoView({ block: "start" });
    });
  }

  // ------------------------------------------------------------------ tables

  function sortable(table, columns, rows, fill, options = {}) {
    const view = { by: options.by, down: options.down || false, kept: rows, most: 200 };
    const head = make("tr");
    for (const [name, label, kind] of columns) {
      const cell = make("th", undefined, { scope: "col", class: kind || "" });
      if (name) {
        const button = make("button", label, { type: "button" });
        button.addEventListener("click", () => {
          view.down = view.by === name ? !view.down : false;
          view.by = name;
          draw();
        });
        cell.append(button);
        cell.dataset.name = name;
      } else cell.append(make("span", label));
      head.append(cell);
    }
    table.tHead.replaceChildren(head);
    function draw() {
      for (const cell of head.children)
        cell.setAttribute("aria-sort", cell.dataset.name !== view.by ? "none" : view.down ? "descending" : "ascending");
      const key = (row) => row[view.by];
      const order = [...view.kept].sort((a, b) => {
        const x = key(a), y = key(b);
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

  data.rows.forEach((row, index) => { row.index = index; });
  const measures = Object.entries(data.measures);
  const all = sortable(by("table"),
    [["mixture", "mixture"], ["system", "system"], ["source", "source"],
      ...measures.map(([name, label]) => [name, label, "n"]), ["frames", "frames", "n"], [null, "listen"]],
    data.rows,
    (row) => {
      const line = make("tr", undefined, { "data-row": row.index });
      if (player.row === row) line.classList.add("chosen");
      for (const name of ["mixture", "system", "source"]) line.append(make("td", row[name]));
      for (const [name] of measures) line.append(make("td", number(row[name]), { class: "n" }));
      line.append(make("td", row.frames, { class: "n" }));
      const cell = make("td"), button = make("button", row.detail === null ? "–" : "open", { type: "button" });
      button.disabled = row.detail === null;
      button.setAttribute("aria-label", `Open ${title(row)}`);
      button.addEventListener("click", () => { choose(row.index); by("listen").scrollIntoView({ block: "start" }); });
      cell.append(button);
      if (row.note) cell.append(make("div", row.note, { class: "quiet" }));
      line.append(cell);
      return line;
    },
    { by: "ps", drawn: (view) => {
      by("count").textContent = `${Math.min(view.most, view.kept.length)} of ${view.kept.length} shown`;
      by("more").hidden = view.most >= view.kept.length;
    } });
  by("more").addEventListener("click", () => { all.view.most += 500; all.draw(); });
  by("filter").addEventListener("input", () => {
    const words = by("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    all.view.kept = data.rows.filter((row) => words.every((word) => title(row).toLowerCase().includes(word)));
    all.draw();
  });

  const segments = data.segments.map((segment, rank) => ({ ...segment, rank, ...Object.fromEntries(
    ["mixture", "system", "source"].map((name) => [name, data.rows[segment.row][name]])) }));
  by("worst-note").textContent = data.sampled
    ? "Frames were sampled, so these are single frames." : segments.length
      ? "Stretches of at least 0.3 s with the lowest PS and the lowest log PM of the whole set. Play starts shortly before." : "None are listed.";
  sortable(by("worst"),
    [[null, "play"], ["label", "measure"], ["score", "score", "n"], ["start", "from (s)", "n"], ["end", "to (s)", "n"],
      ["mixture", "mixture"], ["system", "system"], ["source", "source"]],
    segments,
    (segment) => {
      const line = make("tr", undefined, { "data-segment": segment.rank });
      const cell = make("td"), button = make("button", "▶", { type: "button" });
      button.setAttribute("aria-label", `Play ${title(segment)} from ${segment.start.toFixed(2)} seconds`);
      button.addEventListener("click", () => hear(segment));
      cell.append(button); line.append(cell, make("td", segment.label));
      for (const value of [number(segment.score), segment.start.toFixed(2), segment.end.toFixed(2)])
        line.append(make("td", value, { class: "n" }));
      for (const name of ["mixture", "system", "source"]) line.append(make("td", segment[name]));
      return line;
    },
    { by: "rank" });

  showMeasure(Object.keys(data.measures)[0]);
  const first = segments.length ? segments[0].row : data.rows.findIndex((row) => row.detail !== null);
  if (first >= 0) choose(first); else { by("what").textContent = "There is nothing to hear."; state(); }
  window.addEventListener("resize", () => setTimeout(() => place(now()), 100));
})();
