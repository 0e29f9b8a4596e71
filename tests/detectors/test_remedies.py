"""What to do about a failure that no rule knows: each form by an example of its own, its Chinese, and silence where
the lines say too little."""

from __future__ import annotations

import pytest

from diag.detectors.remedies import Form, all_forms, remedy
from diag.detectors.remedies.failure import failure_of
from diag.outputs.chinese import of_finding
from diag.text.tables import places

FORMS = all_forms()
TRACEBACK = "Traceback (most recent call last):"


def _told(form: Form) -> str:
    """Its error is the last line that is not indented; a message may go on below it."""
    lines = form.example.splitlines()
    errors = [line for line in lines if not line[:1].isspace() and line != TRACEBACK]
    return remedy(lines, next((line for line in errors if ": " in line), errors[-1]))


def _of_form(text: str) -> str:
    """The form whose first sentence begins so, behind what the message itself says."""
    text = text.partition('". ')[2] if text.startswith("The message itself says: ") else text
    for form in FORMS:
        for sentence in form.do[0]:
            if text.startswith(sentence.partition("{")[0]) and all(
                part in text for part in sentence.replace("{", "}").split("}")[::2]
            ):
                return form.id
    return ""


def test_ids_are_different() -> None:
    assert len({form.id for form in FORMS}) == len(FORMS)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.id)
def test_form_is_found_by_its_example(form: Form) -> None:
    told = _told(form)

    assert _of_form(told) == form.id, told
    assert "{" not in told


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.id)
def test_form_has_chinese_with_the_same_places(form: Form) -> None:
    assert [len(each) for each in form.do] == [len(each) for each in form.zh]
    for english, chinese in zip(form.do, form.zh, strict=True):
        assert [places(one) for one in english] == [places(one) for one in chinese]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.id)
@pytest.mark.parametrize("follows", ["", " The other ranks' errors follow from it."])
def test_advice_of_a_form_is_shown_in_chinese(form: Form, follows: str) -> None:
    advice = _told(form) + follows
    finding = {"id": "rank-died", "cause": "exit_1", "advice": advice}

    shown = of_finding(finding, "advice")

    assert form.zh[0][0].partition("{")[0][:6] in shown, shown
    assert " the " not in shown.replace("the ring", "").partition("消息")[0]


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: the ring is open",
        "MyOwnTrouble: nothing known",
        "an error of no known form",
        "Error: something went wrong",
        "slurmstepd: error: something new",
    ],
)
def test_nothing_is_told_where_the_lines_say_too_little(line: str) -> None:
    assert remedy([line], line) == ""


def test_nothing_general_is_told_of_what_only_reports() -> None:
    lines = [
        TRACEBACK,
        '  File "/srv/job/train.py", line 9, in main',
        "    go()",
        "ValueError: the ring is open",
    ]

    assert remedy(lines, lines[-1], general=False) == ""
    assert "go()" in remedy(lines, lines[-1])


def test_own_frame_of_the_last_traceback_is_named_and_not_of_the_one_before() -> None:
    lines = [
        TRACEBACK,
        '  File "/srv/job/old.py", line 1, in start',
        "    begin()",
        "OSError: gone",
        "",
        "[rank3]: " + TRACEBACK,
        '[rank3]:   File "/srv/job/train.py", line 40, in step',
        '[rank3]:     scale = cfg.train["warmup"]',
        "[rank3]:             ~~~~~~~~~^^^^^^^^^^",
        '[rank3]:   File "/opt/v/lib/python3.11/site-packages/easydict/__init__.py", line 9, in __getitem__',
        "[rank3]:     return self._data[key]",
        "[rank3]: KeyError: 'warmup'",
    ]

    found = failure_of(lines, lines[-1])

    assert str(found.own) == "train.py:40 in step" and found.package == "easydict"
    assert remedy(lines, lines[-1]).startswith(
        "The configuration has no `warmup`, which `train.py:40 in step` reads from `cfg.train`"
    )


def test_lines_below_that_are_of_others_are_no_part_of_the_message() -> None:
    lines = [
        "SyntaxError: invalid syntax",
        "slurmstepd: error: *** JOB 2603 ON hgx CANCELLED AT 2024-07-11T19:30:41 ***",
    ]

    assert failure_of(lines, lines[0]).message == "invalid syntax"


