"use strict";
// The player: one sound per role, switched at the same instant, with a playhead over the panels.

const ROLES = { reference: "Reference", estimate: "Estimate", mixture: "Mixture" };

// What is loaded: a row, the sounds of its roles, the second at which those sounds begin, where
// playing stops, and the end of the time axis (null without a chart).
const player = { row: null, sounds: {}, role: "estimate", offset: 0, until: null, end: null };
const chosenSound = () => player.sounds[player.role];
const playingTime = () => chosenSound() ? player.offset + chosenSound().currentTime : 0;
const isPlaying = (sound) => Boolean(sound) && !sound.paused && !sound.ended;

// An element cannot play louder than its file: the loudest gain is 1, the others are below it.
function setLevels() {
  const sounds = Object.values(player.sounds), gains = sounds.map((sound) => Number(sound.dataset.gain));
  const largest = Math.max(...gains, 1e-9);
  sounds.forEach((sound, k) => { sound.volume = byId("level").checked ? Math.min(1, gains[k] / largest) : 1; });
}

function loadSounds(row, tracks, offset) {
  for (const sound of Object.values(player.sounds)) { sound.pause(); sound.removeAttribute("src"); }
  byId("players").replaceChildren();
  Object.assign(player, { row, offset, sounds: {}, until: null });
  for (const [role, track] of Object.entries(tracks)) {
    const sound = make("audio", undefined, { preload: "auto", "data-role": role, "data-gain": track.gain });
    sound.src = track.src;
    sound.addEventListener("ended", showState);
    sound.addEventListener("error", () => {
      if (!sound.getAttribute("src")) return;
      sound.dataset.failed = "yes";
      byId("what").textContent = `${ROLES[role]}: ${failureText(track, sound.error)}`;
      showState();
    });
    player.sounds[role] = sound;
    byId("players").append(sound);
  }
  if (!chosenSound()) player.role = Object.keys(player.sounds)[0] || "estimate";
  setLevels();
  showState();
}

function failureText(track, error) {
  if (track.embedded) return "this browser cannot play the embedded sound.";
  if (error.code === MediaError.MEDIA_ERR_SRC_NOT_SUPPORTED)
    return `${track.name} was not found at ${decodeURI(track.src)}, which this page links to, or this browser cannot play it.`;
  return `this browser cannot play ${track.name} from there.`;
}

function showState() {
  const sound = chosenSound(), playing = isPlaying(sound);
  byId("play").textContent = playing ? "❚❚ Pause" : "▶ Play";
  byId("play").setAttribute("aria-label", playing ? "Pause" : "Play");
  byId("play").disabled = !sound;
  for (const button of byId("roles").children) {
    button.setAttribute("aria-pressed", String(button.dataset.role === player.role));
    button.disabled = !player.sounds[button.dataset.role];
  }
}

// After an error nothing plays until the sound is loaded again.
function revive(sound) {
  if (sound.dataset.failed) { delete sound.dataset.failed; sound.load(); }
}

function play(on = true) {
  const sound = chosenSound();
  if (!sound) return;
  revive(sound);
  for (const silenced of Object.values(player.sounds)) if (silenced !== sound) silenced.pause();
  (on ? sound.play() : Promise.resolve(sound.pause())).then(showState, showState);
  if (on) requestAnimationFrame(follow);
}

// Resolves when the sound is at `time`; it cannot seek before its length is known.
function seek(time) {
  const sound = chosenSound();
  if (!sound) return Promise.resolve();
  revive(sound);
  const soundTime = Math.max(0, time - player.offset);
  return new Promise((done) => {
    const move = () => { sound.currentTime = Math.min(soundTime, sound.duration || soundTime); follow(); done(); };
    if (sound.readyState >= 1) move(); else sound.addEventListener("loadedmetadata", move, { once: true });
  });
}

function listenTo(role) {
  const before = chosenSound();
  if (!player.sounds[role]) return;
  const playing = isPlaying(before), time = playingTime();
  if (before) before.pause();
  player.role = role;
  seek(time).then(() => { if (playing) play(); });
  showState();
}

// ------------------------------------------------------------------ the playhead

function placeAt(id, time, until = null) {
  const line = byId(id), share = player.end ? time / player.end : -1;
  line.style.display = time === null || share < 0 || share > 1 ? "none" : "block";
  line.style.left = percent(share);
  if (until !== null) line.style.width = percent((until - time) / player.end);
}

function follow() {
  const sound = chosenSound(), time = playingTime();
  placeAt("head", time);
  byId("clock").textContent = `${time.toFixed(2)} s`;
  if (!sound) return;
  if (player.until !== null && time >= player.until) { player.until = null; play(false); return; }
  if (isPlaying(sound)) requestAnimationFrame(follow); else showState();
}

// The second under the pointer.
function pointedTime(event) {
  const frame = byId("overlay").getBoundingClientRect();
  return player.end * Math.min(1, Math.max(0, (event.clientX - frame.left) / frame.width));
}

function prepareControls() {
  for (const [role, label] of Object.entries(ROLES)) {
    const button = make("button", label, { type: "button", "data-role": role });
    button.addEventListener("click", () => listenTo(role));
    byId("roles").append(button);
  }
  byId("play").addEventListener("click", () => { player.until = null; play(!isPlaying(chosenSound())); });
  byId("level").addEventListener("change", setLevels);
  byId("overlay").addEventListener("click", (event) => {
    if (player.end) { player.until = null; seek(pointedTime(event)); }
  });
  byId("overlay").addEventListener("pointermove", (event) => {
    if (!player.end || !player.row.curve) return;
    const time = pointedTime(event);
    placeAt("pointed", time);
    byId("readout").textContent = `${time.toFixed(2)} s: ${curveValues(player.row, time)}`;
  });
  byId("overlay").addEventListener("pointerleave", () => { placeAt("pointed", null); byId("readout").textContent = ""; });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input[type=search]")) return;
    const key = event.key.toLowerCase();
    if (key === " " && event.target.matches("button, input, summary")) return;
    const roles = { r: "reference", e: "estimate", m: "mixture" };
    if (roles[key]) listenTo(roles[key]);
    else if (key === " ") byId("play").click();
    else if (key === "arrowleft") seek(playingTime() - 0.5);
    else if (key === "arrowright") seek(playingTime() + 0.5);
    else return;
    event.preventDefault();
  });
}
