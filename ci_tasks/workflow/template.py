"""A workflow template (`pr-test.yml.j2`) → workflow text, with the delimiters that the template itself uses.

slime's generator renders its template with `<% %>` and `<< >>`, so that GitHub's own `${{ }}` passes through; a
template without those uses jinja2's ordinary delimiters. A name that is not there is empty, as for that generator, so
that the text is the one CI has. Rendering is sandboxed: a template is a checkout's data, not our code.
"""

from __future__ import annotations

import traceback

from ci_tasks.errors import WorkflowError


def render(text: str, file: str) -> str:
    """The workflow that the template gives. Raises WorkflowError with the template's line."""
    import jinja2
    from jinja2.exceptions import SecurityError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        """Refuses at once: the text of what was refused would otherwise be silently empty."""

        def unsafe_undefined(self, obj: object, attribute: str) -> jinja2.Undefined:
            raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__} is unsafe")

    environment = Sandbox("<%", "%>", "<<", ">>") if "<%" in text else Sandbox()
    try:
        return environment.from_string(text).render()
    except jinja2.TemplateSyntaxError as error:
        cause: Exception = error
        line, why = error.lineno, f"the template has an error: {error.message}"
    except Exception as error:  # whatever the template's own code raises, 1/0 as well
        # jinja2 writes the template's lines into the traceback
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
        cause, line, why = error, (frames[-1].lineno if frames else 0) or 1, f"the template cannot be rendered: {error}"
    quoted = "".join(text.splitlines()[line - 1 : line])
    raise WorkflowError(why, file=file, line=line, text=quoted) from cause
