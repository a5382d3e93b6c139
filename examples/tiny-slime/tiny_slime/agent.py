"""What an agent rollout needs: the tool calls in a response, and which turns of a conversation are trained on."""

import json
import re

CALL = re.compile(r"<tool>(\w+)\s*(\{.*?\})</tool>", re.DOTALL)


def tool_calls(response):
    """(name, arguments) of each call; a call whose arguments are not JSON is left out, as no tool could answer it."""
    calls = []
    for name, arguments in CALL.findall(response):
        try:
            calls.append((name, json.loads(arguments)))
        except json.JSONDecodeError:
            continue
    return calls


class Transcript:
    def __init__(self):
        self.turns = []

    def add(self, role, text):
        self.turns.append((role, text))
        return self

    def words(self):
        return [word for _, text in self.turns for word in text.split()]

    def loss_mask(self):
        """1 for each word the policy wrote, 0 for each it only read."""
        return [int(role == "assistant") for role, text in self.turns for _ in text.split()]
