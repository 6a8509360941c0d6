"""The page of a server: drop a video on it, and see its classes over time."""

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; media-src blob:; img-src data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>paddlevideo_fast</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 0 auto; }
body { padding: 1rem 2rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 1.5rem 0 .4rem; }
#drop { display: block; border: 2px dashed #99a; border-radius: 8px; padding: 2rem; text-align: center; }
#drop { cursor: pointer; } #drop.over, #drop:focus-within { border-color: #2457d6; background: #eef3ff; }
#drop input { position: absolute; opacity: 0; }
video { display: block; max-width: 100%; max-height: 22rem; margin: 1rem 0; background: #000; }
#status { min-height: 1.5em; } #status.error { color: #b3261e; }
progress { width: 100%; }
table { border-collapse: collapse; } td { padding: .1rem .8rem .1rem 0; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.row { display: flex; align-items: center; gap: .6rem; margin: .15rem 0; }
.row span { flex: 0 0 9rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.cells { display: flex; flex: 1; height: 1.4rem; cursor: pointer; position: relative; background: #f0f1f5; }
.cells button { border: 0; padding: 0; height: 100%; cursor: pointer; background: #2457d6; }
.now { position: absolute; top: 0; bottom: 0; width: 2px; background: #b3261e; pointer-events: none; }
[hidden] { display: none; }
</style>
</head>
<body>
<h1 id="model">paddlevideo_fast</h1>
<label id="drop">Drop a video here, or press to choose one
<input id="file" type="file" accept="video/*,.mkv,.avi,.mov,.webm,.mp4"></label>
<p id="status" role="status"></p>
<progress id="progress" max="1" value="0" hidden></progress>
<video id="video" controls muted hidden></video>
<div id="result" hidden>
<h2>Classes</h2>
<table><tbody id="top"></tbody></table>
<div id="over-time"><h2>Over time</h2><div id="rows"></div>
<h2>Segments</h2><table><tbody id="segments"></tbody></table></div>
</div>
<script>
"use strict";
const at = id => document.getElementById(id);
const WINDOWS = 40, SHORTEST_SEC = 1, ROWS = 5;
let model = {}, request = null, address = null;

fetch("model").then(answer => answer.json()).then(found => {
  model = found;
  at("model").textContent = `${found.model_name}, ${found.num_classes} classes`;
  at("status").textContent = `Up to ${found.max_mb} MiB and ${found.max_sec} s.`;
}).catch(() => say("The server does not answer.", true));

function say(text, isError) {
  at("status").textContent = text;
  at("status").className = isError ? "error" : "";
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function durationOf(file) {  // seconds, or null where the browser cannot play the file
  const video = at("video");
  if (address) URL.revokeObjectURL(address);
  address = URL.createObjectURL(file);
  return new Promise(done => {
    video.onloadedmetadata = () => { video.hidden = false; done(video.duration); };
    video.onerror = () => { video.hidden = true; done(null); };
    video.src = address;
  });
}

async function take(file) {
  if (request) request.abort();
  at("result").hidden = true;
  if (model.max_mb && file.size > model.max_mb * 1048576) {
    say(`${file.name} is larger than ${model.max_mb} MiB.`, true);
    return;
  }
  say(`Reading ${file.name}.`);
  const seconds = await durationOf(file);
  const isLong = Number.isFinite(seconds) && seconds >= 2 * SHORTEST_SEC;
  const length = Math.max(seconds / WINDOWS, SHORTEST_SEC).toFixed(3);
  send(file, isLong ? `predict?top_k=${ROWS}&window_sec=${length}` : `predict?top_k=${ROWS}`);
}

function send(file, url) {
  request = new XMLHttpRequest();
  const own = request;
  at("progress").hidden = false;
  own.upload.onprogress = event => {
    if (event.lengthComputable) at("progress").value = event.loaded / event.total;
    say(`Sending ${file.name}.`);
  };
  own.upload.onload = () => {
    at("progress").removeAttribute("value");
    say(`The network looks at ${file.name}.`);
  };
  own.onloadend = () => { at("progress").hidden = own === request; };
  own.onerror = () => say("The server does not answer.", true);
  own.onload = () => {
    let found = null;
    try { found = JSON.parse(own.responseText); } catch { found = { error: "The answer cannot be read." }; }
    if (own.status !== 200) say(found.error, true);
    else { say(file.name); show(found); }
  };
  own.open("POST", url);
  own.setRequestHeader("Content-Type", "application/octet-stream");
  own.send(file);
}

function show(found) {
  at("result").hidden = false;
  at("top").replaceChildren(...found.top.map(each => {
    const row = element("tr");
    row.append(element("td", (100 * each.score).toFixed(1) + " %", "number"), element("td", each.name));
    return row;
  }));
  at("over-time").hidden = !found.windows;
  if (found.windows) showOverTime(found);
}

function showOverTime(found) {
  const windows = found.windows, end = windows[windows.length - 1].end_sec;
  const names = new Map();  // class to its best score in a window
  for (const each of windows.flatMap(one => one.top))
    names.set(each.name, Math.max(names.get(each.name) || 0, each.score));
  const shown = [...names.keys()].sort((a, b) => names.get(b) - names.get(a)).slice(0, ROWS);
  at("rows").replaceChildren(...shown.map(name => {
    const row = element("div", undefined, "row"), cells = element("div", undefined, "cells");
    for (const one of windows) {
      const score = (one.top.find(each => each.name === name) || { score: 0 }).score;
      const cell = element("button");
      cell.style.width = 100 * (one.end_sec - one.start_sec) / end + "%";
      cell.style.opacity = score;
      cell.title = `${name}: ${(100 * score).toFixed(1)} %, ${time(one)}`;
      cell.setAttribute("aria-label", cell.title);
      cell.onclick = () => seek(one.start_sec);
      cells.append(cell);
    }
    cells.append(element("div", undefined, "now"));
    row.append(element("span", name), cells);
    return row;
  }));
  at("segments").replaceChildren(...found.segments.map(one => {
    const row = element("tr"), link = element("button", time(one));
    link.onclick = () => seek(one.start_sec);
    const cell = element("td");
    cell.append(link);
    row.append(cell, element("td", (100 * one.score).toFixed(1) + " %", "number"), element("td", one.name));
    return row;
  }));
}

function time(part) { return `${part.start_sec.toFixed(1)} – ${part.end_sec.toFixed(1)} s`; }
function seek(second) { at("video").currentTime = second; }

at("video").ontimeupdate = () => {
  const video = at("video");
  for (const mark of document.querySelectorAll(".now"))
    mark.style.left = 100 * video.currentTime / video.duration + "%";
};
at("file").onchange = event => { if (event.target.files.length) take(event.target.files[0]); };
for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, event => {
    event.preventDefault();
    at("drop").classList.toggle("over", name === "dragover");
    if (name === "drop" && event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  });
}
</script>
</body>
</html>
"""
