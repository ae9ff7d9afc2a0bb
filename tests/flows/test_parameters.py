"""A deployment's page of a flow: the names of its runs, its parameters, and why it failed."""

import pytest
from prefect.context import FlowRunContext
from prefect.utilities.callables import parameter_schema

from flows.definition import failing_in_one_line
from flows.parameters import name_of
from flows.pipeline import pipeline
from flows.train import train
from reread.planning.experiment import experiments
from reread.planning.resolve import make_plan
from reread.storage.errors import InputError, TransientError


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"experiment": "imdb", "variants": None, "seeds": None, "overrides": None, "plan": None}, "imdb"),
        ({"experiment": "tiny", "variants": ["han", "gru-flat"], "seeds": [0]}, "tiny: han, gru-flat, seeds 0"),
        ({"experiment": "tiny", "variants": list("abcde"), "seeds": [*range(9)]}, "tiny: 5 variants, seeds 9 in all"),
        ({"experiment": "tiny", "overrides": ["training.max_epochs=1"]}, "tiny: training.max_epochs=1"),
    ],
)
def test_a_flow_run_is_named_by_its_experiment_and_selection(parameters, name):
    assert name_of(parameters) == name


def test_a_plan_that_is_handed_down_names_the_run():
    for plan, name in ((make_plan("tiny"), "tiny"), (make_plan("tiny", ["han"], [1]), "tiny: han, seeds 1")):
        assert name_of({"experiment": "default", "plan": plan}) == name


def test_the_parameters_of_a_deployment_are_described_with_the_experiments_to_choose_from():
    for flow in (pipeline, train):
        properties = parameter_schema(flow).properties
        assert properties["experiment"]["enum"] == experiments()
        assert properties["experiment"]["default"] == "default"
        assert all(about["description"] for about in properties.values())


@pytest.mark.parametrize("error", [InputError("variant 'hat': did you mean 'han'?"), TransientError("busy")])
def test_a_failure_begins_with_what_to_do(monkeypatch, error):
    def fail():
        raise error

    # Outside a flow run, as in a stage of DVC, it is raised.
    with pytest.raises(type(error)):
        failing_in_one_line(fail)()
    monkeypatch.setattr(FlowRunContext, "get", lambda: object())
    state = failing_in_one_line(fail)()
    assert state.is_failed() and state.data is error
    assert state.message.startswith(str(error))
