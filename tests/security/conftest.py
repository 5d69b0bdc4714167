"""As in the acceptance tests: whatever is provoked, no fault is logged."""

from __future__ import annotations

from tests.acceptance.conftest import _no_faults_in_the_log

__all__ = ["_no_faults_in_the_log"]
