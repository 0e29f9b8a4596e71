"""The API's page as self-contained HTML: no script, and no style or font from anywhere else. All text goes
through `_text`."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def _text(value: object) -> str:
    text = "".join(" " if char < " " and char not in "\n\t" else char for char in str(value))
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"), quote=True)


def _document(title: str, body: str, nonce: str) -> str:
    style = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{_text(title)}</title><link rel="icon" href="data:,"><style nonce="{nonce}">{style}</style></head>\n'
        f"<body>{body}</body></html>\n"
    )


# --- the API


def docs_page(openapi: Mapping[str, Any], *, nonce: str) -> str:
    """The API as its OpenAPI document describes it, readable without a network."""
    info = openapi["info"]
    body = (
        f"<main><h1>{_text(info['title'])} {_text(info['version'])}</h1><p>{_text(info.get('description', ''))}</p>"
        '<p><a href="openapi.json">openapi.json</a> is this page for machines.</p>'
        + "".join(
            _operation(path, method, described)
            for path, methods in openapi["paths"].items()
            for method, described in methods.items()
        )
        + _schemas(openapi.get("components", {}).get("schemas", {}))
        + "</main>"
    )
    return _document("diag: API", body, nonce)


def _operation(path: str, method: str, described: Mapping[str, Any]) -> str:
    parameters = "".join(
        f"<li><code>{_text(each['name'])}</code> ({_text(each['in'])}): {_text(each.get('description', ''))}</li>"
        for each in described.get("parameters", ())
    )
    answers = "".join(
        f"<li>{_text(status)}: {_text(answer.get('description', ''))} {_schema_link(answer)}</li>"
        for status, answer in described.get("responses", {}).items()
    )
    return (
        f"<article><h3><code>{_text(method.upper())} {_text(path)}</code></h3>"
        f"<p>{_text(described.get('description') or described.get('summary', ''))}</p><ul>{parameters}{answers}</ul></article>\n"
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
            f"<li><code>{_text(field)}</code> {_text(described.get('description', ''))}</li>"
            for field, described in schema.get("properties", {}).items()
        )
        about = f"<p>{_text(schema.get('description', ''))}</p>"
        parts.append(f'<h3 id="{_text(name)}"><code>{_text(name)}</code></h3>{about}<ul>{fields}</ul>')
    return "<h2>Shapes</h2>" + "".join(parts) if parts else ""
