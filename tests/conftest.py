"""Asserts in what tests share explain themselves as those of a test file do."""

import pytest

pytest.register_assert_rewrite("tests.contract.log", "tests.contract.doors", "tests.records")
