"""An engine that is not torch: a loop over ONNX Runtime has the same request, phases, steps and statistics of logits."""

import numpy
import onnxruntime
from onnx_model import write

import inferspan
from inferspan.report.session import read_session
from inferspan.report.terminal import summary

PROMPT = [7, 1, 12, 3]
TOKENS = 5
write("tiny.onnx")
engine = onnxruntime.InferenceSession("tiny.onnx", providers=["CPUExecutionProvider"])

ids = numpy.array([PROMPT], numpy.int64)
options = {"session_file": "onnx.otlp.jsonl", "provider_name": "onnxruntime"}
with inferspan.generation("tiny.onnx", input_tokens=ids, max_new_tokens=TOKENS, **options) as g:
    for step in range(TOKENS):
        with g.step(inputs=ids) if step else g.prefill(inputs=ids):
            (logits,) = engine.run(["logits"], {"ids": ids})
        token = int(logits[0, -1].argmax())
        g.token(logits, token)
        ids = numpy.append(ids, [[token]], axis=1)
    g.finish("length")

inferspan.flush()
session = read_session("onnx.otlp.jsonl")
print(summary(session))
request = session.requests[-1]
print(request.span.name, "->", *[phase.name for phase in request.phases], f"({len(request.steps)} steps)")
for one in request.steps:
    print(f"entropy {one.attributes['inferspan.logits.entropy']:.3f}", *one.attributes["inferspan.input.shapes"])
