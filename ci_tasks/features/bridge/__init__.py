"""Megatron-Bridge's own CI: its unit and functional rows, and its weekly verl rows."""

from ci_tasks.registry import Feature

FEATURE = Feature("bridge", suite="ci_tasks.features.bridge.suite:SUITE")
