"""The page of `data browse`."""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>data browse</title>
<style>
* { box-sizing: border-box; }
body { font: 14px/1.4 system-ui, sans-serif; color: #222; margin: 0; display: flex; height: 100vh; }
#left { flex: 1 1 55%; display: flex; flex-direction: column; border-right: 1px solid #ddd; min-width: 0; }
#right { flex: 1 1 45%; padding: .8rem 1rem; overflow: auto; }
#filters { display: flex; flex-wrap: wrap; gap: .4rem; padding: .5rem; border-bottom: 1px solid #ddd; }
#filters input, #filters select { font: inherit; max-width: 12rem; }
#list { flex: 1; overflow: auto; position: relative; outline: none; }
#space { width: 1px; }
.row { position: absolute; left: 0; right: 0; height: 26px; display: flex; gap: .6rem; padding: 2px .5rem; }
.row { cursor: pointer; white-space: nowrap; }
.row span { overflow: hidden; text-overflow: ellipsis; }
.row .path { flex: 1 1 45%; direction: rtl; text-align: left; } .row .class { flex: 0 0 9rem; }
.row .finding { flex: 1 1 40%; color: #b3261e; }
.row.on { background: #dce6ff; } .row.dropped .path, .row.dropped .class { text-decoration: line-through; }
.row.changed .class { font-weight: 700; }
canvas, video { max-width: 100%; max-height: 42vh; background: #000; display: block; }
button { font: inherit; margin: .15rem .2rem .15rem 0; } button.on { background: #2457d6; color: #fff; }
#classes { max-height: 30vh; overflow: auto; }
#status { min-height: 1.4em; } #status.error { color: #b3261e; }
kbd { background: #f0f1f5; border-radius: 3px; padding: 0 .3em; } [hidden] { display: none; }
</style>
</head>
<body>
<div id="left">
<div id="filters">
<input id="search" type="search" placeholder="name or finding" aria-label="name or finding">
<select id="class" aria-label="class"></select>
<select id="finding" aria-label="finding"></select>
<select id="order" aria-label="order"><option value="">as listed</option>
<option value="margin">surest contradiction first</option></select>
<label><input id="edited" type="checkbox"> changed</label>
<span id="count"></span>
</div>
<div id="list" tabindex="0" role="listbox" aria-label="entries"><div id="space"></div></div>
</div>
<div id="right">
<p id="status" role="status"></p>
<div id="entry" hidden>
<h3 id="path"></h3>
<p id="findings"></p>
<canvas id="clip"></canvas>
<video id="video" controls muted hidden></video>
<p><button id="play">Play the whole video</button> <span id="length"></span></p>
<div id="classes"></div>
<p><button id="drop">Drop</button><button id="begin">Span begins</button><button id="end">Span ends</button>
<button id="clear">No spans</button><button id="undo">Undo</button></p>
<p id="spans"></p>
</div>
<p><kbd>j</kbd> <kbd>k</kbd> next, previous &nbsp; <kbd>1</kbd>…<kbd>9</kbd> class &nbsp;
<kbd>d</kbd> drop &nbsp; <kbd>[</kbd> <kbd>]</kbd> span &nbsp; <kbd>x</kbd> no spans &nbsp;
<kbd>z</kbd> undo &nbsp; <kbd>/</kbd> name</p>
</div>
<script>
"use strict";
const at = id => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token") || "";
const client = crypto.randomUUID();
const ROW_PX = 26, FRAME_SEC = 0.12, NEWS_SEC = 2;
const PATH = 0, LABELS = 1, DROPPED = 2, SPANS = 3, VERSION = 4, FINDINGS = 5, MARGIN = 6;
let names = [], rows = [], shown = [], newest = 0, chosen = -1, hasFiles = false;
let sprite = null, clip = null, frame = 0, begin = null;

async function ask(path, body) {
  const options = { headers: { "X-Token": token } };
  if (body) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify({ ...body, client });
  }
  const answer = await fetch(path, options);
  if (!answer.ok) {
    const told = await answer.json().catch(() => ({}));
    throw new Error(told.error || told.detail || `the server answers with status ${answer.status}`);
  }
  return answer;
}

function say(text, isError) {
  at("status").textContent = text;
  at("status").className = isError ? "error" : "";
}

function element(name, text, className) {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

const nameOf = labels => labels.map(label => names[label]).join(", ");
const kindOf = finding => finding.split(":")[0];

function option(select, value, text) {
  const made = element("option", text);
  made.value = value;
  select.append(made);
}

function fillFilters() {
  option(at("class"), "", "all classes");
  names.forEach((name, number) => option(at("class"), number, name));
  option(at("finding"), "", "all findings");
  for (const kind of [...new Set(rows.flatMap(row => row[FINDINGS].map(kindOf)))].sort())
    option(at("finding"), kind, kind);
}

function filter() {
  const word = at("search").value.toLowerCase(), label = at("class").value, kind = at("finding").value;
  const edited = at("edited").checked;
  shown = [];
  rows.forEach((row, place) => {
    if (word && ![row[PATH], ...row[FINDINGS]].some(text => text.toLowerCase().includes(word))) return;
    if (label !== "" && !row[LABELS].includes(+label)) return;
    if (kind && !row[FINDINGS].some(one => kindOf(one) === kind)) return;
    if (edited && !row[VERSION]) return;
    shown.push(place);
  });
  if (at("order").value) shown.sort((a, b) => rows[b][MARGIN] - rows[a][MARGIN]);
  at("count").textContent = `${shown.length} of ${rows.length}`;
  at("space").style.height = shown.length * ROW_PX + "px";
  draw();
}

function draw() {  // only the rows that can be seen are elements
  const list = at("list"), first = Math.max(Math.floor(list.scrollTop / ROW_PX) - 5, 0);
  const last = Math.min(first + Math.ceil(list.clientHeight / ROW_PX) + 10, shown.length);
  const made = [at("space")];
  for (let number = first; number < last; number++) {
    const place = shown[number], row = rows[place];
    const line = element("div", "", "row");
    line.append(element("span", row[PATH], "path"), element("span", nameOf(row[LABELS]), "class"),
      element("span", row[FINDINGS].join("; "), "finding"));
    line.classList.toggle("on", place === chosen);
    line.classList.toggle("dropped", row[DROPPED]);
    line.classList.toggle("changed", row[VERSION] > 0);
    line.style.top = number * ROW_PX + "px";
    line.dataset.place = place;
    line.onclick = () => choose(place);
    made.push(line);
  }
  list.replaceChildren(...made);
}

function choose(place) {
  if (place === undefined || place < 0) return;
  chosen = place;
  begin = null;
  at("entry").hidden = false;
  at("video").hidden = true;
  at("video").removeAttribute("src");
  showClip(place);
  showEntry();
  const number = shown.indexOf(place), list = at("list");
  if (number * ROW_PX < list.scrollTop) list.scrollTop = number * ROW_PX;
  if ((number + 1) * ROW_PX > list.scrollTop + list.clientHeight)
    list.scrollTop = (number + 1) * ROW_PX - list.clientHeight;
  draw();
}

async function showClip(place) {
  sprite = clip = null;
  try {
    const answer = await ask(`clip/${place}`);
    const told = JSON.parse(answer.headers.get("X-Clip"));
    const picture = await createImageBitmap(await answer.blob());
    if (place !== chosen) return;
    sprite = picture;
    clip = told;
    frame = 0;
    at("length").textContent = `${told.length_sec} s`;
    at("clip").width = picture.width / told.frames;
    at("clip").height = picture.height;
    say("");
  } catch (error) {
    if (place === chosen) say(error.message, true);
  }
}

setInterval(() => {
  if (!sprite) return;
  const { width, height } = at("clip");
  at("clip").getContext("2d").drawImage(sprite, frame * width, 0, width, height, 0, 0, width, height);
  frame = (frame + 1) % clip.frames;
}, 1000 * FRAME_SEC);

function showEntry() {
  const row = rows[chosen];
  at("path").textContent = row[PATH];
  at("findings").textContent = row[FINDINGS].join("; ");
  at("play").hidden = !hasFiles;
  at("drop").textContent = row[DROPPED] ? "Keep" : "Drop";
  at("spans").textContent = row[SPANS].map(([start, end]) => `${start} – ${end} s`).join(", ");
  at("classes").replaceChildren(...names.map((name, number) => {
    const button = element("button", number < 9 ? `${number + 1} ${name}` : name);
    button.classList.toggle("on", row[LABELS].includes(number));
    button.onclick = () => change({ labels: [number] });
    return button;
  }));
}

function take(news) {
  for (const [place, ...state] of news.rows) rows[place].splice(LABELS, 4, ...state);
  newest = Math.max(newest, news.newest);
  if (news.rows.some(([place]) => place === chosen)) showEntry();
  if (at("edited").checked) filter(); else draw();
}

async function change(wanted) {
  if (chosen < 0) return;
  const row = rows[chosen];
  const old = { labels: row[LABELS], dropped: row[DROPPED], spans: row[SPANS] };
  try {
    take(await (await ask("change", { place: chosen, seen: row[VERSION], ...old, ...wanted })).json());
    say("saved");
  } catch (error) {
    say(error.message, true);
    await news();
  }
}

async function undo() {
  try {
    const news = await (await ask("undo", {})).json();
    take(news);
    choose(news.place);
    say("undone");
  } catch (error) {
    say(error.message, true);
  }
}

async function news() {
  try {
    take(await (await ask(`news?since=${newest}`)).json());
  } catch (error) {
    say("the server does not answer", true);
  }
}

function now() {
  const video = at("video");
  return Math.round(1000 * (video.hidden ? (clip ? clip.times[frame] : 0) : video.currentTime)) / 1000;
}

function end() {
  const stop = now();
  if (begin === null || stop <= begin) { say("a span begins before it ends", true); return; }
  change({ spans: [...rows[chosen][SPANS], [begin, stop]] });
  begin = null;
}

function step(by) {
  const number = shown.indexOf(chosen);
  choose(shown[Math.min(Math.max(number + by, 0), shown.length - 1)]);
}

at("play").onclick = () => {
  at("video").hidden = false;
  at("video").src = `video/${chosen}?token=${token}`;
  at("video").play().catch(() => say("this browser does not play the file; the clip is decoded here", true));
};
at("drop").onclick = () => change({ dropped: !rows[chosen][DROPPED] });
at("begin").onclick = () => { begin = now(); say(`a span begins at ${begin} s`); };
at("end").onclick = end;
at("clear").onclick = () => change({ spans: [] });
at("undo").onclick = undo;
at("list").onscroll = draw;
window.onresize = draw;
for (const id of ["search", "class", "finding", "order", "edited"]) at(id).oninput = filter;

const KEYS = {
  j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1),
  d: () => at("drop").click(), "[": () => at("begin").click(), "]": end, x: () => at("clear").click(),
  z: undo, "/": () => at("search").focus(),
};
document.onkeydown = event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (["INPUT", "SELECT"].includes(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const number = "123456789".indexOf(event.key);
  const action = number >= 0 && number < names.length ? () => change({ labels: [number] }) : KEYS[event.key];
  if (action) { event.preventDefault(); action(); }
};

ask("entries").then(answer => answer.json()).then(found => {
  ({ names, rows, newest } = found);
  hasFiles = found.has_files;
  fillFilters();
  filter();
  choose(shown[0]);
  setInterval(news, 1000 * NEWS_SEC);
}).catch(error => say(error.message, true));
</script>
</body>
</html>
"""
