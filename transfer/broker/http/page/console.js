"use strict";
// The broker's console. It requests /api/ every two seconds for the open page. It shows all that the broker
// sends as text, never as HTML: any client chooses names of topics and payloads.

const INTERVAL = 2000; // milliseconds between two updates
const PAGE = 100; // letters and events of one answer
const LIVE = { overview: showOverview, topics: showTopics, groups: showGroups, fronts: showFronts };
const ON_DEMAND = { letters: showLetters, audit: showAudit };

const at = (id) => document.getElementById(id);
let token = sessionStorage.getItem("token");
let before = {}; // page -> its last answer, for rates
let letter = null; // the dialog shows it
let nextLetter = null, nextEvent = null;

// -- requests ------------------------------------------------------------------------------------------

class ErrorResponse extends Error {
  constructor(status, body) {
    super(body.message || `the broker answered ${status}`);
    this.status = status;
    this.code = body.error;
  }
}

async function request(path, body) {
  const headers = token ? { "X-Admin-Token": token } : {};
  // Only to this origin, without redirects: the token is in the headers.
  const options = { headers, cache: "no-store", mode: "same-origin", redirect: "error", credentials: "omit" };
  if (body) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, options);
  const result = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new ErrorResponse(answer.status, result);
  return result;
}

function query(path, values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

const fields = (form) => Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));

// -- display -------------------------------------------------------------------------------------------

function cell(value, kind) {
  const td = document.createElement("td");
  if (value instanceof Node) td.append(value);
  else td.textContent = value;
  if (kind) td.className = kind;
  return td;
}

function rows(id, lists, columns, nothing) {
  const made = lists.map((list) => {
    const tr = document.createElement("tr");
    tr.append(...list.map((value) => cell(value, typeof value === "number" || isNumeric(value) ? "number" : "name")));
    return tr;
  });
  if (!made.length) {
    const tr = document.createElement("tr");
    const td = cell(nothing, "none");
    td.colSpan = columns;
    tr.append(td);
    made.push(tr);
  }
  at(id).replaceChildren(...made);
}

const isNumeric = (value) => typeof value === "string" && /^[\d.,–-]+( [kMGT]?B)?$/.test(value);

function figures(id, pairs) {
  at(id).replaceChildren(...pairs.flatMap(([name, value]) => {
    const dt = document.createElement("dt"), dd = document.createElement("dd"), div = document.createElement("div");
    dt.textContent = name;
    dd.textContent = value;
    div.append(dt, dd);
    return [div];
  }));
}

const count = (value) => value.toLocaleString("en");

function size(nbytes) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(nbytes) < 1000) return `${unit === "B" ? Math.round(nbytes) : nbytes.toPrecision(3)} ${unit}`;
    nbytes /= 1000;
  }
  return `${nbytes.toPrecision(3)} TB`;
}

// The growth of a field per second since the previous answer; null at the first answer.
function rate(now, then, field, seconds) {
  if (!then || seconds <= 0) return null;
  return (now[field] - then[field]) / seconds;
}

const shownRate = (value, show) => (value === null ? "–" : show(value));
const perSecond = (value) => (Math.abs(value) >= 10 ? count(Math.round(value)) : value.toFixed(1));

// -- pages that are updated ----------------------------------------------------------------------------

async function showOverview() {
  const now = await request("api/overview"), then = before.overview;
  const seconds = then ? now.seconds - then.seconds : 0;
  figures("figures", [
    ["Messages", count(now.messages)],
    ["Messages per s", shownRate(rate(now, then, "messages", seconds), perSecond)],
    ["Bytes", size(now.bytes)],
    ["Bytes per s", shownRate(rate(now, then, "bytes", seconds), size)],
    ["Topics", count(now.topics)],
    ["Groups", count(now.groups)],
    ["Connections", count(now.connections)],
    ["Subscribers", `${count(now.subscribers)}${now.behind ? `, ${count(now.behind)} behind` : ""}`],
    ["Dead letters", count(now.dead_letters)],
    ["Log", `${size(now.log_bytes)} in ${count(now.log_segments)} file${now.log_segments === 1 ? "" : "s"}`],
    ["Not on the disk yet", size(now.unsynced_bytes)],
    ["Folder", now.folder],
    ["Version", now.version],
  ]);
  figures("events", Object.entries(now.events).map(([name, value]) => [name.replaceAll("_", " "), count(value)]));
  showState(now.problems);
  before.overview = now;
}

