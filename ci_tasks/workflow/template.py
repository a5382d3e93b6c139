"""A workflow template (`pr-test.yml.j2`) → workflow text, with the delimiters that the template itself uses.

slime's generator renders its template with `<% %>` and `<< >>`, so that GitHub's own `${{ }}` passes through; a template
without those uses jinja2's ordinary delimiters. Rendering is sandboxed: a template is a checkout's data, not our code.
"""

from __future__ import annotations

from ci_tasks.errors import WorkflowError


def render(text: str, file: str) -> str:
    """The workflow that the template gives. Raises WorkflowError with the template's line."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    delimiters = (
        {
            "block_start_string": "<%",
            "block_end_string": "%>",
            "variable_start_string": "<<",
            "variable_end_string": ">>",
        }
        if "<%" in text
        else {}
    )
    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, **delimiters)  # type: ignore[arg-type]
    try:
        return environment.from_string(text).render()
    except jinja2.TemplateSyntaxError as error:
        raise WorkflowError(f"the template has an error: {error.message}", file=file, line=error.lineno) from None
    except jinja2.TemplateError as error:
        raise WorkflowError(f"the template cannot be rendered: {error}", file=file) from None
