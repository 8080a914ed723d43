"""Writes the goldens of chat templates: what the renderer of transformers makes of templates and conversations.

    python3 -m venv venv && venv/bin/pip install jinja2==3.1.6 transformers==5.24.0
    venv/bin/python crates/tokenization/tests/goldens.py

The output is committed; the tests read it and need no Python.
"""

import datetime
import json
import pathlib
import random

import transformers.utils.chat_template_utils as renderer

NOW = datetime.datetime(2024, 7, 6, 9, 5, 3)


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


renderer.datetime = Clock

# name, template, variables as JSON text (so that duplicates and number formats are the client's)
TRAPS = [
    ("t1_tojson", "{{ x | tojson }}", r'{"x": {"b": [1, 2.5, true, null], "a": "<é&\"\\\n\u0001\u007f\u2028>", "": {}, "l": []}}'),
    ("t1_tojson_ascii", "{{ x | tojson(ensure_ascii=True) }}", r'{"x": ["é", "\ud83d\ude00", "\u007f", "a"]}'),
    ("t1_tojson_indent", "{{ x | tojson(indent=2) }}", r'{"x": {"a": [1, {"b": []}], "c": {}}}'),
    ("t1_tojson_indent_text", "{{ x | tojson(indent='\t') }}", r'{"x": {"a": [1]}}'),
    ("t1_tojson_indent_zero", "{{ x | tojson(indent=0) }}", r'{"x": {"a": [1]}}'),
    ("t1_tojson_separators", "{{ x | tojson(separators=(',', ':')) }}", r'{"x": {"a": [1, 2], "b": 3}}'),
    ("t1_tojson_separators_indent", "{{ x | tojson(indent=1, separators=(' ,', '=')) }}", r'{"x": {"a": [1, 2], "b": 3}}'),
    ("t1_tojson_sort", "{{ x | tojson(sort_keys=true) }}", r'{"x": {"b": 1, "a": {"d": 1, "c": 2}, "Z": 0, "é": 1}}'),
    ("t1_tojson_positional", "{{ x | tojson(true, 1) }}", r'{"x": {"é": [1]}}'),
    ("t1_tojson_floats", "{{ x | tojson }}", r'{"x": [1e5, 1e16, 1e-5, 0.1, -0.0, 123456789.123456789, 1.0, 5e-324]}'),
    ("t1_tojson_undefined", "{{ nothing | tojson }}", r"{}"),
    ("t1_tojson_integers", "{{ x | tojson }}", r'{"x": [0, -1, 9223372036854775807, -9223372036854775808, 18446744073709551615]}'),
    ("t2_order", "{{ x | tojson }}{{ x }}{% for k in x %}{{ k }}{% endfor %}", r'{"x": {"z": 1, "a": 2, "m": {"y": 1, "b": 2}}}'),
    ("t2_duplicates", "{{ x | tojson }}", r'{"x": {"z": 1, "a": 2, "z": {"q": 1, "p": 2, "q": 3}}}'),
    ("t2_items", "{% for k, v in x.items() %}{{ k }}={{ v }};{% endfor %}", r'{"x": {"z": 1, "a": [2]}}'),
    ("t3_prints", "{{ t }} {{ f }} {{ n }} {{ l }} {{ m }}", r'{"t": true, "f": false, "n": null, "l": [true, null, "a", 1.0], "m": {"a": "it\u0027s", "b": "\"q\"", "c": "\n"}}'),
    ("t3_floats", "{% for x in l %}{{ x }} {% endfor %}{{ l }}", r'{"l": [1e5, 1e15, 1e16, 1.5e18, 1e-4, 1e-5, 0.1, 100.0, -0.0, 2.50, 3]}'),
    ("t3_concat", "{{ 'a' ~ t ~ 1 ~ n ~ 2.0 ~ [1, 'x'] }}", r'{"t": true, "n": null}'),
    ("t3_string_filter", "{{ (x | string) + '!' }}{{ l | string }}", r'{"x": 100000.0, "l": ["a", false]}'),
    ("t3_join", "{{ l | join(', ') }}", r'{"l": [1, "a", true, null, 2.5]}'),
    ("t3_repr_characters", "{{ l }}", r'{"l": ["é", "\u00a0", "\u200b", "日本", "\u007f", "\\", "\t", "\ud83d\ude00"]}'),
    ("t3_arithmetic", "{{ 7 / 2 }} {{ 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 3 }} {{ 1 + 1.0 }}", r"{}"),
    ("t4_index", "{{ x.0 }} {{ x[1] }} {{ x[-1] }}", r'{"x": ["a", "b", "c"]}'),
    ("t4_kwargs_conditional", "{{ x | tojson(indent=2 if deep else none) }}", r'{"x": [1], "deep": false}'),
    ("t4_generation", "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n{%- generation -%} x {%- endgeneration %}{% endfor %}!", r'{"messages": [{"content": "a"}, {"content": "b"}]}'),
    ("t4_generation_scope", "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}", r"{}"),
    ("t4_break", "{% for x in l %}{% if x == 3 %}{% break %}{% endif %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", r'{"l": [0, 1, 2, 3, 4]}'),
    ("t4_slices", "{{ x[1:] }} {{ x[:-1] }} {{ x[::-1] }} {{ 'hello'[1:3] }} {{ x[::2] }}", r'{"x": [1, 2, 3, 4]}'),
    ("t4_namespace", "{% set ns = namespace(found=false, n=0) %}{% for x in l %}{% set ns.n = ns.n + x %}{% if x == 2 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }} {{ ns.n }}", r'{"l": [1, 2, 3]}'),
    ("t4_scope", "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}{% if true %}{% set x = 3 %}{% endif %}{{ x }}", r"{}"),
    ("t4_loop", "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}", r'{"l": ["a", "b"]}'),
    ("t4_loop_filter", "{% for x in l if x is not none %}{{ loop.index }}{{ x }}{% else %}none{% endfor %}", r'{"l": [null, 1, null, 2]}'),
    ("t4_macro", "{% macro f(a, b='x', c=none) -%}\n  {{ a }}{{ b }}{{ c }}\n{%- endmacro %}{{ f(1) }}{{ f(1, c=2) }}", r"{}"),
    ("t4_call_text", "{{ f | default('d') }}{{ '' | default('e', true) }}", r"{}"),
    ("t4_methods", "{{ s.strip() }}|{{ s.lstrip(' h') }}|{{ s.split(',') }}|{{ s.upper() }}|{{ s.replace('h', 'j') }}|{{ s.startswith(' h') }}|{{ s.strip().endswith('w') }}|{{ s.title() }}|{{ s.find('w') }}|{{ s.split('<x>')[-1] }}", r'{"s": " he,llo w "}'),
    ("t4_dict_methods", "{{ d.get('a') }}{{ d.get('b') }}{{ d.get('b', 1) }}{{ d.keys() | list }}{{ d.values() | list }}{{ 'a' in d }}{{ d.a is defined }}{{ d.b is defined }}", r'{"d": {"a": null}}'),
    ("t4_tests", "{{ x is string }}{{ l is iterable }}{{ d is mapping }}{{ l is sequence }}{{ n is none }}{{ 1 is number }}{{ t is boolean }}{{ t is true }}{{ 2 is even }}{{ x is iterable }}", r'{"x": "a", "l": [], "d": {}, "n": null, "t": true}'),
    ("t4_filters", "{{ l | length }}{{ l | first }}{{ l | last }}{{ l | map('upper') | list }}{{ l | reject('equalto', 'a') | list }}{{ d | selectattr('r', 'equalto', 'u') | map(attribute='c') | list }}{{ '  x ' | trim }}{{ l | reverse | list }}{{ 'ab' | capitalize }}{{ d | items | list if false }}", r'{"l": ["a", "b"], "d": [{"r": "u", "c": 1}, {"r": "s", "c": 2}]}'),
    ("t4_dictsort", "{{ d | dictsort }}{% for k, v in d | dictsort %}{{ k }}{{ v }}{% endfor %}{{ d | items | list }}", r'{"d": {"b": 1, "a": 2}}'),
    ("t4_whitespace", "  {% if true %}\n  a\n  {%- endif %}\n\n  {# comment #}\n b {{- 'c' -}}  \n d\n", r"{}"),
    ("t4_whitespace_plus", "  {%+ if true %}\n a\n {%- endif +%}\nb\n\n", r"{}"),
    ("t4_inline_if", "{{ 'a' if false }}|{{ 'b' if true else 'c' }}|{{ x if x else 'none' }}", r'{"x": ""}'),
    ("t4_set_block", "{% set x %}a{{ 1 }}b{% endset %}{{ x }}{% set a, b = 1, 2 %}{{ a }}{{ b }}", r"{}"),
    ("t4_range", "{% for i in range(3) %}{{ i }}{% endfor %}{{ range(1, 6, 2) | list }}", r"{}"),
    ("t4_strings", "{{ 'it\\'s' }}{{ \"a\\nb\" }}{{ '\\u00e9' }}{{ 'a' 'b' }}{{ 'a' * 3 }}", r"{}"),
    ("t4_comparison", "{{ 1 == 1.0 }}{{ 'a' < 'b' }}{{ 1 != 2 }}{{ not x }}{{ x and 1 }}{{ x or 'y' }}{{ 1 in [1] }}{{ 'a' not in 'bc' }}{{ [1] == [1] }}{{ {'a': 1} == {'a': 1} }}", r'{"x": ""}'),
    ("t4_list_add", "{{ l + [3] }}{{ (l + l) | length }}", r'{"l": [1, 2]}'),
    ("t4_strftime", "{{ strftime_now('%d %b %Y %H:%M:%S %A %j') }}", r"{}"),
    ("t4_dict_call", "{{ dict(a=1) }}{{ dict(a=1).a }}", r"{}"),
    ("t5_undefined", "[{{ nothing }}]{% if nothing %}a{% else %}b{% endif %}{% for x in nothing %}x{% endfor %}{{ x.missing }}", r'{"x": {}}'),
    ("t5_attribute", "{{ nothing.attribute }}", r"{}"),
    ("t5_attribute_of_missing", "{{ x.missing.attribute }}", r'{"x": {}}'),
    ("t5_call", "{{ nothing() }}", r"{}"),
    ("t5_none_attribute", "[{{ x.a }}]", r'{"x": null}'),
    ("t5_concat", "{{ 'a' + x.missing }}", r'{"x": {}}'),
    ("t6_raise", "{% if messages[0].role != 'user' %}{{ raise_exception('Roles must alternate: ' + messages[0].role) }}{% endif %}", r'{"messages": [{"role": "tool"}]}'),
    ("t6_raise_not_reached", "{{ 'ok' if messages[0].role == 'user' else raise_exception('no') }}", r'{"messages": [{"role": "user"}]}'),
    # tests and truth of what is not a list
    ("n1_tools", "{% if tools is iterable and tools | length > 0 %}x{% else %}y{% endif %}", r'{"tools": null}'),
    ("n1_tools_not_mapping", "{% if not tools is mapping and tools is iterable %}x{% endif %}{% if tools is defined and tools is not none and tools is iterable %}y{% endif %}", r'{"tools": null}'),
    ("n1_tests", "{% for x in l %}{{ x is iterable }} {{ x is sequence }} {{ x is mapping }} {{ x is string }} {{ x is number }} {{ x is integer }} {{ x is float }} {{ x is boolean }} {{ x is none }} {{ x is defined }} {{ x is true }} {{ x is false }};{% endfor %}", r'{"l": [null, true, false, 0, 1, 1.0, "", "a", [], [1], {}, {"a": 1}]}'),
    ("n1_tests_undefined", "{{ nothing is iterable }} {{ nothing is sequence }} {{ nothing is mapping }} {{ nothing is string }} {{ nothing is number }} {{ nothing is none }}", r"{}"),
    ("n1_tests_built", "{{ l[1:] is sequence }} {{ (l + l) is sequence }} {{ (l * 2) is sequence }} {{ (1, 2) is sequence }} {{ (l | map('upper')) is sequence }} {{ (l | map('upper')) is iterable }} {{ d.items() is sequence }} {{ d.keys() is iterable }}", r'{"l": ["a", "b"], "d": {"a": 1}}'),
    ("n6_trim", "{{ x | trim }}|{{ x.strip() }}|{{ x.lstrip() }}|{{ x.rstrip() }}|{{ x.isspace() }}|{{ x.split() }}", r'{"x": "\u001c\u001f \u0085\u2003x\u001dy\u200b\u001e"}'),
    ("n6_trim_characters", "{{ x | trim('-=') }}|{{ x.strip('-') }}", r'{"x": "-=a-=b=-"}'),
    ("n6_splitlines", "{{ x.splitlines() }}{{ ''.splitlines() }}{{ 'a\\n'.splitlines() }}", r'{"x": "a\u2028b\r\nc\rd\u000be\u001ff\u0085g\n\nh"}'),
    ("n6_title", "{{ x.title() }}|{{ x | title }}", r'{"x": "\u01c6ungla \ufb01x they\u0027re \u00dftraat"}'),
    ("n6_items_key", "{% if s.items.type is defined %}a{% else %}b{% endif %}[{{ s.items.type }}][{{ s['items'].type }}][{{ s.items is defined }}][{{ s.items is mapping }}][{{ s['items'] is mapping }}]", r'{"s": {"items": {"type": "string"}}}'),
    ("n6_items_method", "{{ {'a': 1}.items is defined }}{{ {'a': 1}.get is defined }}{{ d.keys is string }}{% if d.values %}x{% endif %}{{ d.update is defined }}{{ d.pop is defined }}{{ d.other is defined }}", r'{"d": {"update": 1, "a": 2}}'),
    ("n6_items_namespace", "{% set ns = namespace(items=[1], keys='k') %}{% set ns.items = ns.items + [2] %}{{ ns.items }}{{ ns.keys }}", r"{}"),
    ("n6_items_other", "{{ l.items is defined }}{{ s.keys is defined }}", r'{"l": [1], "s": "x"}'),
    ("n6_items_called", "{% for k, v in s.items() %}{{ k }}{{ v }}{% endfor %}{{ s.get('items') }}", r'{"s": {"items": 1, "get": 2}}'),
    ("n6_generator_true", "{% if l | selectattr('r', 'equalto', 'x') %}a{% else %}b{% endif %}{% if l | map(attribute='r') | list %}c{% endif %}{% if [] | reverse %}d{% endif %}{% if {} | items %}e{% endif %}{% if [] | select %}f{% endif %}{% if [] | unique %}g{% endif %}{% if [] | batch(2) %}h{% endif %}{% if [] | rejectattr('x') | list %}i{% endif %}", r'{"l": [{"r": "u"}]}'),
    ("n6_generator_once", "{% set g = l | reject('equalto', 2) %}{{ g | list }}{{ g | list }}{% set h = l | map('string') %}{% for x in h %}{{ x }}{% endfor %}{% for x in h %}{{ x }}{% endfor %}", r'{"l": [1, 2, 3]}'),
    ("n6_generator_first", "{% set g = l | select %}{{ g | first }}{{ g | first }}{{ g | join('-') }}", r'{"l": [1, 2, 3, 4]}'),
    ("n6_generator_length", "{{ l | select | length }}", r'{"l": [1]}'),
    ("n6_generator_last", "{{ l | select | last }}", r'{"l": [1]}'),
    ("n6_generator_loop", "{% for x in l | select %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{{ x }}{% endfor %}", r'{"l": [1, 2]}'),
    ("n6_generator_json", "{{ l | select | tojson }}", r'{"l": [1]}'),
    ("n6_reverse", "{{ 'abc' | reverse }}{{ l | reverse | list }}{{ l | reverse | first }}{% for x in l | reverse %}{{ x }}{% endfor %}", r'{"l": [1, 2, 3]}'),
    ("n6_escapes", "{{ '\\U0001F600\\a\\v\\f\\b\\101\\x41\\u00e9\\/\\q' }}{{ \"\\\"'\" }}{{ 'a\\\nb' }}", r"{}"),
    ("n6_views", "{{ d.items() }}{{ d.keys() }}{{ d.values() }}{{ d.items() | length }}{% if {}.items() %}x{% endif %}{{ d.items() | list }}", r'{"d": {"a": 1, "b": [2]}}'),
    ("h5_concat", "{{ 1 ~ 2.0 ~ none ~ true ~ [1e16, 'x'] ~ {'a': 1e-7} ~ nothing ~ (1,) }}{{ 'a' ~ 'b' ~ ('c' ~ 'd') | upper }}{{ 1 + 2 ~ 3 if false }}", r"{}"),
    ("h5_concat_parts", "{% set x = l[0] ~ l[1:] | length ~ f | default('-') ~ (l | join('~')) ~ '~' %}{{ x }}", r'{"l": ["a", "b"]}'),
    ("h5_join", "{{ l | join }}{{ l | join(1) }}{{ d | join(', ', attribute='a') }}{{ d | join(d=';', attribute='a.b') if false }}{{ 'abc' | join('-') }}{{ ', '.join(['a', 'b']) }}", r'{"l": [1e18, "a", [1.0]], "d": [{"a": 1}, {"a": [2]}]}'),
    ("h5_join_none", "{{ none | join }}", r"{}"),
    ("h5_text_filters", "{{ 1e16 | string }}{{ [true] | upper }}{{ 12 | lower }}{{ none | capitalize }}{{ true | title }}{{ 1.50 | trim }}{{ [1, 1] | replace(1, 2.0) }}{{ 'aaa' | replace('a', 'b', 2) }}{{ ['<'] | escape }}{{ '<' | e }}{{ [1] | safe }}", r"{}"),
    ("h5_indent", "{{ x | indent }}|{{ x | indent(2, true) }}|{{ x | indent(width='>', blank=true) }}|{{ '' | indent }}|{{ x | indent(1, first=true) }}", r'{"x": "a\n\nb\n"}'),
    ("h5_format", "{{ '%s and %s' | format('a', [1.0, none]) }}{{ '{} {x}'.format('a', x='b') }}", r"{}"),
    ("h5_replace", "{{ 'aaa'.replace('a', 'bb', 2) }}{{ 'ab'.replace('', '-') }}{{ 'aa'.replace('a', '') }}", r"{}"),
    ("h5_json_slices", "{{ l[1:] | tojson }}{{ (l + l) | tojson }}{{ (l * 2) | tojson(indent=1) }}{{ (1, 'a') | tojson }}{{ [] | tojson(indent=2) }}", r'{"l": [1, 2]}'),
    ("h5_built", "{% set a = [x, [x]] %}{% set b = {'k': a, 'x': x} %}{{ a }}{{ b }}{{ b.k[1][0].y }}{{ dict(a=a) }}{{ (a, b) }}{% for k, v in [('a', x)] %}{{ k }}{{ v }}{% endfor %}", r'{"x": {"y": 1}}'),
    ("sandbox_append", "{% set l = [] %}{{ l.append(1) }}", r"{}"),
]

