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
