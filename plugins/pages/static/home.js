// The link on Airflow's home page: Airflow calls this function as a component of React, whose library it provides.
"use strict";
globalThis["Storeside overview"] = globalThis.AirflowPlugin = () => {
  const place = new URL("plugin/storeside", document.baseURI);
  const link = { href: place.pathname, style: { textDecoration: "underline" } };
  const about = ": last runs, failed objects, waiting messages and what needs attention";
  const create = globalThis.React.createElement;
  return create("p", null, create("a", link, "Storeside: the state of the pipelines"), about);
};
