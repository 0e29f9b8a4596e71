"""The hook of mkdocs.yml: adds the pages that are made from the code and from documents outside of docs/."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import api
import catalogue
import llms
from flavour import as_python_markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from repository import ROOT, mounted, with_site_links

from diag.outputs import manual

_BOOST = 3


@cache
def _findings() -> frozenset[str]:
    return frozenset(name for lang in manual.LANGUAGES for name in catalogue.pages(lang))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the pages of findings behind their index, and the READMEs of deploy/ behind that of the dashboards."""
    nav = config.nav or []
    for lang in manual.LANGUAGES:
        index = f"{catalogue.folder(lang)}/index.md"
        section = _section_with(nav, index)
        section.extend(name for name in catalogue.pages(lang) if name != index)
    _section_with(nav, "dashboards/README.md").extend(
        page for page in mounted().values() if page.startswith("deploy/")
    )
    if "README.zh.md" in mounted():
        _section_with(nav, "zh/index.md").append({"概览": mounted()["README.zh.md"]})
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    made = {name: text for lang in manual.LANGUAGES for name, text in catalogue.pages(lang).items()}
    made |= {page: (ROOT / name).read_text(encoding="utf-8") for name, page in mounted().items()}
    made["reference/http-api.md"] = api.page()
    made["llms.txt"] = llms.text(config.nav or [], config.site_description or "")
    made["reference/openapi.json"] = json.dumps(api.openapi(), indent=1, ensure_ascii=False)
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    if (
        page.file.src_uri in _findings()
    ):  # who searches has a trouble: its page comes before guides that name it
        page.meta["search"] = {"boost": _BOOST}
    return as_python_markdown(with_site_links(markdown, page.file.src_uri))


def _section_with(nav: Any, index: str) -> list[Any]:
    """The innermost list of nav that has this page."""
    if isinstance(nav, dict):
        return next((found for inner in nav.values() if (found := _section_with(inner, index))), [])
    if not isinstance(nav, list):
        return []
    return nav if index in nav else next((inside for one in nav if (inside := _section_with(one, index))), [])
