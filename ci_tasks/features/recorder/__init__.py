"""What a test of the checkout launches: read from its syntax tree, or recorded under stubs in a sandbox."""

from ci_tasks.registry import Feature

FEATURE = Feature("recorder")