# Written for these tests: one for each manner in which templates of published models are written.
MANNERS = {
    "turns": """{%- for message in messages %}
{{- '<|start|>' + message['role'] + '\\n' + message['content'] | trim + '<|end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start|>assistant\\n' }}
{%- endif %}
""",
    "tools": """{%- if tools %}
    {{- '<|start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "Tools:" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|start|>system\\n' + messages[0].content + '<|end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, seen=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if not ns.seen and message.role == "user" and message.content is string %}
        {%- set ns.seen = true %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|start|>' + message.role + '\\n' + message.content + '<|end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|start|>assistant' }}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none and loop.index0 > ns.last %}
            {{- '\\n<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>' }}
        {%- endif %}
        {%- if message.content %}
            {{- '\\n' + message.content.split('</think>')[-1].lstrip('\\n') }}
        {%- endif %}
        {%- for call in message.tool_calls %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<call>{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}{{- call.arguments | tojson }}{{- '}</call>' }}
        {%- endfor %}
        {{- '<|end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != "tool" %}
            {{- '<|start|>user' }}
        {%- endif %}
        {{- '\\n<result>\\n' }}{{- message.content }}{{- '\\n</result>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}
            {{- '<|end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    "dates": """{{- bos_token }}
{%- if not date is defined %}
    {%- set date = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "[header]system[/header]\\n\\nToday: " + date + "\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system }}{{- "[eot]" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '[header]' + message['role'] + '[/header]\\n\\n' + message['content'] | trim + '[eot]' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("Only one tool call at once: " ~ message.tool_calls | length) }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '[header]assistant[/header]\\n\\n' }}
        {{- call.name + "(" }}
        {%- for name, value in call.arguments | items %}
            {{- name + '="' ~ value ~ '"' }}{%- if not loop.last %}, {% endif %}
        {%- endfor %}
        {{- ")[eot]" }}
    {%- else %}
        {{- "[header]ipython[/header]\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "[eot]" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[header]assistant[/header]\\n\\n' }}
{%- endif %}
""",
    "strict": """{%- if messages[0]["role"] == "system" %}
    {%- set system = messages[0]["content"] %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{%- set users = rest | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in rest %}
    {%- if message.role == "user" or (message.role == "assistant" and message.tool_calls is not defined) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("Roles must alternate after " + message["role"]) }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in rest %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == users[-1]) %}
            {{- "[TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
        {%- endif %}
        {%- if loop.last and system is defined %}
            {{- "[INST] " + system + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[CALLS] " }}
        {%- for call in message.tool_calls %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] }}{{- ', "id": "' + call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[RESULT] {"content": ' + message.content | string + "}" }}
    {%- else %}
        {{- raise_exception("Unknown role " ~ message["role"]) }}
    {%- endif %}
{%- endfor %}
""",
    "parts": """{%- for message in messages -%}
<{{ message.role }}>
{%- if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'text' -%}{{ part.text | trim }}{%- elif part.type == 'image' -%}<image>{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<assistant>{%- endif -%}
""",
}

WORDS = ["hello", "World", "  spaces ", "é", "日本語", "😀", "it's", '"quoted"', "<|end|>", "\n", "\n\n", "\t", "{{ x }}", "a<b&c", "1e5", "\\n", "</think>", "\u2028", "ß", ""]


def text(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, 5)))


def value(rng, depth=2):
    kind = rng.randint(0, 8 if depth else 5)
    if kind <= 1:
        return text(rng)
    if kind == 2:
        return rng.randint(-(10**6), 10**12)
    if kind == 3:
        return rng.choice([0.5, 1e5, 1e16, 1e-5, -0.0, 3.14159, 1e22 / 7e5, 2.0])
    if kind == 4:
        return rng.choice([True, False, None])
    if kind == 5:
        return rng.choice([[], {}])
    if kind == 6:
        return [value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(WORDS) + str(i): value(rng, depth - 1) for i in range(rng.randint(0, 3))}


def conversation(rng, parts):
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": text(rng)})
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": text(rng)})
        if rng.random() < 0.35:
            calls = [
                {"id": f"call{i}", "type": "function", "function": {"name": f"f{i}", "arguments": {f"k{j}": value(rng) for j in range(rng.randint(0, 2))}}}
                for i in range(rng.choice([1, 1, 1, 2]))
            ]
            messages.append({"role": "assistant", "content": rng.choice(["", text(rng)]), "tool_calls": calls})
            for call in calls:
                messages.append({"role": "tool", "content": text(rng), "tool_call_id": call["id"]})
        if rng.random() < 0.8:
            answer = {"role": "assistant", "content": text(rng)}
            if rng.random() < 0.3:
                answer["reasoning_content"] = text(rng)
            messages.append(answer)
    if rng.random() < 0.05:
        messages.append({"role": "critic", "content": "x"})
    if parts:
        for message in messages:
            if rng.random() < 0.7:
                message["content"] = [{"type": "text", "text": text(rng)} for _ in range(rng.randint(0, 2))]
    variables = {
        "messages": messages,
        "tools": None,
        "documents": None,
        "add_generation_prompt": rng.random() < 0.7,
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    if rng.random() < 0.4:
        variables["tools"] = [
            {"type": "function", "function": {"name": f"f{i}", "description": text(rng), "parameters": value(rng, 3)}}
            for i in range(rng.randint(1, 2))
        ]
    if rng.random() < 0.3:
        variables["enable_thinking"] = rng.random() < 0.5
    return variables


def render(template, variables):
    try:
        return {"text": renderer._compile_jinja_template(template).render(**variables)}
    except Exception as error:  # the kind matters, and the text only where the template wrote it
        kind = type(error).__name__
        return {"raised": str(error)} if kind == "TemplateError" else {"fails": kind}


def main():
    directory = pathlib.Path(__file__).parent / "goldens"
    traps = []
    for name, template, variables in TRAPS:
        traps.append({"name": name, "template": template, "variables": variables, **render(template, json.loads(variables))})
    rng = random.Random(1337)
    conversations = []
    names = list(MANNERS)
    for index in range(500):
        name = names[index % len(names)]
        variables = conversation(rng, name == "parts")
        source = json.dumps(variables, ensure_ascii=rng.random() < 0.5)
        conversations.append({"manner": name, "variables": source, **render(MANNERS[name], json.loads(source))})
    write(directory / "traps.json", {"cases": traps})
    write(directory / "conversations.json", {"manners": MANNERS, "cases": conversations})


def write(path, content):
    # a case a line
    cases = content.pop("cases")
    head = "".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)},\n" for key, value in content.items())
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    path.write_text("{\n" + head + '"cases": [\n' + lines + "\n]\n}\n")


main()
