"""What the hook of mkdocs.yml does to Markdown and links."""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

HOOKS = Path(__file__).parents[2] / "docs" / "_hooks"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    monkeypatch.syspath_prepend(str(HOOKS))
    names = {path.stem for path in HOOKS.glob("*.py")}
    for name in names & set(sys.modules):
        monkeypatch.delitem(sys.modules, name)
    module = importlib.import_module(request.param)
    for name in names & set(sys.modules):  # gone again afterwards
        monkeypatch.setitem(sys.modules, name, sys.modules[name])
    return module


@pytest.mark.parametrize("hook", ["flavour", "api", "llms"], indirect=True)
def test_examples_in_docstrings_hold(hook: ModuleType) -> None:
    result = doctest.testmod(hook)

    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize("hook", ["repository"], indirect=True)
@pytest.mark.parametrize(
    ("page", "written", "shown"),
    [
        # a page of docs/ to another, to a document outside, to its folder; a document outside to a page
        ("explanation/cost.md", "[x](../estimate.md#a)", "[x](../estimate.md#a)"),
        ("explanation/cost.md", "[x](../../README.md#b)", "[x](../project/overview.md#b)"),
        ("howto/slurm.md", "[x](../../deploy/slurm)", "[x](../deploy/slurm/README.md)"),
        ("project/overview.md", "[`x`](docs/scale.md)", "[`x`](../scale.md)"),
        ("deploy/jobs/tiny/README.md", "[x](../megatron-3.sh)", "x"),  # a file that the site has not
        ("project/changelog.md", "[x](docs/zh) and [y](docs/howto)", "[x](../zh/index.md) and y"),  # folders
        ("dashboards/README.md", "![x](../docs/dashboards/diag-job.png)", "![x](diag-job.png)"),
        # left alone: addresses, anchors, what is not there (strict finds it), code
        ("index.md", "[x](https://a.b/c.md) [y](#z)", "[x](https://a.b/c.md) [y](#z)"),
        ("index.md", "[x](nowhere.md)", "[x](nowhere.md)"),
        ("project/overview.md", "```text\n[x](docs/scale.md)\n```", "```text\n[x](docs/scale.md)\n```"),
    ],
)
def test_links_of_the_repository_lead_to_pages_of_the_site(
    hook: ModuleType, page: str, written: str, shown: str
) -> None:
    assert hook.with_site_links(written, page) == shown


@pytest.mark.parametrize("hook", ["flavour"], indirect=True)
@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (
            "1. a\n   b\n\n   ```bash\n   x\n     y\n   ```\n2. c",
            "1. a\n    b\n\n    ```bash\n    x\n      y\n    ```\n2. c",
        ),
        ("- a\n    - b\n- c", "- a\n    - b\n- c"),
        ("```yaml walkthrough:rules/a.yaml\n- x\n```", '```yaml title="rules/a.yaml"\n- x\n```'),
        ("| `a\\|b` | c\\|d |", "| `a|b` | c\\|d |"),
        ("a\n- b", "a\n\n- b"),
        ("a - b\n\n    code", "a - b\n\n    code"),
    ],
)
def test_markdown_is_read_as_github_reads_it(hook: ModuleType, written: str, shown: str) -> None:
    assert hook.as_python_markdown(written) == shown
