"""An OpenAI-compatible server over the tiny pair, in this process and on the loopback only."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cactus_runtime import Decoder, Request, SamplingParams
from cactus_theory import SpeculativeSampling

PLAIN = SpeculativeSampling()


@contextmanager
def serving(pair, *, rule=PLAIN, ids=True, temperature=None, name="tiny"):
    """The URL of a server, and the requests that it has got."""
    decoder, lock, asked = Decoder(pair), threading.Lock(), []

    class Handler(BaseHTTPRequestHandler):
        def answer(self, data, status=200):
            body = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.answer({"data": [{"id": name}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body)
            with lock:  # a decoder is used by one thread at a time
                hot = body["temperature"] if temperature is None else temperature
                result = decoder.stream(
                    Request(
                        body["prompt"],
                        rule=rule,
                        num_draft_tokens=3,
                        sampling=SamplingParams(temperature=hot),
                        max_new_tokens=body["max_tokens"],
                        seed=body["seed"],
                        eos_token_id=(),
                    )
                ).finish()
            text = pair.tokenizer.decode(result.tokens, clean_up_tokenization_spaces=False)
            given = {"token_ids": list(result.tokens)} if ids else {}
            self.answer({"choices": [{"text": text, **given}]})

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
