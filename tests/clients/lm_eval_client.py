"""Checks of a server with lm-eval's client of completions: `python lm_eval_client.py URL FOLDER`.

The folder holds a model's tokenizer, and `pairs.json` with pairs of a context and its continuation. Writes
`loglikelihoods.json` with what the harness computes for each pair: the loglikelihood, and whether it is greedy."""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

url, folder = sys.argv[1], Path(sys.argv[2])
harness = LocalCompletionsAPI(model="weft", base_url=f"{url}/v1/completions", tokenizer=str(folder),
                              tokenizer_backend="huggingface", tokenized_requests=True, batch_size=4, max_retries=1)
pairs = json.loads((folder / "pairs.json").read_text())
requests = [Instance("loglikelihood", {}, (context, continuation), index)
            for index, (context, continuation) in enumerate(pairs)]
(folder / "loglikelihoods.json").write_text(json.dumps(harness.loglikelihood(requests)))

[answer] = harness.generate_until([Instance("generate_until", {}, (
    "the cat", {"until": ["\n"], "max_gen_toks": 4, "temperature": 0}), 0)])
assert isinstance(answer, str)
assert "\n" not in answer
