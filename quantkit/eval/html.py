"""The HTML page of an evaluation: tables, a histogram of the divergence, the worst places."""

from collections.abc import Sequence
from dataclasses import dataclass

import jinja2

from quantkit.eval.divergence import Bin
from quantkit.eval.result import EvalResult
from quantkit.eval.windows import SCORED_RULE

Figures = tuple[EvalResult, list[tuple[str, str]], list[tuple[str, str, str]]]

_WIDTH, _HEIGHT, _MARGIN = 640, 160, 40

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>quantkit eval: {{ figures[0][0].model }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { border-bottom: 1px solid #ccc; padding: .2em .8em .2em 0; text-align: left;
  vertical-align: top; }
td.text { font-family: monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.failed { color: #b00020; font-weight: bold; }
rect { fill: #3b6ea8; }
text { font-size: 11px; }
</style>
</head>
<body>
<h1>quantkit eval</h1>
<table>
<tr>{% for name in header %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
<p>Scored: {{ rules[figures[0][0].score] }}.</p>
{% for result, table, gates in figures %}
<h2>{{ result.model }}</h2>
{% for line in result.warnings %}<p class="failed">{{ line }}</p>
{% endfor %}<table>
{% for label, value in table %}<tr><th>{{ label }}</th><td>{{ value }}</td></tr>
{% endfor %}</table>
{% if gates %}<h3>Gates</h3>
<table>
{% for gate, value, verdict in gates %}<tr><td>{{ gate }}</td><td>{{ value }}</td>
<td class="{{ verdict }}">{{ verdict }}</td></tr>
{% endfor %}</table>
{% endif %}{% if result.kl_histogram %}<h3>Positions by divergence (nats)</h3>
{% set chart = bars(result.kl_histogram) %}
<svg viewBox="0 0 {{ width }} {{ height }}" width="{{ width }}" role="img"
 aria-label="histogram of the divergence">
{% for bar in chart %}<rect x="{{ bar.x }}" y="{{ bar.y }}" width="{{ bar.width }}"
 height="{{ bar.height }}"><title>{{ bar.title }}</title></rect>
<text x="{{ bar.x }}" y="{{ height - 24 }}">{{ bar.label }}</text>
{% endfor %}</svg>
{% endif %}<h3>Worst positions</h3>
<table>
<tr><th>nats</th><th>where</th><th>text before</th><th>text</th><th>model</th>
{% if result.baseline %}<th>baseline</th>{% endif %}</tr>
{% for at in result.worst_positions %}<tr><td>{{ "%.3g" | format(at.value) }}</td>
<td>{{ at.source }}, token {{ at.token }}</td><td class="text">{{ at.context }}</td>
<td class="text">{{ at.target }}</td><td class="text">{{ at.predicted }}</td>
{% if result.baseline %}<td class="text">{{ at.predicted_baseline }}</td>{% endif %}</tr>
{% endfor %}</table>
<h3>Worst windows</h3>
<table>
<tr><th>mean nats</th><th>where</th><th>text</th></tr>
{% for at in result.worst_windows %}<tr><td>{{ "%.3g" | format(at.value) }}</td>
<td>{{ at.source }}, from token {{ at.start }}</td><td class="text">{{ at.excerpt }}</td></tr>
{% endfor %}</table>
{% endfor %}</body>
</html>
"""


@dataclass(frozen=True)
class Bar:
    """One bar of a chart, in pixels; `label` stands below it, `title` shows when pointed at."""

    x: float
    y: float
    width: float
    height: float
    label: str
    title: str


def html_page(
    header: Sequence[str], rows: Sequence[Sequence[str]], figures: Sequence[Figures]
) -> str:
    """One page that needs no other file.

    Args:
        header, rows: table that compares the models.
        figures: of each model its result, its figures as label and value, and its gates.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(_PAGE).render(
        header=header,
        rows=rows,
        figures=figures,
        rules=SCORED_RULE,
        bars=bars,
        width=_WIDTH,
        height=_HEIGHT,
    )


def bars(bins: Sequence[Bin]) -> list[Bar]:
    """Bars of a histogram, the highest as high as the chart; every other one has a label."""
    most = max(1, *(each.count for each in bins))
    step = _WIDTH / len(bins)
    full = _HEIGHT - _MARGIN
    found = []
    for number, each in enumerate(bins):
        height = round(full * each.count / most, 1)
        label = "" if number % 2 == 0 else f"{each.low:.0e}"
        found.append(
            Bar(
                x=round(number * step, 1),
                y=round(full - height, 1),
                width=round(step - 2, 1),
                height=height,
                label=label,
                title=f"{each.low:.2g} to {each.high:.2g}: {each.count}",
            )
        )
    return found
