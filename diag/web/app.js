import { h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

const html = htm.bind(h);
const told = {};

function draw() {
  const report = told.report;
  render(html`<h1>${report ? report.sentence : "..."}</h1>
    ${report && report.findings.map((one) => html`<article><h2>${one.severity} ${one.id}</h2><p>${one.summary}</p></article>`)}`,
    document.getElementById("app"));
}

const source = new EventSource("events");
source.addEventListener("report", (event) => { told.report = JSON.parse(event.data); draw(); });
draw();
