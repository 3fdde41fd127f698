"""Checks of a server with lm-eval's client of chats: `python lm_eval_chat_client.py URL`."""

import json
import sys

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion

harness = LocalChatCompletion(model="weft/demo", base_url=f"{sys.argv[1]}/v1/chat/completions", max_retries=1)
chat = harness.apply_chat_template([{"role": "user", "content": "Count to five."}])
whole, stopped = harness.generate_until([
    Instance("generate_until", {}, (chat, {"until": until, "max_gen_toks": 40, "temperature": 0}), index)
    for index, until in enumerate((["\n"], ["4"]))])
assert (whole, stopped) == ("1, 2, 3, 4, 5.", "1, 2, 3, "), (whole, stopped)
sys.stdout.write(json.dumps([whole, stopped]))