async function showTopics() {
  const now = await request(query("api/topics", { contains: at("topic-filter").value }));
  const seconds = before.topics ? now.seconds - before.topics.seconds : 0;
  const then = new Map((before.topics ? before.topics.topics : []).map((one) => [one.topic, one]));
  rows("topic-rows", now.topics.map((one) => {
    const old = then.get(one.topic);
    return [
      one.topic, count(one.messages), shownRate(rate(one, old, "messages", seconds), perSecond),
      size(one.bytes), shownRate(rate(one, old, "bytes", seconds), size),
      one.durable ? count(one.end - one.oldest) : "not kept", count(one.position), count(one.subscribers),
    ];
  }), 8, "no topics");
  at("topics-more").textContent = now.next === null ? "" : "There are more topics: filter them by name.";
  before.topics = now;
}

async function showGroups() {
  const now = await request("api/groups");
  const seconds = before.groups ? now.seconds - before.groups.seconds : 0;
  const name = (one) => JSON.stringify([one.topic, one.group]);
  const then = new Map((before.groups ? before.groups.groups : []).map((one) => [name(one), one]));
  rows("group-rows", now.groups.map((one) => [
    one.topic, one.group, count(one.lag), shownRate(rate(one, then.get(name(one)), "lag", seconds), perSecond),
    count(one.held), count(one.waiting), count(one.consumers),
  ]), 7, "no groups");
  before.groups = now;
}

async function showFronts() {
  const now = await request("api/fronts");
  rows("front-rows", now.fronts.map((one) => [
    one.front, one.listens.join(", "), count(one.connections),
    Object.entries(one.events).filter(([, value]) => value)
      .map(([event, value]) => `${event.replaceAll("_", " ")} ${count(value)}`).join(", ") || "nothing yet",
  ]), 4, "no fronts");
}

function showState(problems) {
  at("state").textContent = problems.length ? problems.join("; ") : "ready";
  at("state").className = problems.length ? "bad" : "good";
}

// -- pages that the user loads -------------------------------------------------------------------------

async function showLetters(more) {
  const wanted = fields(at("letter-filter"));
  const result = await request(query("api/admin/dlq/list", { ...wanted, limit: PAGE, after: more ? nextLetter : null }));
  const kept = more ? [...at("letter-rows").children] : [];
  rows("letter-rows", result.letters.map((one) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Inspect";
    button.addEventListener("click", () => attempt(() => inspect(one.delivery_id)));
    return [one.message_id, one.topic, one.consumer, one.reason, count(one.attempts), one.last || "", one.state, button];
  }), 8, "no dead letters");
  at("letter-rows").prepend(...kept);
  nextLetter = result.next;
  at("letters-more").hidden = result.next === null;
}

async function inspect(id) {
  const result = await request(query("api/admin/dlq/inspect", { id }));
  letter = result.letters[0];
  at("letter-title").textContent = letter.message_id;
  const facts = ["delivery_id", "tenant", "topic", "original_topic", "consumer", "reason", "last_error", "attempts",
    "first", "last", "state", "payload_bytes"];
  const isKnown = (name) => letter[name] !== "" && letter[name] !== null;
  at("letter-facts").replaceChildren(...facts.filter(isKnown)
    .flatMap((name) => {
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name.replaceAll("_", " ");
      dd.textContent = letter[name];
      return [dt, dd];
    }));
  at("letter-payload").textContent = shownPayload(letter);
  at("letter-result").textContent = "";
  at("letter-act").elements.confirm.value = "";
  if (!at("letter").open) at("letter").showModal();
}

function shownPayload(one) {
  const headers = Object.keys(one.headers).length ? `${JSON.stringify(one.headers, null, 1)}\n\n` : "";
  if (one.log) return `${headers}in the log: ${one.log.topic}, message ${one.log.offset}`;
  if (one.payload === undefined) return `${headers}${one.payload_base64} (base64)`;
  return headers + one.payload + (one.payload_cut ? "\n…" : "");
}

