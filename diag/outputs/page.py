"""The first page and the API's page as self-contained HTML: no script, style or font from anywhere else.

All text goes through `_text`, here and nowhere else; the page renews itself by asking the server for this same HTML.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from diag.model import format_ranks
from diag.outputs.view import job_sentence

__all__ = ["docs_page", "first_page"]

_STYLE = """
:root { color-scheme: light dark; --line: #8884;
  --crit: light-dark(#a40000, #ff8a80); --warn: light-dark(#7a4f00, #ffcc66); }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.15rem; } h2 { font-size: 1rem; margin-top: 2rem; }
article { border: 1px solid var(--line); border-left: .4rem solid var(--line); padding: .4rem .9rem; margin: .7rem 0; }
article.critical { border-left-color: var(--crit); } article.warning { border-left-color: var(--warn); }
article h3 { font-size: 1rem; margin: .2rem 0; }
.critical h3 b { color: var(--crit); } .warning h3 b { color: var(--warn); }
div.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
pre { overflow-x: auto; background: #8881; padding: .5rem; margin: .3rem 0; } nav a { margin-right: 1rem; }
@supports not (color: light-dark(red, red)) { :root { --crit: #c62828; --warn: #b26a00; } }
"""

# Asks /findings each 2 s (ours; the engine checks each second); the HTML is asked for again, and put in place whole,
# while the tab is looked at. Open details stay open, and nothing moves under a selection.
_SCRIPT = """
const note = document.getElementById("note");
async function renew() {
  try {
    const findings = await fetch("findings", {cache: "no-store"});
    if (!findings.ok) throw new Error("status " + findings.status);
    const report = await findings.json();
    document.title = "diag: " + report.job.state;
    if (!document.hidden && String(getSelection()) === "") {
      const answer = await fetch("./", {cache: "no-store"});
      if (!answer.ok) throw new Error("status " + answer.status);
      const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
      for (const open of document.querySelectorAll("details[open]")) {
        const same = next.querySelector("#" + CSS.escape(open.id));
        if (same) same.open = true;
      }
      document.querySelector("main").replaceWith(next);
    }
    note.textContent = "renewed each 2 s";
  } catch (error) {
    note.textContent = "diag does not answer (" + error.message + "); this is the last that it said";
  }
}
setInterval(renew, 2000);
"""


def _text(value: object) -> str:
    text = "".join(" " if char < " " and char not in "\n\t" else char for char in str(value))
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"), quote=True)


def _document(title: str, body: str, nonce: str, script: str = "") -> str:
    code = f'<script nonce="{nonce}">{script}</script>' if script else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{_text(title)}</title><link rel="icon" href="data:,"><style nonce="{nonce}">{_STYLE}</style></head>\n'
        f"<body>{body}{code}</body></html>\n"
    )


# --- the first page ------------------------------------------------------------------------------------------


def first_page(
    report: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], stacks: str, *, run_id: str, version: str, nonce: str
) -> str:
    """`report` is a `diag.report/1` document, `ranks` what /ranks says, `stacks` the merged stacks as text."""
    found = "".join(_finding(index, finding) for index, finding in enumerate(report["findings"]))
    merged = f"<summary>Merged stacks</summary><pre>{_text(stacks)}</pre>"
    body = (
        f"<main><h1>{_text(job_sentence(report))}</h1>\n"
        + (found or "<p>No finding is open.</p>")
        + _not_checked(report["not_checked"])
        + f'<h2>Ranks</h2>{_ranks_table(ranks)}<details id="stacks">{merged}</details></main>\n<nav><h2>More</h2>'
        + "".join(f'<a href="{path}">{path}</a>' for path in ("findings", "ranks", "metrics", "docs", "dump"))
        + f'</nav>\n<p><small>run {_text(run_id)}, diag {_text(version)}; <span id="note" role="status">not renewed'
        " (no script)</span></small></p>"
    )
    return _document(f"diag: {report['job']['state']}", body, nonce, _SCRIPT)


def _finding(index: int, finding: Mapping[str, Any]) -> str:
    severity = finding["severity"] if finding["severity"] in ("info", "warning", "critical") else "info"
    name = finding["id"] + (f" / {finding['class']}" if finding["class"] else "")
    about = [f"{finding['confidence']} confidence"]
    if finding["ranks"]:
        about.append(f"rank {format_ranks(finding['ranks'])}")
    if finding["waiting_ranks"]:
        about.append(f"waiting: {format_ranks(finding['waiting_ranks'])}")
    if finding["cause"]:
        about.append(f"cause: {finding['cause']}")
    evidence = "".join(
        f"<p>{_text(item['kind'])}{'' if item['rank'] is None else ' of rank ' + _text(item['rank'])}</p>"
        f"<pre>{_text(item['excerpt'])}</pre>"
        for item in finding["evidence"]
    )
    return (
        f'<article class="{severity}"><h3><b>{severity.upper()}</b> {_text(name)}</h3>'
        f"<p>{_text(finding['summary'])}</p><p><small>{_text('; '.join(about))}</small></p>"
        f"<p>What to do: {_text(finding['advice'])}</p>"
        + (f'<details id="e{index}"><summary>Evidence</summary>{evidence}</details>' if evidence else "")
        + "</article>\n"
    )


def _not_checked(lines: Sequence[Mapping[str, Any]]) -> str:
    if not lines:
        return ""
    items = "".join(
        f"<li>{_text(line['what'])}: {_text(line['reason'])}"
        + (f" ({_text(line['remedy'])})" if line["remedy"] else "")
        + "</li>"
        for line in lines
    )
    return f"<h2>Not checked</h2><ul>{items}</ul>\n"


def _ranks_table(ranks: Sequence[Mapping[str, Any]]) -> str:
    if not ranks:
        return "<p>No rank was seen yet.</p>"
    heads = ("rank", "state", "doing", "where", "last progress", "memory", "host", "pid")
    rows = "".join(
        "<tr>"
        + f'<th scope="row"><a href="ranks/{_text(rank["rank"])}/stacks">{_text(rank["rank"])}</a></th>'
        + "".join(f"<td>{_text(cell)}</td>" for cell in _rank_cells(rank))
        + "</tr>\n"
        for rank in ranks
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _rank_cells(rank: Mapping[str, Any]) -> Iterable[str]:
    ages = [age for age in rank["seconds_since_progress"].values() if age is not None]
    state = rank["state"] + (f" ({rank['exit']['text']})" if rank["exit"] and rank["state"] == "dead" else "")
    yield state
    yield rank["activity"] or "-"
    yield rank["where"]["text"] if rank["where"] else "-"
    yield f"{min(ages):.0f} s ago" if ages else "-"
    yield "-" if rank["rss_bytes"] is None else f"{rank['rss_bytes'] / 2**30:.1f} GiB"
    yield rank["host"] or "-"
    yield str(rank["pid"])


# --- the API -------------------------------------------------------------------------------------------------


def docs_page(openapi: Mapping[str, Any], *, nonce: str) -> str:
    """The API as its OpenAPI document tells it, readable without a network."""
    info = openapi["info"]
    body = (
        f"<main><h1>{_text(info['title'])} {_text(info['version'])}</h1><p>{_text(info.get('description', ''))}</p>"
        '<p><a href="openapi.json">openapi.json</a> is this page for machines.</p>'
        + "".join(
            _operation(path, method, told)
            for path, methods in openapi["paths"].items()
            for method, told in methods.items()
        )
        + _schemas(openapi.get("components", {}).get("schemas", {}))
        + "</main>"
    )
    return _document("diag: API", body, nonce)


def _operation(path: str, method: str, told: Mapping[str, Any]) -> str:
    parameters = "".join(
        f"<li><code>{_text(each['name'])}</code> ({_text(each['in'])}): {_text(each.get('description', ''))}</li>"
        for each in told.get("parameters", ())
    )
    answers = "".join(
        f"<li>{_text(status)}: {_text(answer.get('description', ''))} {_schema_link(answer)}</li>"
        for status, answer in told.get("responses", {}).items()
    )
    return (
        f"<article><h3><code>{_text(method.upper())} {_text(path)}</code></h3>"
        f"<p>{_text(told.get('description') or told.get('summary', ''))}</p><ul>{parameters}{answers}</ul></article>\n"
    )


def _schema_link(answer: Mapping[str, Any]) -> str:
    for content in answer.get("content", {}).values():
        name = str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]
        if name:
            return f'<a href="#{_text(name)}">{_text(name)}</a>'
    return ""


def _schemas(schemas: Mapping[str, Any]) -> str:
    parts = []
    for name, schema in schemas.items():
        fields = "".join(
            f"<li><code>{_text(field)}</code> {_text(told.get('description', ''))}</li>"
            for field, told in schema.get("properties", {}).items()
        )
        about = f"<p>{_text(schema.get('description', ''))}</p>"
        parts.append(f'<h3 id="{_text(name)}"><code>{_text(name)}</code></h3>{about}<ul>{fields}</ul>')
    return "<h2>Shapes</h2>" + "".join(parts) if parts else ""
