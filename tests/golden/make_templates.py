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
    "tools given as none": dict(messages=[user("Hi")], tools=None, add_generation_prompt=True),
}
# Python's and Jinja's meaning in small: each is rendered with VARIABLES.
VARIABLES = {"d": {"a": 1, "b": "x", "Ä": [1, 2]}, "s": "  Straße aXbXc 漢字😀\n", "e": "", "i": 7, "neg": -3, "fl": 2.5,
             "big": 1e22, "small": 1e-7, "yes": True, "no": False, "nil": None, "le": [], "words": ["b", "A", "c d"],
             "l": [3, 1, "q", [1, {"k": None}], None, True, "it's", "\"'\t\u200b"],
             "people": [{"n": "a", "age": 3}, {"n": "b"}, {"n": "c", "age": 0}]}
SNIPPETS = [
    "{{ l }}|{{ d }}|{{ (1,) }}|{{ ('a', 2) }}|{{ {'x': none} }}", "{{ true }} {{ none }} {{ 1.0 }} {{ 2.50 }} {{ big }} {{ small }} {{ 1e15 }}",
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2.5 % 2 }} {{ -fl // 1 }} {{ -neg }} {{ +yes }}",
    "{{ 1 + 2 * 3 - 4 }} {{ 1 ~ 2 + 3 }} {{ 'a' ~ none ~ 1.5 }} {{ 'ab' * 3 }} {{ [1] + [2] }} {{ 2 - -2 }}",
    "{{ 1 == 1.0 }} {{ 1 == true }} {{ '1' == 1 }} {{ [1, 2] == [1, 2] }} {{ {'a': 1} == d }} {{ (1,) == [1] }} {{ nil == no }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ 2 >= 2 }} {{ 'Z' > 'a' }} {{ not 1 == 2 }}", "{{ 1 < 'a' }}", "{{ 1 + 'a' }}", "{{ 'a' + none }}",
    "{{ 'a' in d }} {{ 'a' not in words }} {{ 1 in l }} {{ 'X' in s }} {{ 'x' in undef }} {{ '' in e }}", "{{ 1 in 'x' }}", "{{ 1 in none }}",
    "{{ s[2] }}|{{ s[-2] }}|{{ s[2:8] }}|{{ s[::-1] }}|{{ s[-4:-1] }}|{{ s[:99] }}|{{ s[99] }}|{{ l[::2] }}|{{ l[5:1:-2] }}|{{ l[-1:] }}|{{ l[9] }}",
    "{{ s | length }} {{ s | trim }}. {{ s | upper }} {{ 'ÀÉ' | lower }} {{ 'hELLO wORLD' | capitalize }} {{ \"it's a-b c\" | title }} {{ \"it's a-b c\".title() }}".replace("{{ s | upper }}", "{{ 'aé' | upper }}"),
    "{{ s.split('X') }} {{ s.split() }} {{ ' a b  c '.split(none, 1) }} {{ 'a,b,c'.split(',', 1) }} {{ ''.split() }} {{ ''.split(',') }}", "{{ 'a'.split('') }}",
    "{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ 'xxaxyx'.strip('xy') }}|{{ 'xax'.rstrip('x') }}|{{ 'aXbX' | replace('X', 'é', 1) }}|{{ 'aXbX'.replace('X', '') }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.startswith('') }}",
    "{{ d.get('a') }} {{ d.get('z') }} {{ d.get('z', 'w') }} {{ d.keys() | list }} {{ d.values() | list }} {{ d.items() | list }} {{ d | items | list }} {{ d | dictsort }}",
    "{{ d.a }}{{ d['b'] }}{{ d.nope }}{{ nil.x }}{{ i.x }}{{ s.x }}{{ l[0] }}{{ l.0 }}{{ d[0] }}{{ d['x']['y'] if d.x else '-' }}", "{{ undef.x }}", "{{ d.x.y }}", "{{ d['x']['y'] }}", "{{ undef['x'] }}", "{{ undef + 'a' }}", "{{ undef.strip() }}",
    "{{ undef }}[{{ undef | length }}{{ undef | trim }}{{ undef | list }}{{ undef | upper }}{{ undef | join }}{{ undef == undef2 }}{{ undef ~ 'x' }}]", "{{ undef | tojson }}", "{{ undef < 1 }}", "{{ -undef }}", "{{ none | length }}", "{{ 5 | length }}",
    "{{ undef | default('w') }} {{ e | default('w') }} {{ e | default('w', true) }} {{ none | d('w') }} {{ none | d('w', boolean=true) }} {{ undef | default }}",
    "{{ l | tojson }} {{ d | tojson(indent=2) }} {{ le | tojson(indent=2) }} {{ {} | tojson(indent=4) }} {{ '<é😀\\u0001\x7f/>' | tojson }} {{ 'é😀' | tojson(true) }} {{ 1.0 | tojson }} {{ d | tojson(separators=(',', ':')) }} {{ d | tojson(sort_keys=true, indent=1) }}",
    "{{ words | join }} {{ words | join(', ') }} {{ people | join('-', attribute='n') }} {{ [1, none, true] | join('|') }} {{ 'abc' | join('.') }}",
    "{{ people | selectattr('age') | list | length }} {{ people | selectattr('age', 'defined') | map(attribute='n') | list }} {{ people | rejectattr('age', 'eq', 3) | list }} {{ [0, 1, 'x'] | select | list }} {{ l | reject('none') | list | length }} {{ words | map('upper') | join }} {{ people | map(attribute='age', default=9) | list }} {{ [1,2,3] | select('gt', 1) | list }}",
    "{{ none | select | list }} {% if le | select('string') %}always{% endif %}", "{{ words | select | length }}", "{{ words | map('upper') | tojson }}",
    "{{ words | first }} {{ words | last }} {{ le | first }} {{ 'é!' | first }} {{ d | list }} {{ d | first }} {{ 'ab' | list }} {{ '42' | int + 1 }} {{ 'x' | int }} {{ '3.9' | int }} {{ 'x' | int(5) }} {{ '2.5' | float }} {{ 3 | float }} {{ 3.9 | int }} {{ 3 | string ~ 4 | string }}",
    "{{ i is defined }}{{ undef is defined }}{{ undef is undefined }}{{ nil is none }}{{ s is string }}{{ d is mapping }}{{ l is mapping }}{{ s is iterable }}{{ i is iterable }}{{ l is sequence }}{{ d is sequence }}{{ yes is number }}{{ i is integer }}{{ yes is integer }}{{ fl is float }}{{ no is boolean }}{{ no is false }}{{ 1 is true }}{{ 3 is odd }}{{ 4 is even }}{{ i is eq 7 }}{{ i is equalto(7) }}{{ 'a' is in d }}{{ i is not none }}{{ not i is none }}{{ i is gt 3 and i is lt 9 }}{{ i is ne 7 }}",
    "{{ raise_exception is defined }} {{ strftime_now is defined }} {{ nothing_here is defined }} {{ namespace is defined }}",
    "{% set ns = namespace(a=1, b='x') %}{% for x in words %}{% set ns.a = ns.a + loop.index %}{% set y = x %}{% endfor %}{{ ns.a }}{{ y is defined }}{% set ns.c = 5 %}{{ ns.c }}{{ ns.zz is defined }}{{ ns['a'] }}", "{% set d.x = 1 %}", "{% set q.x = 1 %}",
    "{% for x in words %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}>{{ loop.nextitem }} {% endfor %}",
    "{% set x = 'out' %}{% for i in [1, 2] %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}{{ i }}{% if true %}{% set x = 'in' %}{% endif %}{{ x }}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for c in 'é!' %}<{{ c }}>{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for x in undef %}{% else %}none{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}",
    "{% for a in [1,2,3] %}{% for b in 'xy' %}{% if b == 'y' %}{% continue %}{% endif %}{{ a }}{{ b }}{{ loop.index }}{% endfor %}{{ loop.index }}{% if a == 2 %}{% break %}{% endif %}{% else %}no{% endfor %}",
    "{% for x in range(3) %}{{ x }}{% endfor %}{{ range(2, 9, 3) | list }}{{ range(3, 0, -1) | list }}{{ range(0) | list }}", "{{ range(1, 2, 0) }}", "{{ range(1000000000) | length }}",
    "{% macro f(a, b='B', c=a) %}{{ a }}{{ b }}{{ c }}{{ i }}{{ g }}{% endmacro %}{{ f(1) }} {{ f(1, 2) }} {{ f('x', c=3) }} {{ f() }} {% set r = f(9) %}{{ r | length }}{% set g = 8 %}{{ f(1) }}", "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}{% set t = 1, %}{{ t }}{% set x %} in {{ a }} {% endset %}[{{ x }}]{% set x | trim | upper %} in {{ a }} {% endset %}[{{ x }}]",
    "{{ 'a' if yes }}{{ 'b' if no }}{{ 'c' if no else 'd' }}{{ 1 if no else 2 if no else 3 }}{{ ('x' if no else 'y') + 'z' }}{{ not no and yes or nil }}{{ e or 'f' }}{{ 0 and 1 }}",
    "a\n  {% if yes %}  \n b\n  {%- endif %}  \n\n c {#- note #}\n  {# x #}\n  {{ 1 }}\n{{ 2 -}}\n  3\n\t{%+ if yes +%}\n4{% endif %}\n\n", "x {%- raw %} {{ a }} {% endraw -%} \n y", "  {% raw %}\n {% endraw %}\nz", "{{ 'a\\n\\t\\\\\\x41\\u00e9\\q' }}{{ \"d'q\" 'joined' }}\r\nline\rline", "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a':{'b':1}}}}",
    "\u00a0{%- if yes -%} \u2003x{% endif %}\x0b{{- i }}", "{{ 1 / 0 }}", "{{ l | safe }}{{ 'a' | safe + ('b' | safe) }}", "{% generation %}a{% set q = 1 %}{% endgeneration %}{{ q }}",
    "{{ 'x' | trim | upper ~ 'y' | upper }} {{ s is string and i is number }} {{ -i | string }} {{ (1, 2) | length }} {{ words[0].upper()[0] | lower }} {{ (-1) | string }} {{ 1.5 | string }}",
]
COMMON = {"bos_token": "<s>", "eos_token": "</s>", "date_string": "26 Jul 2024"}


def render(template, variables):
    """("text", …), ("error", message of raise_exception) or ("error", None)."""
    try:
        return {"text": _compile_jinja_template(template).render(**COMMON, **variables)}
    except jinja2.exceptions.TemplateError as e:
        return {"error": e.message if type(e) is jinja2.exceptions.TemplateError else None}
    except (TypeError, ValueError, KeyError, OverflowError, ZeroDivisionError, AttributeError):
        return {"error": None}


def main():
    out = {"tool": f"jinja2 {jinja2.__version__}, environment of transformers", "common": COMMON,
           "conversations": CONVERSATIONS, "renderings": {}}
    for path in sorted(HERE.glob("*.jinja")):
        out["renderings"][path.name] = {
            name: render(path.read_text(), variables) for name, variables in CONVERSATIONS.items()}
    out["variables"] = VARIABLES
    out["snippets"] = [{"template": t, **render(t, VARIABLES)} for t in SNIPPETS]
    (HERE / "renderings.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
