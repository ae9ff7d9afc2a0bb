"""The flow of training says what the plan can reach before it touches a run."""

import pytest

import flows.train
from reread.planning.resolve import make_plan


class Stop(Exception):
    """Raised where training would begin."""


def test_what_can_be_reached_is_printed_before_anything_is_trained(monkeypatch, capsys):
    def stop():
        raise Stop

    monkeypatch.setattr(flows.train, "settle", lambda *_: stop())
    plan = make_plan("tiny", ["densenet-relu", "densenet-swish"])
    with pytest.raises(Stop):
        flows.train.train.fn(plan=plan)
    printed = capsys.readouterr().out
    assert "swish: 2 seeds and 1 comparison can show no direction" in printed
    assert "the spread between seeds is not known" in printed
    assert "warning: swish: 2 seeds and 1 comparison can support or refute nothing" in printed