def test_line_that_failed_and_the_call_that_led_to_it_are_told_apart() -> None:
    own = ['  File "/srv/job/train.py", line 9, in main', "    scale(None)"]
    library = [
        '  File "/opt/v/lib/python3.11/site-packages/scales/core.py", line 4, in scale',
        "    return a * 2",
    ]
    error = "ValueError: too many values to unpack (expected 2)"

    assert "The line is `scale(None)` (`train.py:9 in main`)." in remedy([TRACEBACK, *own, error], error)
    assert "The call that led to it is `scale(None)` (`train.py:9 in main`)." in remedy(
        [TRACEBACK, *own, *library, error], error
    )


def test_condition_of_several_lines_is_not_quoted_by_halves() -> None:
    lines = [
        TRACEBACK,
        '  File "/srv/job/engine.py", line 9, in check',
        "    assert not (self.fp16",
        "AssertionError: both are on",
    ]

    told = remedy(lines, lines[-1])

    assert "self.fp16`" not in told.partition("failed")[0] and "both are on" in told


def test_caller_is_not_blamed_for_what_a_library_of_communication_reports() -> None:
    lines = [
        TRACEBACK,
        '  File "/srv/job/train.py", line 9, in main',
        "    dist.barrier()",
        '  File "/opt/v/lib/python3.11/site-packages/torch/distributed/c10d.py", line 4, in barrier',
        "    work.wait()",
        "RuntimeError: [1] is setting up NCCL communicator: store->get('0') got error: Failed to recv",
    ]

    assert remedy(lines, lines[-1]) == ""


def test_quotes_of_a_value_do_not_end_the_sentence() -> None:
    line = "NameError: name 'x' is not defined"
    lines = [TRACEBACK, '  File "/srv/job/train.py", line 9, in main', "    print(`x`)", line]

    assert "`print('x')`" in remedy(lines, line)


def test_longest_message_is_read_in_time() -> None:
    line = "ValueError: " + "unknown '" * 3000

    assert len(remedy([line] * 400, line)) < 2000


@pytest.mark.parametrize("error", ["SystemExit: 2", "KeyboardInterrupt"])
def test_program_that_ended_on_purpose_is_no_refused_call(error: str) -> None:
    own = ['  File "/srv/job/train.py", line 9, in main', "    parse()"]
    library = ['  File "/opt/v/lib/python3.11/site-packages/cli/core.py", line 4, in parse', "    leave(2)"]

    assert remedy([TRACEBACK, *own, *library, error], error) == ""


def test_advice_of_the_message_itself_comes_before_that_of_a_form() -> None:
    error = "TypeError: run() got an unexpected keyword argument 'mode'. Did you mean 'modes'?"

    told = remedy([error], error)

    assert told.startswith("The message itself says: \"Did you mean 'modes'?\". The `run` that is installed")


def test_offer_of_more_details_is_no_advice() -> None:
    error = "ValueError: the ring is open. Set RING_DEBUG=1 for more information."

    assert remedy([error], error) == ""


@pytest.mark.parametrize(
    ("kinds", "says", "leaves_out"),
    [
        ("'int' and 'NoneType'", "One side is None", "YAML"),
        ("'str' and 'int'", "A text stands where a number is wanted", "None"),
        ("'str' and 'str'", "is not defined between str and str", "number"),
        ("'tuple' and 'int'", "is not defined between tuple and int", "None"),
    ],
)
def test_operands_are_judged_by_the_kinds_that_the_message_names(
    kinds: str, says: str, leaves_out: str
) -> None:
    error = f"TypeError: unsupported operand type(s) for |: {kinds}"

    told = remedy([error], error)

    assert says in told and leaves_out not in told


def test_failure_inside_a_library_is_not_said_to_be_the_caller_s() -> None:
    lines = [
        TRACEBACK,
        '  File "/srv/job/train.py", line 9, in main',
        "    trainer.train()",
        '  File "/opt/v/lib/python3.11/site-packages/jax/_src/linalg.py", line 4, in eigh',
        "    return eigh_p.bind(x)",
        "XlaRuntimeError: INTERNAL: the ring is open",
    ]

    told = remedy(lines, lines[-1])

    assert "no more than the message is known of it" in told and "arguments" not in told


def test_a_transfer_of_another_program_is_none_of_a_scheduler_s() -> None:
    line = "NCCL operation ncclCommInitRank failed: Failed to execute operation Connect from rank 1"

    assert "HTCondor" not in remedy([line], line)
