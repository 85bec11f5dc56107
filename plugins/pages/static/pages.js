// What the pages do in the browser: live progress, actions through Airflow's REST API, waveforms.
"use strict";

const airflow = document.body.dataset.airflow;
const said = document.getElementById("said");
const LIVE_MS = 2000;
const MOST_SAMPLES = 150;
const MOST_BYTES_DRAWN = 64e6;

function say(text, bad = false) {
  said.textContent = text;
  said.className = bad ? "notice bad" : "notice";
}

// Select all

document.querySelectorAll("input[data-all]").forEach((all) => {
  all.addEventListener("change", () => {
    document.getElementsByName(all.dataset.all).forEach((box) => { box.checked = all.checked; });
  });
});

// Live progress

const samples = new Map(); // movement -> [time, objects, bytes]

function sample(article) {
  const seen = samples.get(article.dataset.key) || [];
  seen.push([performance.now() / 1000, Number(article.dataset.objects), Number(article.dataset.bytes)]);
  samples.set(article.dataset.key, seen.slice(-MOST_SAMPLES));
  const rates = seen.slice(1).map(([at, , bytes], n) => Math.max(bytes - seen[n][2], 0) / (at - seen[n][0]));
  const top = Math.max(...rates, 1);
  if (rates.length < 2) return;
  const points = rates.map((rate, n) => `${(n / (rates.length - 1)) * 300},${38 - (rate / top) * 36}`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("class", "line");
  line.setAttribute("points", points.join(" "));
  article.querySelector(".spark").replaceChildren(line);
}

let asking = false;

async function refresh(section) {
  if (asking) return; // while a server hangs, this page sends one request, not another every two seconds
  asking = true;
  try {
    await update(section);
  } finally {
    asking = false;
  }
}

// What an open page says about itself, below the figures.
const remark = document.createElement("p");
remark.setAttribute("role", "status");
const REASONS = {
  0: "Airflow does not answer",
  401: "your session has ended, sign in to Airflow again",
  429: "too many requests are being answered at the moment",
  503: "a server that the pages need does not answer",
};
let shownAt = new Date();
let hasEnded = false;
let isTouched = false;
document.addEventListener("input", () => { isTouched = true; });

function remarkOn(text, { bad = false, reload = false } = {}) {
  if (remark.dataset.text === text) return; // a screen reader reads it once
  remark.dataset.text = remark.textContent = text;
  remark.className = !text ? "" : bad ? "notice bad" : "notice";
  if (!reload) return;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Load the page again";
  button.addEventListener("click", () => location.reload());
  remark.append(" ", button);
}

async function update(section) {
  const answer = await fetch(section.dataset.from).catch(() => ({ ok: false, status: 0 }));
  if (!answer.ok) {
    const clock = new Intl.DateTimeFormat("sv-SE", { timeStyle: "medium", timeZone: chosenZone() }).format(shownAt);
    const reason = REASONS[answer.status] ?? `Airflow answers with status ${answer.status}`;
    if (!section.hidden) remarkOn(`These figures are of ${clock}: ${reason}.`, { bad: true });
    return;
  }
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (section.querySelector("button[data-sure]")) return; // its question waits for the second click
  const before = [...section.querySelectorAll("article")].map((one) => one.dataset.key);
  const focused = document.activeElement?.closest("#live article")?.dataset.key;
  section.replaceChildren(...fresh.body.childNodes);
  shownAt = new Date();
  const articles = [...section.querySelectorAll("article")];
  articles.forEach(sample);
  if (focused) articles.find((one) => one.dataset.key === focused)?.querySelector("button")?.focus();
  if (articles.length) section.hidden = false;
  hasEnded ||= before.some((key) => !articles.some((one) => one.dataset.key === key));
  // A movement has ended: its row is in the tables now. A reload would lose what the user typed or has to read.
  if (!hasEnded) remarkOn("");
  else if (isTouched || said.textContent || document.activeElement?.closest("form")) {
    remarkOn("A task has ended, and the lists below are older.", { reload: true });
  } else location.reload();
}

const live = document.getElementById("live");
if (live) {
  live.after(remark);
  live.querySelectorAll("article").forEach(sample);
  setInterval(() => { if (!document.hidden) refresh(live).catch(() => {}); }, LIVE_MS);
}

// Errors of failed tasks: the end of their logs, from Airflow's REST API under its permissions.

const runPath = ({ dag, run }) => `dags/${encodeURIComponent(dag)}/dagRuns/${encodeURIComponent(run)}`;
const MOST_LOG_BYTES = 8e6;
const MOST_ERROR_LINES = 12;
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

async function* linesOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let count = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    count += value.length;
    if (count > MOST_LOG_BYTES) {
      await reader.cancel();
      throw new Error("long");
    }
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines;
  }
  yield rest;
}

