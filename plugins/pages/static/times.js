// Times in the time zone that the user chose in Airflow, which keeps it in the browser.
"use strict";

function chosenZone() {
  const kept = localStorage.getItem("timezone") || "";
  const zone = kept.replaceAll('"', "") || Intl.DateTimeFormat().resolvedOptions().timeZone;
  try {
    Intl.DateTimeFormat("sv-SE", { timeZone: zone });
    return zone;
  } catch {
    return "UTC";
  }
}

function showTimes(within = document) {
  const timeZone = chosenZone();
  const day = { year: "numeric", month: "2-digit", day: "2-digit" };
  const clock = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone };
  const long = new Intl.DateTimeFormat("sv-SE", { ...day, ...clock, second: "2-digit" });
  const name = new Intl.DateTimeFormat("en", { timeZone, timeZoneName: "short" });
  within.querySelectorAll("[data-at]").forEach((place) => {
    const at = new Date(Number(place.dataset.at) * 1000);
    const zone = name.formatToParts(at).find((part) => part.type === "timeZoneName").value;
    const text = long.format(at); // 2026-11-23 07:45:00
    const isShort = place.dataset.short !== undefined;
    place.textContent = isShort ? text.slice(5, 16) : `${text} ${zone}${place.dataset.after || ""}`;
  });
}

showTimes();
window.addEventListener("storage", (event) => { if (event.key === "timezone") showTimes(); });
