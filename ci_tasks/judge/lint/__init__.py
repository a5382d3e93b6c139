"""What is wrong with a checkout's CI before anything runs. Text in, findings out."""

from ci_tasks.judge.lint.finding import RULES, Finding, Rule
from ci_tasks.judge.lint.rules import lint
from ci_tasks.judge.lint.subject import Subject

__all__ = ["RULES", "Finding", "Rule", "Subject", "lint"]
