"""Checks of a server with guidellm, a load generator: `python guidellm_client.py URL FOLDER`. The folder has the
model's tokenizer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

URL, TOKENIZER_FOLDER = sys.argv[1:]
NUM_REQUESTS, NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS = 3, 32, 8


def run_benchmark(request_format: str, backend_options: str = "") -> dict[str, Any]:
    """Send requests one after the other, in streams; return what guidellm reports of them."""
    subprocess.run([
        sys.executable, "-m", "guidellm", "run", "--disable-console",
        "--backend", f"kind=openai_http,target={URL},request_format={request_format}{backend_options}",
        "--tokenizer", f"kind=hf_auto,model={TOKENIZER_FOLDER}",
        "--data", f"kind=synthetic_text,prompt_tokens={NUM_PROMPT_TOKENS},output_tokens={NUM_OUTPUT_TOKENS}",
        "--profile", "kind=synchronous", "--constraint", f"kind=max_requests,count={NUM_REQUESTS}",
        "--output", "kind=json,path=report.json"], check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    [benchmark] = json.loads(Path("report.json").read_text())["benchmarks"]
    return benchmark["requests"]


for request_format in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
    requests = run_benchmark(request_format)
    assert (len(requests["successful"]), len(requests["errored"])) == (NUM_REQUESTS, 0)
    for request in requests["successful"]:
        assert (request["output_tokens"], bool(request["output"])) == (NUM_OUTPUT_TOKENS, True)
        assert request["prompt_tokens"] >= NUM_PROMPT_TOKENS
        assert 0 < request["time_to_first_token_ms"] < request["request_latency"] * 1000
    sys.stdout.write(f"guidellm: {request_format}\n")
# Of a refusal the client reports the status only.
refused = run_benchmark("/v1/chat/completions", ",extras.body.temperature=-1")["errored"]
assert ["Client error '400 Bad Request'" in request["info"]["error"] for request in refused] == [True] * NUM_REQUESTS
sys.stdout.write("guidellm: a refusal\n")
