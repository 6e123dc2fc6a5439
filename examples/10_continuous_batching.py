"""Continuous batching: three users' requests share the steps of one loop, and each has a trace with its time in the queue."""

from concurrent.futures import ThreadPoolExecutor

from models import load
from transformers import ContinuousBatchingConfig, GenerationConfig

import inferspan
from inferspan.report.session import read_session

model, tokenizer = load()
prompts = ["The capital of France is", "Two and two are", "Once upon a time"]
# Without a bound the cache takes most of the machine's memory; two places in the batch let the third request wait.
loop = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=128, page_size=16, max_requests_per_batch=2)

with inferspan.instrument(model, session_file="batching.otlp.jsonl"):
    manager = model.init_continuous_batching(GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=0), loop)

    def ask(number: int) -> None:
        """One user's request."""
        with inferspan.context(user_id=f"user {number}"):
            manager.add_request(tokenizer(prompts[number])["input_ids"], request_id=f"request {number}")

    with ThreadPoolExecutor(3) as users:
        list(users.map(ask, range(3)))
    manager.start()
    results = [manager.get_result(timeout=60) for _ in prompts]
    manager.stop(block=True)

for result in sorted(results, key=lambda result: result.request_id):
    print(f"{result.request_id}: {tokenizer.decode(result.generated_tokens)!r}")

inferspan.flush()
session = read_session("batching.otlp.jsonl")
for request in sorted(session.requests, key=lambda request: str(request.text("gen_ai.response.id"))):
    queue, first = request.number("inferspan.time_in_queue"), request.number("inferspan.time_to_first_token")
    print(
        f"{request.text('gen_ai.response.id')} of {request.text('user.id')}: "
        f"{request.number('gen_ai.usage.output_tokens')} tokens, queue {queue:.3f} s, first token {first:.3f} s"
    )
steps = [step for batch in session.batches for step in batch.children]
print("requests in the steps:", sorted({len(step.links) for step in steps}))
