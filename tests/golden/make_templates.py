"""Golden renderings of chat templates, made with jinja2 as transformers sets it up.

    pip install jinja2==3.1.6 transformers==5.24.0     (no torch needed)
    python tests/golden/make_templates.py              writes tests/golden/templates/renderings.json

Each template of tests/golden/templates/*.jinja meets each conversation below; the result is the text, or the
message of raise_exception, or null where jinja2 fails in its own words.
"""
import json
import pathlib

import jinja2
from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = pathlib.Path(__file__).parent / "templates"

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Wetter für einen \"Ort\" <holen> & so",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "Stadt, z. B. Köln 🌧"},
            "unit": {"type": "string", "enum": ["c", "f"]},
            "days": {"type": "integer", "default": 1.5}}, "required": ["city"]}}},
    {"type": "function", "function": {
        "name": "noop", "description": "Does nothing", "parameters": {"type": "object", "properties": {}}}},
]
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "abcdef123", "type": "function",
     "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2, "deep": {"a": [1, None, True]}}}}]}
SYSTEM = {"role": "system", "content": "Be brief."}


def user(text):
    return {"role": "user", "content": text}


def bot(text, **more):
    return {"role": "assistant", "content": text, **more}


CONVERSATIONS = {
    "one user": dict(messages=[user("Hi")], add_generation_prompt=True),
    "system, no prompt": dict(messages=[SYSTEM, user("Hi")], add_generation_prompt=False),
    "many turns": dict(messages=[SYSTEM, user(" a\n"), bot("b "), user("c"), bot("\n\nd\n"), user("e")],
                       add_generation_prompt=True),
    "unicode and newlines": dict(messages=[user("  \u00a0Grüße 👩‍👩‍👧\n\nไทย\r\n\t\u3000"), bot("ﬁ\u200b"), user("İ\x85")],
                                 add_generation_prompt=True),
    "template marks in content": dict(
        messages=[user("{{ 7*7 }} {% raw %} {# x #} <|im_end|> </s> [INST] <end_of_turn>"), bot("{%- endif %}"), user("}}")],
        add_generation_prompt=True),
    "empty content": dict(messages=[user(""), bot(""), user("")], add_generation_prompt=True),
    "blank lines": dict(messages=[{"role": "system", "content": "\n"}, user("\n\n"), bot(" \n\t\n"), user("\n\na\n\n\nb\n \n")],
                        add_generation_prompt=True),
    "two users in a row": dict(messages=[user("a"), user("b")], add_generation_prompt=True),
    "assistant first": dict(messages=[bot("a"), user("b")], add_generation_prompt=True),
    "no messages": dict(messages=[], add_generation_prompt=True),
    "list content": dict(messages=[{"role": "user", "content": [{"type": "text", "text": " one "}, {"type": "text", "text": "two"}]}],
                         add_generation_prompt=True),
    "content none": dict(messages=[user("x"), bot(None), user("y")], add_generation_prompt=True),
    "thinking": dict(messages=[user("q"), bot("<think>\nhm\n</think>\n\nanswer"), user("more"),
                               bot("done", reasoning_content="\nwhy\n")], add_generation_prompt=False),
    "thinking off": dict(messages=[user("q")], add_generation_prompt=True, enable_thinking=False),
    "tools": dict(messages=[SYSTEM, user("Weather?")], tools=TOOLS, add_generation_prompt=True),
    "tools, call and answer": dict(
        messages=[user("Weather?"), CALL, {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather", "content": "{\"t\": 7}"},
                  {"role": "tool", "tool_call_id": "abcdef124", "name": "noop", "content": "rain"},
                  bot("7 degrees", reasoning_content="read it"), user("thanks")], tools=TOOLS, add_generation_prompt=True),
    "built-in tools": dict(messages=[user("Hi")], builtin_tools=["brave_search", "code_interpreter", "wolfram_alpha"], add_generation_prompt=True),
    "documents": dict(messages=[SYSTEM, user("Hi")], documents=[{"title": "T", "text": "x\ny"}, {"title": "U", "text": "z"}], add_generation_prompt=True),
    "tools given as none": dict(messages=[user("Hi")], tools=None, add_generation_prompt=True),
}
# Python's and Jinja's meaning in small: each is rendered with VARIABLES.
VARIABLES = {"d": {"a": 1, "b": "x", "Ä": [1, 2]}, "s": "  Straße aXbXc 漢字😀\n", "e": "", "i": 7, "neg": -3, "fl": 2.5,
             "big": 1e22, "small": 1e-7, "one": 1.0, "ctl": "<é😀\x01\x7f/\"\\\b\f\r>", "yes": True, "no": False, "nil": None, "le": [], "words": ["b", "A", "c d"],
             "l": [3, 1, "q", [1, {"k": None}], None, True, "it's", "\"'\t\u200b"],
             "people": [{"n": "a", "age": 3}, {"n": "b"}, {"n": "c", "age": 0}]}
SNIPPETS = [
    "{{ true }} {{ none }} {{ False }} {{ fl }} {{ big }} {{ small }} {{ one }} {{ -i }} {{ - neg }}", "{{ 7 % 3 }} {{ -7 % 3 }} {{ 2 - -2 }} {{ 1 + 2 - 4 }} {{ 'a' ~ none ~ fl ~ 'b' }} {{ 1 ~ 2 }}",
    "{{ 1 == one }} {{ 1 == true }} {{ '1' == 1 }} {{ [1, 2] == [1, 2] }} {{ {'a': 1} == d }} {{ {'b': 'x', 'Ä': [1, 2], 'a': 1} == d }} {{ nil == no }} {{ [1] + [2] == [1, 2] }} {{ nil != none }}",
    "{{ 1 < 2 }} {{ 3 <= 2 }} {{ 2 >= 2 }} {{ 2 > 2 }} {{ not 1 == 2 }} {{ not no and yes }}", "{{ 1 < 'a' }}", "{{ 1 + 'a' }}", "{{ 'a' + none }}",
    "{{ 'a' in d }} {{ 'a' not in words }} {{ 1 in l }} {{ 'X' in s }} {{ 'x' in undef }} {{ '' in e }}", "{{ 1 in 'x' }}", "{{ 1 in none }}",
    "{{ s[2] }}|{{ s[-2] }}|{{ s[2:8] }}|{{ s[::-1] }}|{{ s[-4:-1] }}|{{ s[:99] }}|{{ s[99] }}|{{ l[::2] | tojson }}|{{ l[5:1:-2] | tojson }}|{{ l[-1:] | tojson }}|{{ l[9] }}|{{ l[:-9] | length }}",
    "{{ s | length }} {{ s | trim }}. {{ 'xax' | trim('x') }} {{ none | trim }} {{ i | trim }}",
    "{{ s.split('X') | tojson }} {{ 'a,b,,c'.split(',') | join('|') }} {{ ''.split(',') | length }} {{ 'a'.split('a')[-1] }}", "{{ 'a'.split('') }}",
    "{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ 'xxaxyx'.strip('xy') }}|{{ 'xax'.rstrip('x') }}|{{ 'éaé'.lstrip('é') }}|{{ 'aXbX'.replace('X', '') }}|{{ 'aXbX'.replace('X', 'é') }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith('') }} {{ 'a'.endswith('ba') }} {{ 'a'.startswith('ab') }}",
    "{{ d.get('a') }} {{ d.get('z') }} {{ d.get('z', 'w') }} {% for k, v in d.items() %}{{ k }}={{ v | tojson }};{% endfor %}{% for k, v in d | items %}{{ loop.index }}{{ k }}{% endfor %}",
    "{{ d.a }}{{ d['b'] }}{{ d.nope }}{{ nil.x }}{{ i.x }}{{ s.x }}{{ l[0] }}{{ d[0] }}{{ d['x']['y'] if d.x else '-' }}", "{{ undef.x }}", "{{ d.x.y }}", "{{ d['x']['y'] }}", "{{ undef['x'] }}", "{{ undef + 'a' }}", "{{ undef.strip() }}",
    "{{ undef }}[{{ undef | length }}{{ undef | trim }}{{ undef | join }}{{ undef == undef2 }}{{ undef ~ 'x' }}]", "{{ undef | tojson }}", "{{ undef < 1 }}", "{{ -undef }}", "{{ none | length }}", "{{ 5 | length }}",
    "{{ undef | default('w') }} {{ e | default('w') }} {{ e | default('w', true) }} {{ none | default('w') }} {{ none | default('w', boolean=true) }} {{ undef | default }}",
    "{{ l | tojson }} {{ d | tojson(indent=2) }} {{ le | tojson(indent=2) }} {{ {} | tojson(indent=4) }} {{ ctl | tojson }} {{ 'é😀' | tojson(ensure_ascii=false) }} {{ fl | tojson }}",
    "{{ words | join }} {{ words | join(', ') }} {{ [1, none, true] | join('|') }} {{ 'abc' | join('.') }}",
    "{{ people | selectattr('age') | list | length }} {{ people | selectattr('age', 'defined') | list | tojson }} {{ people | selectattr('age', 'equalto', 3) | list | tojson }} {{ words | reject('equalto', 'A') | join(', ') }} {{ l | reject('none') | list | length }} {{ words | reject('in', ['b']) | join }}",
    "{{ d | list | join }} {{ 'ab' | list | tojson }} {{ 3 | string ~ 4 | string }} {{ 'x' | trim ~ 'y' | trim }} {{ -i | string }} {{ 'a' | safe }}",
    "{{ i is defined }}{{ undef is defined }}{{ undef is undefined }}{{ nil is none }}{{ s is string }}{{ d is mapping }}{{ l is mapping }}{{ s is iterable }}{{ i is iterable }}{{ l is sequence }}{{ d is sequence }}{{ no is false }}{{ 1 is true }}{{ yes is true }}{{ undef is iterable }}{{ i is eq(7) }}{{ i is equalto(7) }}{{ 'a' is in(d) }}{{ i is not none }}{{ not i is none }}{{ undef is not defined and i is defined }}",
    "{{ raise_exception is defined }} {{ strftime_now is defined }} {{ nothing_here is defined }} {{ namespace is defined }}",
    "{% set ns = namespace(a=1, b='x') %}{% for x in words %}{% set ns.a = ns.a + loop.index %}{% set y = x %}{% endfor %}{{ ns.a }}{{ y is defined }}{% set ns.c = 5 %}{{ ns.c }}{{ ns.zz is defined }}{{ ns['a'] }}", "{% set d.x = 1 %}", "{% set q.x = 1 %}",
    "{% for x in words %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% set x = 'out' %}{% for i in [1, 2] %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}{{ i }}{% if true %}{% set x = 'in' %}{% endif %}{{ x }}",
    "{% for c in 'é!' %}<{{ c }}>{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for x in undef %}{% else %}none{% endfor %}{% for x in l if x is string %}{{ loop.index }}{{ x }}{% else %}no{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}",
    "{% for a in [1, 2] %}{% for b in 'xy' %}{{ a }}{{ b }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{{ 'a' if yes }}{{ 'b' if no }}{{ 'c' if no else 'd' }}{{ 1 if no else 2 if no else 3 }}{{ ('x' if no else 'y') + 'z' }}{{ not no and yes or nil }}{{ e or 'f' }}{{ 0 and 1 }}{% if no %}1{% elif i %}2{% else %}3{% endif %}{% if no %}{% elif e %}{% else %}3{% endif %}",
    "a\n  {% if yes %}  \n b\n  {%- endif %}  \n\n c {#- note #}\n  {# x #}\n  {{ 1 }}\n{{ 2 -}}\n  3\n\t{%+ if yes +%}\n4{% endif %}\n\n", "{{ 'a\\n\\t\\\\\\'' }}{{ \"d'q\" }}\r\nline\rline", "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a':{'b':1}}.a.b}}",
    "\u00a0{%- if yes -%} \u2003x{% endif %}\x0b{{- i }}",
    # macros: defaults, keywords, the template's names but not the caller's, recursion
    "{% macro f(a, b='B', c=a) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(c=3, a=1) }}{{ f('x', b=none) }}{{ f() }}{{ f(undef, c=undef) }}",
    "{% macro f() %}[{{ x }}{{ y }}{{ loop }}]{% endmacro %}{% set x = 1 %}{{ f() }}{% for y in 'ab' %}{% set x = 2 %}{{ f() }}{{ x }}{{ y }}{% endfor %}{% set x = 3 %}{{ f() }}",
    "{% macro f(n) %}{% set x = n %}{{ x }}{% if n > 0 %}({{ f(n - 1) }}){% endif %}{{ x }}{% endmacro %}{{ f(3) }}{{ x is defined }}{{ f is defined }}{{ f(1) | length }}{{ f(0) ~ f(0) }}",
    "{% macro f(a) %}{% for x in a %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}{% endmacro %}{% macro g(a) %}{{ f(a) | upper }}!{% endmacro %}{{ g([1, 2, 'q']) }}",
    "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=1) }}", "{% macro f(a) %}{% endmacro %}{{ f(1, a=1) }}", "{{ f(1) }}{% macro f(a) %}{% endmacro %}",
    # block set, filter blocks, generation
    "{% set x %} a{{ i }}{% set y = 1 %} {% endset %}[{{ x }}]{{ y is defined }}{% set x | trim | upper %} {{ x }}b {% endset %}[{{ x }}]{% set ns = namespace() %}{% set ns.t %}t{{ i }}{% endset %}{{ ns.t }}",
    "{% filter upper | replace('B', 'x') %}ab{{ e }}{% set z = 1 %}{% endfilter %}{{ z is defined }}", "a{% generation %}b{% set z = 1 %}{{ i }}{% endgeneration %}c{{ z is defined }}",
    "{% for x in words %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% set t %}{{ x }}{{ loop.last }}{% endset %}{{ t }}{% endfor %}",
    # loops
    "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% if x == 3 %}{% break %}{% endif %};{% else %}none{% endfor %}.",
    "{% for x in [1, 2] %}{% for y in 'abc' %}{% if y == 'b' %}{% break %}{% endif %}{{ x }}{{ y }}{% endfor %}|{% for y in [] %}{% else %}{% if x == 1 %}{% continue %}{% endif %}e{% endfor %}{{ x }}{% endfor %}",
    "{% for x in 'abc' %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{{ loop.revindex }}{{ loop.revindex0 }} {% endfor %}{% for x in [1, 2, 3] if x != 2 %}{{ loop.previtem }}{{ x }}{{ loop.nextitem }}{{ loop.length }};{% endfor %}",
    "{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(2, 9, 3) %}{{ i }}{% endfor %}{% for i in range(3, 0, -1) %}{{ i }}{% endfor %}{{ range(4) | length }}{{ range(2) | list }}{{ 1 in range(2) }}{{ range(3) | join }}", "{{ range(1, 2, 0) | list }}",
    # printing, tuples, generators, views
    "{{ l }} {{ d }} {{ words }} {{ people }} {{ le }} {{ {} }} {{ [fl, big, one, yes, nil, -i] }} {{ [ctl, s] }} {{ ['a\"b', \"it's\", 'a\"\\'b', '\\\\'] }} {{ 'x' ~ [1] }} {{ [[]] | join }} {{ {1: 'a', 'b': [2]} }} {{ {1: 2}[1] }}",
    "{{ (1, 'a') }} {{ (1,) }} {{ () }} {{ (1, 2) == [1, 2] }} {{ (1, 2) == (1, 2) }} {{ (1, 2)[1] }} {{ (1, 2, 3)[1:] }} {{ (1,) + (2,) }} {{ 'a' in ('a', 'b') }} {{ (1, (2, [3])) | tojson }} {{ () | length }} {{ d.items() | list }} {{ d | items | list }} {{ (1, 2) is sequence }}", "{{ (1,) + [2] }}",
    "{% set g = l | select('string') %}{% if g %}yes{% endif %}{{ g | join }}|{{ g | join }}|{{ g | list }}{{ [] | map('upper') and 'true' }}{{ none | select('string') | list }}{{ undef | map('upper') | list }}{{ none | map('upper') | list }}", "{{ l | select('string') | length }}", "{{ l | reject('string') | tojson }}", "{{ d | items | length }}", "{{ d.items() | tojson }}", "{{ l | map('string') | last }}",
    "{{ d.keys() | list }} {{ d.values() | list }} {{ d.keys() | length }} {{ 'a' in d.keys() }} {% if {}.items() %}1{% else %}0{% endif %}{% for k in d.keys() %}{{ k }}{% endfor %}{% for v in d.values() %}{{ v }}{% endfor %}",
    # filters and tests
    "{{ words | first }}{{ words | last }}{{ 'abc' | first }}{{ 'äbc' | last }}{{ le | first }}{{ le | last }}.{{ d | first }}{{ l | map('string') | first }}{{ [] | first is defined }}", "{{ 5 | first }}",
    "{{ words | map('upper') | join(',') }} {{ people | map(attribute='n') | list }} {{ people | map(attribute='age', default='?') | list }} {{ people | map(attribute='age') | list | length }} {{ [1, none] | map('default', 'x', true) | list }} {{ [[1, 2], [3]] | map('join', '-') | list }} {{ [1, 2] | map('string') | list }} {{ words | map('replace', 'b', 'q') | list }}",
    "{{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ words | sort(reverse=true) }} {{ [3, 1, fl] | sort }} {{ people[::2] | sort(attribute='age') | map(attribute='n') | join }} {{ ['B', 'b', 'A', 'a'] | sort }} {{ ['B', 'b', 'A', 'a'] | sort(reverse=true) }}", "{{ l | sort }}", "{{ people | sort(attribute='age') }}",
    "{{ {'b': 1, 'A': 3, 'c': 2} | dictsort }} {{ {'b': 1, 'A': 3, 'c': 2} | dictsort(true) }} {{ {'b': 1, 'A': 3} | dictsort(reverse=true) }}{% for k, v in {'z': 1, 'y': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}",
    "{{ people | rejectattr('age') | map(attribute='n') | list }} {{ people | rejectattr('age', 'defined') | list }} {{ people | selectattr('n', 'in', ['a', 'c']) | map(attribute='n') | join }} {{ [1, 2, 3] | reject('==', 2) | list }} {{ [0, 1, '', 'a'] | select | list }} {{ people | selectattr('n', '==', 'b') | list }}",
    "{{ 'aBc dE' | upper }} {{ 'aBc ä' | lower }} {{ 'hello wORLD-foo (bar) [x] it\\'s a.b' | title }} {{ 'hELLO World' | capitalize }} {{ 'ab'.upper() }}{{ 'AB'.lower() }}{{ 'aB'.capitalize() }} {{ i | upper }} {{ none | lower }} {{ '漢字 ÉÖ' | upper }} {{ 'éж漢' | lower }} {{ true | lower }}",
    "{{ 'aXbXc' | replace('X', '-') }} {{ 'aXbXc' | replace('X', '-', 1) }} {{ 'aXbXc'.replace('X', '', 1) }} {{ 12321 | replace('2', 'x') }} {{ 'a' | replace('a', 1 | string) }}",
    "{{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.split(',', 0) }} {{ ' a  b c '.split() }} {{ ' a  b c '.split(none, 1) }} {{ ''.split() }} {{ 'a--b--c'.split('--', 1)[-1] }} {{ 'a b'.split(' ', 5) }} {{ s.split() }} {{ 'a b'.split(maxsplit=1) }}",
    "{{ ', '.join(words) }} {{ '-'.join('abc') }} {{ ''.join([]) }}", "{{ ','.join([1]) }}",
    "{{ '%s and %s' | format('a', 2) }} {{ '{} {}'.format('a', [1]) }} {{ 'é%sö' | format(none) }}", "{{ '%s' | format }}", "{{ '%s' | format(1, 2) }}", "{{ '{}'.format() }}",
    "{{ ctl | tojson(ensure_ascii=true) }} {{ 'é😀' | tojson(true) }} {{ d | tojson(indent=none) }} {{ d | tojson(indent=0) }} {{ d | tojson(indent=16) }} {{ {1: 2} | tojson }} {{ ('a' | safe) | tojson }}",
    "{{ ['b', 'A', 'a', 'B', 'c'] | unique | list }} {{ [1, 1, 2] | unique | join }} {{ [2, 3, 1] | min }}{{ [2, 3, 1] | max }} {{ ['b', 'A'] | min }} {{ [] | max }} {{ 7 | int }} {{ true | int }} {{ l | count }} {{ undef | d('w') }}",
    "{{ yes is boolean }}{{ 1 is boolean }}{{ 1 is number }}{{ yes is number }}{{ 's' is number }}{{ (l | map('string')) is iterable }}{{ (l | map('string')) is sequence }}{{ d.items() is iterable }}{{ d.items() is sequence }}{{ d.items() is mapping }}",
    "{{ dict(a=1, b='x') }} {{ dict() }} {{ dict(a=1).a }} {{ namespace(a=1).a }} {{ undef is not none }}{{ undef is none }}",
    "{{ 2 * 3 }} {{ 'ab' * 3 }}{{ 'ab' * -1 }} {{ 'a' < 'b' }} {{ 'a' >= 'ab' }} {{ 1 < fl }} {{ 1 + 2 * 3 }} {{ 3 % 2 * 2 }} {{ -2 * 3 }}", "{{ none < 1 }}", "{{ [1] < (1,) }}", "{{ 'a' * 'b' }}",
    "{{ 'a<' | safe + 'b<' }} {{ 'b<' + 'a<' | safe }} {{ 'a<' | safe ~ 'b<' }} {{ ('<' | safe) + ('<' | safe) + '>\\'\"&' }} {{ ['<' | safe, '>'] | join('&') }} {{ '<' | safe | string + '<' }} {{ 'x' + ('<' ~ '>') }}",
    "{{ le.append(1) }}", "{{ d.pop('a') }}", "{{ 'x'.items() }}",
]
# A filter that transformers has not: templates of llama.cpp's collection use it on a call's arguments. Its meaning is json.loads.
FROM_JSON = [
    "{{ '{\"b\": [1, 2.5, null, true], \"a\": {\"x\": \"é\\\\n\"}}' | from_json }}",
    "{% for k, v in (d | tojson | from_json).items() %}{{ k }}={{ v }};{% endfor %}{{ (l | tojson | from_json) == l }}{{ d | tojson | from_json | tojson }}",
    "{{ '[]' | from_json | length }}{{ '{}' | from_json is mapping }}{{ ' 7 ' | from_json + 1 }}{{ '\"t\"' | from_json ~ '!' }}{{ 'null' | from_json is none }}{{ 'true' | from_json is boolean }}",
    "{{ ('{\"a\": 1, \"a\": 2}' | from_json).a }}{{ '[\"\\\\u00e9\\\\ud83d\\\\ude00\"]' | from_json | first }}{{ ctl | tojson | from_json == ctl }}",
    "{{ '{\"a\": }' | from_json }}", "{{ '' | from_json }}", "{{ '[1] 2' | from_json }}", "{{ 5 | from_json }}", "{{ none | from_json }}", "{{ undef | from_json }}",
]
COMMON = {"tools": None, "documents": None,  # as render_jinja_template passes them
          "bos_token": "<s>", "eos_token": "</s>", "date_string": "26 Jul 2024"}


def compiled(template):
    environment = _compile_jinja_template("").environment.overlay()
    environment.filters = {**environment.filters, "from_json": json.loads}
    return environment.from_string(template)


def render(template, variables, compile=_compile_jinja_template):
    """("text", …), ("error", message of raise_exception) or ("error", None)."""
    try:
        return {"text": compile(template).render(**{**COMMON, **variables})}
    except jinja2.exceptions.TemplateError as e:
        return {"error": e.message if type(e) is jinja2.exceptions.TemplateError else None}
    except (TypeError, ValueError, KeyError, OverflowError, ZeroDivisionError, AttributeError, IndexError):
        return {"error": None}


def main():
    out = {"tool": f"jinja2 {jinja2.__version__}, environment of transformers", "common": COMMON,
           "conversations": CONVERSATIONS, "renderings": {}}
    for path in sorted(HERE.glob("*.jinja")):
        out["renderings"][path.name] = {
            name: render(path.read_text(), variables) for name, variables in CONVERSATIONS.items()}
    out["variables"] = VARIABLES
    out["snippets"] = [{"template": t, **render(t, VARIABLES)} for t in SNIPPETS]
    out["snippets"] += [{"template": t, **render(t, VARIABLES, compiled)} for t in FROM_JSON]
    (HERE / "renderings.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
