"""What a rule file may hold. The models are exported as JSON Schema by `diag rules schema`."""

from __future__ import annotations

from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

_Kebab = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
_Snake = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(_[a-z0-9]+)*$", max_length=60)]
_Sentence = Annotated[str, StringConstraints(min_length=8, max_length=300, strip_whitespace=True)]
_Paragraph = Annotated[str, StringConstraints(min_length=8, max_length=2000, strip_whitespace=True)]
_Chinese = Annotated[str, StringConstraints(min_length=2, max_length=1000, strip_whitespace=True)]
_Text = Annotated[str, StringConstraints(min_length=1, max_length=20_000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Pattern(_Strict):
    """A line: `literal` must stand in it as it is written, and `regex` (RE2) be found in its message.

    The message is the line without what loggers, launchers and containers put before it.
    """

    literal: Annotated[str, StringConstraints(min_length=6, max_length=200)] = Field(
        description="text in every line the rule is for; lines without it are skipped"
    )
    regex: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = Field(
        None,
        description="RE2; named groups can be used in summary and advice as {name}; one "
        "called culprits holds the numbers of the ranks to blame, in place of those that printed the line",
    )


class Example(_Strict):
    """Real lines that the rule must name."""

    text: _Text = Field(description="the lines as they were printed, prefixes and all")
    origin: _Sentence = Field(
        description="where they come from: package and version that ran, or the source that prints it"
    )


class Silent(_Strict):
    """Real lines that look alike, and that the rule must leave alone."""

    text: _Text
    why: _Sentence


class Translation(_Strict):
    """The rule's words in Chinese."""

    title: _Chinese
    summary: _Chinese
    advice: _Chinese
    false_positives: list[_Chinese] = Field(min_length=1)


class Rule(_Strict):
    """One thing that a log can say."""

    api_version: Literal["diag/v1"] = Field(alias="apiVersion")
    id: _Kebab = Field(description="stable name of the rule; the file is called so too")
    title: _Sentence
    status: Literal["experimental", "stable", "deprecated"] = "stable"
    finding: _Kebab | None = Field(
        None, description="id of the finding that it opens; none for a benign line or a mere cascade"
    )
    cause: _Snake | Literal[""] = Field("", description="cause of the finding, one of a fixed set")
    severity: Literal["info", "warning", "critical"] = "critical"
    role: Literal["root", "consequence", "benign"] = Field(
        "root",
        description="root: what went wrong; consequence: what follows from something else, named only when nothing else "
        "is; benign: looks like an error and is not one",
    )
    source: Literal["log", "kernel"] = Field(
        "log", description="kernel: a line of the kernel's log too (/dev/kmsg, dmesg), not only of the job's"
    )
    kind: Literal["line", "exception"] = Field(
        "line",
        description="exception: only the line that ends a Python traceback (not what is printed of others' errors)",
    )
    blame: Literal["speaker", "others"] = Field(
        "speaker",
        description="others: the ranks that print it are victims; the group culprits, or the only rank that does not "
        "print it, is to blame, else no rank",
    )
    when: Literal["failed", "always"] = Field(
        "failed",
        description="failed: only where the job or a rank ended of it; always: a warning that counts by itself",
    )
    applies: dict[str, str] = Field(
        default_factory=dict, description="package -> versions (PEP 440), where the log tells them"
    )
    match: list[Pattern] = Field(min_length=1, max_length=20, description="one of these is enough")
    also: list[Pattern] = Field(
        default_factory=list, max_length=5, description="each must be seen too, `within` seconds"
    )
    unless: list[Pattern] = Field(
        default_factory=list, max_length=10, description="none may be seen, `within` seconds"
    )
    within: float = Field(
        60.0, gt=0, le=3600, description="seconds around the line, for also, unless and count"
    )
    count: int = Field(1, ge=1, le=1000, description="so many lines `within` seconds make one finding")
    over: list[_Kebab] = Field(
        default_factory=list, max_length=20, description="rules that match the same line and say less"
    )
    follows: list[_Kebab] = Field(
        default_factory=list,
        max_length=20,
        description="findings of other checks that explain it: where one of them is open, the rule stays silent",
    )
    summary: _Sentence = Field(description="what happened; {who} is the ranks, {name} a group of the regex")
    advice: _Paragraph = Field(
        description="what to change: flags, commands, manifest lines; <live>...</live> is shown only while the job runs"
    )
    zh: Translation
    false_positives: list[_Paragraph] = Field(min_length=1)
    references: list[_Sentence] = Field(
        min_length=1, description="where the wording is from: URL, or package, version and file"
    )
    examples: list[Example] = Field(min_length=1, max_length=20)
    silent: list[Silent] = Field(min_length=1, max_length=20)

    @field_validator("applies")
    @classmethod
    def _is_a_range(cls, value: dict[str, str]) -> dict[str, str]:
        for package, versions in value.items():
            try:
                SpecifierSet(versions)
            except InvalidSpecifier:
                raise ValueError(
                    f"{package}: {versions!r} is not a version range, such as '>=2.4,<2.8'"
                ) from None
        return value

    @model_validator(mode="after")
    def _has_a_finding(self) -> Rule:
        if self.finding is None and self.role == "root":
            raise ValueError("a rule of role root needs a finding")
        if self.finding is not None and self.role == "benign":
            raise ValueError("a benign rule has no finding")
        return self
