"""The small prepared data sets of the networks' tests."""

from tests.models.conftest import images, text  # noqa: F401
