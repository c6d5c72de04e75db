"use strict";
// Everything is written as text, never as markup: a view may have any name.
(() => {
  const interval = 2000;
  const byId = (id) => document.getElementById(id);
  const known = (value) => value !== null && value !== undefined;

  const integer = (n) => (known(n) ? n.toLocaleString("en-US") : "–");
  const rate = (n) => {
    if (n < 0.05) return "0";
    return n < 10 ? n.toFixed(1) : Math.round(n).toLocaleString("en-US");
  };
  const bytes = (n) => {
    if (!known(n)) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let i = 0;
    while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
    return (i === 0 ? n : n.toFixed(1)) + " " + units[i];
  };
  const duration = (s) => {
    if (!known(s)) return "–";
    if (s === 0) return "0";
    if (s < 1) return Math.max(1, Math.round(s * 1000)) + " ms";
    if (s < 60) return s.toFixed(1) + " s";
    const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
    const i = units.findIndex(([, size]) => s >= size);
    const [[large, first], [small, second]] = [units[i], units[i + 1]];
    return Math.floor(s / first) + " " + large + " " + Math.floor((s % first) / second) + " " + small;
  };
  const clock = (iso) => {
    if (!iso) return "–";
    const at = new Date(iso);
    const sameDay = at.toDateString() === new Date().toDateString();
    return sameDay ? at.toLocaleTimeString() : at.toLocaleString();
  };

  const element = (tag, text, className) => {
    const e = document.createElement(tag);
    if (known(text)) e.textContent = text;
    if (className) e.className = className;
    return e;
  };
  const row = (...cells) => {
    const tr = element("tr");
    tr.append(...cells);
    return tr;
  };
  const number = (text, className) => element("td", text, "number " + (className || ""));

  const card = (label, value, detail, className) => {
    const box = element("div");
    const dd = element("dd", value, className);
    if (detail) dd.append(element("small", detail));
    box.append(element("dt", label), dd);
    return box;
  };

  const summary = (s) => {
    const { stream, slot } = s;
    const a = stream.activity;
    return [
      card("Stream", stream.state || "–", stream.problem || stream.applied_lsn, stream.problem ? "bad" : ""),
      card("Lag", duration(stream.lag_seconds), bytes(stream.lag_bytes) + " of WAL"),
      card("Changes/s", rate(a.changes_per_second), integer(a.changes) + " since start"),
      card("Transactions/s", rate(a.transactions_per_second), integer(a.transactions) + " since start"),
      card("Rounds/s", rate(a.rounds_per_second), "last " + clock(stream.last_round_at)),
      card("Pending", bytes(stream.pending_bytes), integer(stream.pending_transactions) + " transactions"),
      card("Slot " + slot.name, bytes(slot.retained_bytes),
        ["retained", slot.wal_status, slot.confirmed_lsn].filter(Boolean).join(" · "),
        slot.wal_status === "lost" || slot.wal_status === "unreserved" ? "bad" : ""),
    ];
  };

  const viewRow = (v) => {
    const a = v.activity;
    const name = element("td", v.name);
    if (v.problem) name.append(element("span", v.problem + " (in full: mvsync.views.error)", "problem"));
    if (v.coarsened && v.coarsened.length) name.append(element("span", "coarsened key: " + v.coarsened.join(", "), "note"));
    if (v.non_deterministic) name.append(element("span", "non-deterministic: not verified", "note"));
    const state = element("td");
    state.append(element("span", v.state, v.state));
    if (v.state === "filling" && known(v.fill_ratio)) state.append(" " + Math.floor(v.fill_ratio * 100) + " %");
    const asOf = element("td", clock(v.as_of));
    if (v.as_of_lsn) asOf.title = v.as_of_lsn;
    const verify = a.verify_runs ? integer(a.verify_differing_rows) + " in " + integer(a.verify_runs) + " runs" : "–";
    return row(name, state, element("td", v.strategy), number(duration(v.age_seconds)), asOf,
      number(integer(v.rows)), number(rate(a.rows_per_second)), number(integer(a.rows_written)),
      number(integer(a.rows_suppressed)), number(integer(a.rebuilds)), number(integer(v.collisions)),
      number(verify, a.verify_differing_rows ? "bad" : ""));
  };

  const refusedRow = (r) => row(element("td", r.view), element("td", r.code),
    element("td", [r.construct, r.reason].filter(Boolean).join(": "), "wrap"), element("td", r.suggestion || "", "wrap"));

  let last = JSON.parse(byId("status").textContent);

  const render = () => {
    const s = last;
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = s.views.filter((v) => {
      const text = [v.name, v.state, v.strategy].join(" ").toLowerCase();
      return words.every((w) => text.includes(w));
    });
    byId("version").textContent = s.version;
    byId("readiness").textContent = s.ready ? "ready" : "not ready: " + s.not_ready;
    byId("readiness").className = s.ready ? "ready" : "unready";
    byId("updated").textContent = "at " + clock(s.at);
    byId("summary").replaceChildren(...summary(s));
    byId("count").textContent = shown.length === s.views.length ? s.views.length : shown.length + " of " + s.views.length;
    byId("views").replaceChildren(...shown.map(viewRow));
    byId("refusals").hidden = s.refused.length === 0;
    byId("refused").replaceChildren(...s.refused.map(refusedRow));
  };

  const poll = async () => {
    try {
      if (!document.hidden) {
        const answer = await fetch("api/status", { cache: "no-store", signal: AbortSignal.timeout(10000) });
        if (!answer.ok) throw new Error("HTTP " + answer.status);
        last = await answer.json();
        render();
      }
    } catch (err) {
      byId("readiness").className = "unready";
      byId("readiness").textContent = "no answer from mvsync (" + err.message + "); shown as of " + clock(last.at);
    }
    setTimeout(poll, interval);
  };

  byId("filter").addEventListener("input", render);
  render();
  setTimeout(poll, interval);
})();
