"""Write each `*.yml` of this directory from its `*.yml.j2`. Commit both; edit only the template."""

from pathlib import Path

import jinja2

HERE = Path(__file__).resolve().parent
NOTICE = "# Generated from {template} by generate_github_workflows.py. Edit the template, not this file.\n"


def render(template: Path) -> str:
    # `{{ }}` belongs to GitHub's own expressions, so the template uses other delimiters.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
    )
    return NOTICE.format(template=template.name) + environment.get_template(template.name).render() + "\n"


def main() -> None:
    for template in sorted(HERE.glob("*.yml.j2")):
        target = template.with_suffix("")
        target.write_text(render(template), encoding="utf-8")
        print(f"{template.name} -> {target.name}")


if __name__ == "__main__":
    main()
