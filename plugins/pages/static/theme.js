// Dark or light like Airflow's own pages: Airflow sets a class on the page around ours, and a setting in the browser.
"use strict";
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");

  function around() {
    try {
      return parent !== window ? parent.document.documentElement : null;
    } catch {
      return null; // another site's page
    }
  }

  function dark() {
    const page = around();
    if (page && page.classList.contains("dark")) return true;
    if (page && page.classList.contains("light")) return false;
    const chosen = localStorage.getItem("theme");
    return chosen === "dark" || (chosen !== "light" && system.matches);
  }

  function apply() {
    document.documentElement.dataset.theme = dark() ? "dark" : "light";
  }

  // In a tab of a run or a task, Airflow's own tabs are enough.
  if (around() && parent.location.pathname.includes("/dags/")) document.documentElement.dataset.within = "run";

  apply();
  system.addEventListener("change", apply);
  window.addEventListener("storage", apply);
  const page = around();
  if (page) new MutationObserver(apply).observe(page, { attributes: true, attributeFilter: ["class"] });
})();