async function act() {
  const { actor, reason, confirm } = fields(at("letter-act"));
  const body = { ids: [letter.delivery_id], actor, reason, confirm };
  const replays = confirm === "REPLAY";
  if (replays) Object.assign(body, { target_consumer: letter.consumer, target_topic: letter.topic });
  const result = await request(`api/admin/dlq/${replays ? "replay" : "purge"}`, body);
  const failed = result.failures.map((one) => one.message).join("; ");
  at("letter-result").className = failed ? "bad" : "";
  at("letter-result").textContent = failed || (replays ? "The message is published again." : "The message is deleted.");
  await showLetters();
}

async function showAudit(more) {
  const wanted = fields(at("audit-filter"));
  const result = await request(query("api/admin/audit/events", { ...wanted, limit: PAGE, after: more ? nextEvent : null }));
  const kept = more ? [...at("audit-rows").children] : [];
  rows("audit-rows", result.events.map((one) => [
    count(one.sequence), one.time, one.actor, one.operation, one.message_ids.join(", ") || place(one.prior_state),
    one.reason,
  ]), 6, "no events");
  at("audit-rows").prepend(...kept);
  nextEvent = result.next;
  at("audit-more").hidden = result.next === null;
}

// The topic, and the group if there is one, of an operator's change.
function place(prior) {
  const one = (prior || [])[0] || {};
  return [one.topic, one.group].filter((name) => name !== undefined).join(", ");
}

async function verify() {
  const result = await request("api/admin/audit/verify");
  at("audit-verdict").className = result.whole ? "" : "bad";
  at("audit-verdict").textContent = result.whole ? "The chain is whole." : result.problems
    .map((one) => `${one.file}, line ${one.line}: ${one.problem}`).join("; ");
}

// -- the page ------------------------------------------------------------------------------------------

async function attempt(work) {
  try {
    await work();
    at("problem").textContent = "";
    at("login").hidden = true;
  } catch (error) {
    if (error.code === "token_missing" || error.code === "token_wrong") {
      at("login-error").textContent = error.code === "token_wrong" ? "The token is wrong." : "";
      at("login").hidden = false;
      at("state").textContent = "locked";
    } else if (error instanceof ErrorResponse) {
      at("problem").textContent = error.message;
    } else {
      at("state").className = "bad";
      at("state").textContent = "the broker does not answer";
    }
  }
}

function openPage() {
  const name = location.hash.slice(1);
  return name in LIVE || name in ON_DEMAND ? name : "overview";
}

async function showPage() {
  const name = openPage();
  for (const section of document.querySelectorAll("main section")) section.hidden = section.id !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  await attempt(() => (LIVE[name] || ON_DEMAND[name])());
  if (name !== "overview") await attempt(() => request("api/overview").then((now) => showState(now.problems)));
}

async function update() {
  const name = openPage();
  if (!document.hidden && name in LIVE && at("login").hidden) await attempt(LIVE[name]);
  setTimeout(update, INTERVAL);
}

function onSubmit(id, work) {
  at(id).addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(work);
  });
}

onSubmit("login", () => {
  token = fields(at("login")).token;
  sessionStorage.setItem("token", token);
  at("login").reset();
  return request("api/overview").then(showPage);
});
onSubmit("letter-filter", () => showLetters());
onSubmit("audit-filter", () => showAudit());
onSubmit("letter-act", () => act().catch((error) => {
  at("letter-result").className = "bad";
  at("letter-result").textContent = error.message;
}));
at("letter-close").addEventListener("click", () => at("letter").close());
at("letters-more").addEventListener("click", () => attempt(() => showLetters(true)));
at("audit-more").addEventListener("click", () => attempt(() => showAudit(true)));
at("audit-verify").addEventListener("click", () => attempt(verify));
at("topic-filter").addEventListener("input", () => {
  before.topics = null;
  attempt(showTopics);
});
window.addEventListener("hashchange", showPage);
showPage().then(() => setTimeout(update, INTERVAL));
