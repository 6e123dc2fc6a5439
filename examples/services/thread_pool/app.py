"""A plain pool of threads: each job's request is a child of the span in which the job was given.

python app.py
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from opentelemetry import trace
from service_model import load

import inferspan

model, tokenizer = load()
inferspan.instrument(model, tokenizer)


def answer(prompt: str) -> str:
    """Generate on a thread of the pool."""
    output = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=8, do_sample=False)
    return str(tokenizer.decode(output[0]))


if __name__ == "__main__":
    tracer = trace.get_tracer("app")
    with ThreadPoolExecutor(4) as pool:
        jobs = []
        for number in range(4):
            with tracer.start_as_current_span(f"job {number}"):
                jobs.append(pool.submit(answer, f"question {number}"))
        print(len([job.result() for job in jobs]), "answers")
