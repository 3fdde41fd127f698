"""Recording files: contents, omitted secrets, and invalid files."""

import json

import pytest
from support.recordings import FACTS, ShortSegments, file_of

from router.config import RouterConfig
from router.recording.file import BadRecording, Beginning, Call, Recording, harmless
from router.request import Request, SamplingParams, Tenant
from router.scheduler.plan import Answer, AnswerRow
from router.scheduler.settings import Policy

SECRETS = (987654321, 876543219, 765432198, 654321987)


def told_secrets():
    """Return a recorded core that processed tokens and texts which must not appear in the file."""
    prompt, said, end, banned = SECRETS
    core = ShortSegments(Policy(), FACTS)
    core.shards_ready(FACTS, 1, 0.0)
    core.submit(Request("a", (prompt,) * 40, 40, key=prompt, end_tokens=frozenset({end}), stop_strings=("a secret",),
                        sampling=SamplingParams(banned_tokens=(banned,)), tenant=Tenant("t")), 0.0)
    for step in range(30):
        plan = core.plan(step / 10)
        token = said if step < 29 else end
        rows = {number: AnswerRow((token,), (-0.123456,)) for number in plan.expects}
        core.complete(plan.order, Answer(1, 0.01, rows, {}), {}, step / 10 + 0.05)
    assert not core.num_unfinished
    return core


def test_no_token_and_no_text_is_in_the_file(tmp_path):
    recording = file_of(told_secrets().segments(), tmp_path / "file")
    text = recording.path.read_text()
    assert not [secret for secret in (*SECRETS, "a secret", "0.123456") if str(secret) in text]


def test_a_file_holds_segments_and_calls_as_they_were_noted(tmp_path):
    core = told_secrets()
    items = list(file_of(core.segments(), tmp_path / "file"))
    assert sum(isinstance(item, Beginning) for item in items) == len(core.segments()) > 3
    calls = [item for item in items if isinstance(item, Call)]
    assert len(calls) == sum(len(segment.notes) for segment in core.segments())
    assert [call.name for call in calls[:4]] == ["shards_ready", "submit", "plan", "complete"]
    assert calls[-1].given[3:] == ((), ((1, 0),), (), ())
    assert calls[-1].outcome == (("Finished", 1, "eos_token"),)


def test_the_header_tells_settings_and_model(tmp_path):
    recording = file_of([], tmp_path / "file", config=RouterConfig(max_batch_size=9))
    assert recording.config.max_batch_size == 9
    assert recording.facts == FACTS


def test_settings_that_may_be_secret_are_left_out():
    told = harmless(RouterConfig(hostname="a.secret.place"))
    assert "hostname" not in told
    assert told["prefill_policy"] == "mixed"


@pytest.mark.parametrize(("text", "message"), [
    ("", "is empty"), ("no\n", "line 1 is not JSON"), ("[1]\n", "line 1 is no JSON object"),
    ("{}\n", "is no recording: its first line does not say so"),
    ('{"weft_recording": 7}\n', "has format 7, this weft reads 1"),
])
def test_what_is_no_recording_is_one_line(tmp_path, text, message):
    (tmp_path / "file").write_text(text)
    with pytest.raises(BadRecording, match=message):
        Recording(tmp_path / "file")


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(BadRecording, match=r"cannot read .*: No such file"):
        Recording(tmp_path / "file")


@pytest.mark.parametrize(("line", "message"), [
    ("{", "line 2 is not JSON"), ("", "line 2 is empty"), ('{"call": "plan"}', "line 2 is no event of a recording"),
    ('{"at": 1, "names": [5]}', "line 2 is no event of a recording"),
])
def test_a_bad_line_is_named(tmp_path, line, message):
    (tmp_path / "file").write_text(json.dumps({"weft_recording": 1}) + f"\n{line}\n")
    with pytest.raises(BadRecording, match=message):
        list(Recording(tmp_path / "file"))


def test_a_last_line_that_is_cut_off_is_left_out(tmp_path):
    (tmp_path / "file").write_text(json.dumps({"weft_recording": 1}) + '\n{"at": 1.0}\n{"at": 2')
    recording = Recording(tmp_path / "file")
    assert list(recording) == [Call("plan", 1.0)]
    assert recording.is_cut