function errorOf(line) {
  let entry;
  try {
    entry = JSON.parse(line);
  } catch {
    return null;
  }
  if (!["error", "critical"].includes(entry.level)) return null;
  const raised = Array.isArray(entry.error_detail) ? entry.error_detail[0] : null;
  return raised ? `${raised.exc_type}: ${raised.exc_value}` : String(entry.event);
}

async function showError(place) {
  const { dag, run, task, mapIndex, attempt } = place.dataset;
  const path = `${runPath({ dag, run })}/taskInstances/${encodeURIComponent(task)}/logs/${encodeURIComponent(attempt)}`;
  const answer = await fetch(`${airflow}/api/v2/${path}?map_index=${mapIndex}&full_content=true`, {
    headers: { Accept: "application/x-ndjson" },
  });
  if (!answer.ok) {
    place.textContent = `Airflow does not show its log here (status ${answer.status}): open it.`;
    return;
  }
  let last = "";
  for await (const line of linesOf(answer)) last = errorOf(line) ?? last;
  const lines = last.replace(INVISIBLE, "�").split("\n").slice(-MOST_ERROR_LINES);
  place.textContent = last ? lines.join("\n") : "Its log has no error here: it was stopped from outside or set to failed, or ran in a shell (airflow dags test), whose terminal has its log.";
}

document.querySelectorAll("pre[data-error]").forEach((place) => {
  showError(place).catch((error) => {
    place.textContent = error.message === "long" ? "Its log is too long to show its end here: open it." : "Its log cannot be read: open it.";
  });
});

// Actions: Airflow's own REST API does them, so its permissions apply and its audit log records them.

async function ask(method, path, body) {
  const answer = await fetch(`${airflow}/api/v2/${path}`, {
    method, headers: { "Content-Type": "application/json" }, body: body && JSON.stringify(body),
  });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const details = Array.isArray(found.detail) ? found.detail.map((one) => one.msg) : [found.detail];
    const detail = details.filter((one) => typeof one === "string").join("; ");
    throw new Error(`Airflow refuses it (${answer.status})${detail ? `: ${detail}` : ""}`);
  }
  return found;
}


// Airflow's key of a task instance in its run: for a mapped task, that instance and not its siblings.
const instance = ({ task, mapIndex }) => (mapIndex === undefined ? [task] : [task, Number(mapIndex)]);

