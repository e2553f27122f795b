"use strict";
// The broker's console. It asks /api/ every two seconds for the page that is open, and shows all that comes
// from the broker as text, never as HTML: names of topics and payloads are strangers' words.

const EVERY = 2000; // milliseconds between two looks
const PAGE = 100; // letters and events of one answer
const LIVE = { overview: showOverview, topics: showTopics, groups: showGroups, fronts: showFronts };
const ASKED = { letters: showLetters, audit: showAudit };

const at = (id) => document.getElementById(id);
let token = sessionStorage.getItem("token");
let before = {}; // page -> its last answer, for rates
let letter = null; // that the dialog shows
let nextLetter = null, nextEvent = null;

// -- asking --------------------------------------------------------------------------------------------

class Refused extends Error {
  constructor(status, told) {
    super(told.message || `the broker answered ${status}`);
    this.status = status;
    this.code = told.error;
  }
}

async function ask(path, body) {
  const headers = token ? { "X-Admin-Token": token } : {};
  // To this origin only, and no answer may lead elsewhere: the token is in the headers.
  const options = { headers, cache: "no-store", mode: "same-origin", redirect: "error", credentials: "omit" };
  if (body) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, options);
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, told);
  return told;
}

function query(path, values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

const fields = (form) => Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));

// -- showing -------------------------------------------------------------------------------------------

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

// What grew by how much in a second, since the answer before; nothing is known at the first look.
function rate(now, then, field, seconds) {
  if (!then || seconds <= 0) return null;
  return (now[field] - then[field]) / seconds;
}

const shownRate = (value, show) => (value === null ? "–" : show(value));
const perSecond = (value) => (Math.abs(value) >= 10 ? count(Math.round(value)) : value.toFixed(1));

// -- pages that are looked at again and again ------------------------------------------------------------

async function showOverview() {
  const now = await ask("api/overview"), then = before.overview;
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
  tell(now.problems);
  before.overview = now;
}

async function showTopics() {
  const now = await ask(query("api/topics", { contains: at("topic-filter").value }));
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
  at("topics-more").textContent = now.next === null ? "" : "There are more; write a part of their names.";
  before.topics = now;
}

async function showGroups() {
  const now = await ask("api/groups");
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
  const now = await ask("api/fronts");
  rows("front-rows", now.fronts.map((one) => [
    one.front, one.listens.join(", "), count(one.connections),
    Object.entries(one.events).filter(([, value]) => value)
      .map(([event, value]) => `${event.replaceAll("_", " ")} ${count(value)}`).join(", ") || "nothing yet",
  ]), 4, "no fronts");
}

function tell(problems) {
  at("state").textContent = problems.length ? problems.join("; ") : "ready";
  at("state").className = problems.length ? "bad" : "good";
}

// -- pages that are asked for ----------------------------------------------------------------------------

async function showLetters(more) {
  const wanted = fields(at("letter-filter"));
  const told = await ask(query("api/admin/dlq/list", { ...wanted, limit: PAGE, after: more ? nextLetter : null }));
  const kept = more ? [...at("letter-rows").children] : [];
  rows("letter-rows", told.letters.map((one) => {
    const look = document.createElement("button");
    look.type = "button";
    look.textContent = "Inspect";
    look.addEventListener("click", () => attempt(() => inspect(one.delivery_id)));
    return [one.message_id, one.topic, one.consumer, one.reason, count(one.attempts), one.last || "", one.state, look];
  }), 8, "no dead letters");
  at("letter-rows").prepend(...kept);
  nextLetter = told.next;
  at("letters-more").hidden = told.next === null;
}

async function inspect(id) {
  const told = await ask(query("api/admin/dlq/inspect", { id }));
  letter = told.letters[0];
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
  at("letter-told").textContent = "";
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
  const told = await ask(`api/admin/dlq/${replays ? "replay" : "purge"}`, body);
  const failed = told.failures.map((one) => one.message).join("; ");
  at("letter-told").className = failed ? "bad" : "";
  at("letter-told").textContent = failed || (replays ? "It is published again." : "It is removed.");
  await showLetters();
}

async function showAudit(more) {
  const wanted = fields(at("audit-filter"));
  const told = await ask(query("api/admin/audit/events", { ...wanted, limit: PAGE, after: more ? nextEvent : null }));
  const kept = more ? [...at("audit-rows").children] : [];
  rows("audit-rows", told.events.map((one) => [
    count(one.sequence), one.time, one.actor, one.operation, one.message_ids.join(", ") || place(one.prior_state),
    one.reason,
  ]), 6, "no events");
  at("audit-rows").prepend(...kept);
  nextEvent = told.next;
  at("audit-more").hidden = told.next === null;
}

// The topic, and the group if there is one, that an operator changed.
function place(prior) {
  const one = (prior || [])[0] || {};
  return [one.topic, one.group].filter((name) => name !== undefined).join(", ");
}

async function verify() {
  const told = await ask("api/admin/audit/verify");
  at("audit-verdict").className = told.whole ? "" : "bad";
  at("audit-verdict").textContent = told.whole ? "The chain is whole." : told.problems
    .map((one) => `${one.file}, line ${one.line}: ${one.problem}`).join("; ");
}

// -- the page itself -------------------------------------------------------------------------------------

async function attempt(work) {
  try {
    await work();
    at("problem").textContent = "";
    at("login").hidden = true;
  } catch (error) {
    if (error.code === "token_missing" || error.code === "token_wrong") {
      at("login-error").textContent = error.code === "token_wrong" ? "That is not the token." : "";
      at("login").hidden = false;
      at("state").textContent = "locked";
    } else if (error instanceof Refused) {
      at("problem").textContent = error.message;
    } else {
      at("state").className = "bad";
      at("state").textContent = "the broker does not answer";
    }
  }
}

function opened() {
  const name = location.hash.slice(1);
  return name in LIVE || name in ASKED ? name : "overview";
}

async function showPage() {
  const name = opened();
  for (const section of document.querySelectorAll("main section")) section.hidden = section.id !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  await attempt(() => (LIVE[name] || ASKED[name])());
  if (name !== "overview") await attempt(() => ask("api/overview").then((now) => tell(now.problems)));
}

async function again() {
  const name = opened();
  if (!document.hidden && name in LIVE && at("login").hidden) await attempt(LIVE[name]);
  setTimeout(again, EVERY);
}

function submitted(id, work) {
  at(id).addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(work);
  });
}

submitted("login", () => {
  token = fields(at("login")).token;
  sessionStorage.setItem("token", token);
  at("login").reset();
  return ask("api/overview").then(showPage);
});
submitted("letter-filter", () => showLetters());
submitted("audit-filter", () => showAudit());
submitted("letter-act", () => act().catch((error) => {
  at("letter-told").className = "bad";
  at("letter-told").textContent = error.message;
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
showPage().then(() => setTimeout(again, EVERY));
