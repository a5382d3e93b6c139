"""A template gives the text that the checkout's own generator gives, and can do nothing else."""

from __future__ import annotations

import pytest

from ci_tasks.errors import WorkflowError
from ci_tasks.workflow.reader import render_template

SLIME = """\
<% set jobs = {'ckpt': {'label': 'run-ci-ckpt', 'image': 'x:1'}, 'cpu': {}} %>
<% for name, config in jobs.items() %>
  << name >>: ${{ matrix.x }} << config.image if config.image else 'default' >> {{ kept }}
<% endfor %>"""


def test_angled_delimiters_leave_githubs_own_alone() -> None:
    assert render_template(SLIME, "w.j2").split("\n") == [
        "",
        "",
        "  ckpt: ${{ matrix.x }} x:1 {{ kept }}",
        "",
        "  cpu: ${{ matrix.x }} default {{ kept }}",
        "",
    ]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        # jinja2's ordinary delimiters where there are no angled ones.
        ("{% for n in [1, 2] %}{{ n }}{% endfor %}", "12"),
        ("{% raw %}${{ github.sha }}{% endraw %}", "${{ github.sha }}"),
        # A name that is not there is empty, and false.
        ("<% if typo %>a<% else %>b<% endif %><< typo >>", "b"),
        # One line end at the end is dropped, as the generator does it.
        ("a\n\n", "a\n"),
        ("übung <% set x = 'ß' %><< x >>", "übung ß"),
        ("", ""),
    ],
)
def test_a_template_is_rendered_as_its_generator_does(template: str, text: str) -> None:
    assert render_template(template, "w.j2") == text


ERRORS = [
    ("a\n<% fro x in y %>\n", 2, "Encountered unknown tag 'fro'", "<% fro x in y %>"),
    ("a\n{% if x %}b", 2, "Unexpected end of template", "{% if x %}b"),
    ("a\nb << 1 + >>\n<% set x = 1 %>", 2, "unexpected", "b << 1 + >>"),
    # While rendering, in whatever way: the line is that of the template too.
    ("a\n\n<< x.y.z >><% set q = 1 %>\n", 3, "'x' is undefined", "<< x.y.z >>"),
    ("a\n{{ 1 / 0 }}\n", 2, "division by zero", "{{ 1 / 0 }}"),
    ("{{ 'a' + 1 }}\n", 1, "can only concatenate str", "{{ 'a' + 1 }}"),
    ("{% include 'other' %}", 1, "no loader", "{% include 'other' %}"),
    # A template is a checkout's data: it reaches nothing of ours and changes nothing.
    ("a\n{{ ''.__class__.__mro__ }}\n", 2, "'__class__' of a str is unsafe", "__class__"),
    ("{{ ''.__class__ }}", 1, "'__class__' of a str is unsafe", "__class__"),
    ("{{ [].append(1) }}", 1, "'append' of a list is unsafe", "append"),
    ("{{ range(10000000) | length }}", 1, "Range too big", "range"),
    ("{{ self.__init__.__globals__ }}", 1, "unsafe", "__globals__"),
]


@pytest.mark.parametrize(("template", "line", "message", "text"), ERRORS, ids=[case[2] for case in ERRORS])
def test_a_broken_template_names_its_line_and_text(template: str, line: int, message: str, text: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        render_template(template, "w.j2")
    assert str(caught.value).startswith(f"w.j2:{line}: the template ")
    assert message in str(caught.value)
    assert text in caught.value.text