const actions = {
  // A DAG that has the parameter is run again with it; in any other DAG the task and its downstream tasks are cleared.
  async retry(what) {
    const { params } = await ask("GET", `dags/${encodeURIComponent(what.dag)}/details`);
    if (params && "retry_failed" in params) {
      const { conf } = await ask("GET", runPath(what));
      const started = await ask("POST", `dags/${encodeURIComponent(what.dag)}/dagRuns`, {
        logical_date: null, conf: { ...conf, retry_failed: true },
      });
      return `Run ${started.dag_run_id} tries the failed objects again.`;
    }
    await ask("POST", `dags/${encodeURIComponent(what.dag)}/clearTaskInstances`, {
      dry_run: false, dag_run_id: what.run, only_failed: false, include_downstream: true,
      task_ids: [what.mapIndex === undefined ? what.task : instance(what)],
    });
    return `Task ${instance(what).join(" ")} was cleared: it tries the failed objects again.`;
  },

  async cancel(what) {
    const path = `${runPath(what)}/taskInstances/${instance(what).map(encodeURIComponent).join("/")}`;
    await ask("PATCH", path, { new_state: "failed" });
    return `Task ${instance(what).join(" ")} was set to failed; its job is ended. What is done stays done.`;
  },
};

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-action]");
  if (!button || button.disabled) return;
  const text = button.textContent;
  if (button.dataset.sure === undefined) { // only the second click starts the action
    button.dataset.sure = "";
    button.textContent = `${text}: sure?`;
    setTimeout(() => { delete button.dataset.sure; button.textContent = text; }, 5000);
    return;
  }
  button.disabled = true;
  try {
    say(await actions[button.dataset.action](button.dataset));
  } catch (error) {
    say(error.message, true);
    button.disabled = false;
  }
});

// Waveforms: the browser decodes the audio that it plays.

function envelope(channel, columns) {
  const step = Math.max(Math.floor(channel.length / columns), 1);
  return Array.from({ length: columns }, (_, n) => {
    let low = 0, high = 0;
    for (let i = n * step; i < Math.min((n + 1) * step, channel.length); i++) {
      if (channel[i] < low) low = channel[i];
      if (channel[i] > high) high = channel[i];
    }
    return [low, high];
  });
}

// Scaled to the height of the canvas: quiet speech would otherwise be a line.
function scaled(peaks) {
  const top = Math.max(...peaks.map(([low, high]) => Math.max(-low, high)), 1e-4);
  return peaks.map(([low, high]) => [low / top, high / top]);
}

function draw(canvas, peaks, played) {
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const middle = canvas.height / 2;
  pen.clearRect(0, 0, canvas.width, canvas.height);
  peaks.forEach(([low, high], n) => {
    pen.fillStyle = style.getPropertyValue(n / peaks.length < played ? "--accent" : "--wave");
    pen.fillRect(n, middle - high * middle, 1, Math.max((high - low) * middle, 1));
  });
}

async function waveform(figure) {
  const canvas = figure.querySelector("canvas");
  const audio = figure.querySelector("audio");
  const facts = figure.querySelector("[data-facts]");
  const head = await fetch(figure.dataset.audio, { headers: { Range: "bytes=0-0" } });
  if (head.status === 429) {
    facts.textContent = "Too many recordings are being read at the moment: load the page again in a few seconds.";
    return;
  }
  if (!head.ok) {
    facts.textContent = "It cannot be read: AIStore does not have it any more, or does not answer.";
    return;
  }
  const size = Number(head.headers.get("Content-Range").split("/")[1]);
  if (size > MOST_BYTES_DRAWN) {
    facts.textContent = "Too large to draw.";
    return;
  }
  const content = await (await fetch(figure.dataset.audio)).arrayBuffer();
  const context = new OfflineAudioContext(1, 1, 48000);
  const decoded = await context.decodeAudioData(content);
  const peaks = scaled(envelope(decoded.getChannelData(0), canvas.width));
  const paint = () => draw(canvas, peaks, audio.duration ? audio.currentTime / audio.duration : 0);
  paint();
  figure.dataset.drawn = "";
  facts.textContent = `${decoded.duration.toFixed(2)} s, ${decoded.numberOfChannels} channel(s), ${(size / 1000).toFixed(0)} kB, drawn at full height`;
  audio.addEventListener("timeupdate", paint);
  new MutationObserver(paint).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  canvas.addEventListener("click", (event) => {
    audio.currentTime = (event.offsetX / canvas.clientWidth) * audio.duration;
  });
}

document.querySelectorAll("figure.player").forEach((figure) => {
  waveform(figure).catch(() => {
    figure.querySelector("[data-facts]").textContent = "This browser cannot play it: it is damaged, empty, or in a format that the browser does not know.";
  });
});
