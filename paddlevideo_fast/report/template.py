"""The template of the page, for Jinja2."""

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{{ page.title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 70rem; margin: 0 auto; }
body { padding: 1rem 2rem 4rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; } th, td { padding: .15rem .8rem .15rem 0; text-align: left; }
th { font-weight: 600; color: #555; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
tbody tr:nth-child(odd) { background: #f6f7f9; } .scrolls { max-height: 26rem; overflow: auto; }
.curves { display: flex; flex-wrap: wrap; gap: 1rem; } .curves svg { max-width: 100%; height: auto; }
figure { margin: 0 0 1rem; } figure img, .confusion { max-width: 100%; } figcaption { font-size: .85rem; }
.right { color: #1a7f37; } .wrong { color: #b3261e; }
pre { background: #f6f7f9; padding: 1rem; overflow: auto; }
</style>
</head>
<body>
<h1>{{ page.title }}</h1>
{% macro pairs(values) %}
<table>
{% for name, value in values.items() %}
<tr><th>{{ name }}</th><td>{{ value | shown }}</td></tr>
{% endfor %}
</table>
{% endmacro %}
{% macro rows(values) %}
<div class="scrolls"><table>
<thead><tr>{% for name in values[0] %}<th>{{ name.replace("_", " ") }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in values %}
<tr>
{% for value in row.values() %}
<td{% if value is number %} class="number"{% endif %}>{{ value | shown }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table></div>
{% endmacro %}
{{ pairs(page.facts) }}
{% if page.metrics %}
<h2 id="metrics">Metrics</h2>
{{ pairs(page.metrics) }}
{% endif %}
{% if page.curves %}
<h2 id="curves">Curves</h2>
<div class="curves">
{% for svg in page.curves.values() %}
{{ svg | safe }}
{% endfor %}
</div>
{% endif %}
{% if page.confusion_png %}
<h2 id="confusion">Confusion matrix</h2>
<img class="confusion" alt="confusion matrix" src="{{ page.confusion_png | png }}">
{% endif %}
{% if page.examples %}
<h2 id="examples">Example clips</h2>
{% for example in page.examples %}
<figure>
<img alt="frames of {{ example.path }}" src="{{ example.sheet | jpeg }}">
<figcaption>{{ example.path }}: {{ example.label }}; predicted
<span class="{{ "right" if example.predicted == example.label else "wrong" }}">{{ example.predicted }}</span>
({{ "%.1f" | format(100 * example.score) }} %)</figcaption>
</figure>
{% endfor %}
{% endif %}
{% if page.hardest %}
<h2 id="hardest">Worst videos</h2>
{{ rows(page.hardest) }}
{% endif %}
{% if page.classes %}
<h2 id="classes">Classes</h2>
{{ rows(page.classes) }}
{% endif %}
{% if page.config %}
<h2 id="config">Config</h2>
<details open><summary>as it was used</summary><pre>{{ page.config }}</pre></details>
{% endif %}
<h2 id="versions">Versions</h2>
{{ pairs(versions) }}
</body>
</html>
"""
