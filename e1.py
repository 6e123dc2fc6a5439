from t3 import *
from t3 import case
INS="model,tok=load()\nh=inferspan.instrument(model,tok)\n"
k,o=case("threads",INS+"""
from concurrent.futures import ThreadPoolExecutor
from opentelemetry import trace
t=trace.get_tracer('me')
ok=[]
with ThreadPoolExecutor(8) as ex:
    for i in range(20):
        with t.start_as_current_span(f'job') as s:
            ex.submit(gen)
""")
ids={s["id"]:s for s in k.spans}
kids=collections.Counter(s["parent"] for s in k.spans)
for s in k.spans:
    if s["name"]=="text_completion":
        print(ids.get(s["parent"],{}).get("name"),kids[s["id"]],s["status"],s["attrs"] if kids[s["id"]]!=2 else "", {a:b for a,b in s["attrs"].items() if "unobs" in a})
