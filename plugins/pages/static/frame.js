// How the pages fit into Airflow's page around them, and into a phone.
"use strict";

// Links to Airflow leave the frame that shows our pages. The frame may not navigate the page around it, but that
// page is Airflow's and has the same origin: the script clicks a link there.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-top]");
  if (!link || parent === window || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  const outside = parent.document.createElement("a");
  outside.href = link.href;
  if (link.hasAttribute("download")) outside.download = "";
  parent.document.body.append(outside);
  outside.click();
  outside.remove();
});

document.querySelector("nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });

// In the tab of a run or a task there are no tabs of ours: from another page, a link leads back to the run.
const around = /\/dags\/([^/]+)\/runs\/([^/]+)/.exec(parent === window ? "" : parent.location.pathname);
const back = document.querySelector("p.back");
if (back && around) {
  const [dag, run] = around.slice(1).map(decodeURIComponent);
  back.firstElementChild.href = `${document.body.dataset.base}/run?${new URLSearchParams({ dag, run })}`;
  back.hidden = false;
}

// A page that waits for ClickHouse shows that it loads.
function loads(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const link = event.type === "click" ? event.target.closest("a[href]") : event.target;
  if (!link || link.hash || link.dataset.top !== undefined) return;
  document.documentElement.dataset.loading = "";
}
document.addEventListener("click", loads);
document.addEventListener("submit", loads);
window.addEventListener("pageshow", () => { delete document.documentElement.dataset.loading; });

// On a phone each row of a table is a card, whose cells are labelled by the table's head.
document.querySelectorAll("table.cards").forEach((table) => {
  const heads = [...table.querySelectorAll("thead th")].map((head) => (head.dataset.short || head.textContent.replace(/[↑↓]/, "").trim()));
  table.querySelectorAll("tbody tr").forEach((row) => {
    [...row.cells].forEach((cell, n) => { cell.dataset.label = heads[n] || ""; });
  });
});
