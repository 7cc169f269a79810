"""Tests of gpu-runner. What several test modules use lives in ``tests.support``."""

import pytest

pytest.register_assert_rewrite("tests.support")  # so that a helper's assert shows its values, as a test's does
