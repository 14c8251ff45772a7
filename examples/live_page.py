"""A web page that shows a table and updates itself, by server-sent events."""

import json
import tempfile
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

import kvstore
from kvstore.errors import StoreClosed

PAGE = b"""<!doctype html><title>Scores</title><ul id="list"></ul><script>
const list = document.getElementById("list"), events = new EventSource("/events");
events.onopen = () => { list.innerHTML = ""; };  // it begins with all rows, also after a lost connection
events.onmessage = (event) => {
  const change = JSON.parse(event.data), old = document.getElementById(change.name);
  if (old) old.remove();
  if (change.kind === "delete") return;
  list.appendChild(Object.assign(document.createElement("li"), {id: change.name}));
  list.lastChild.textContent = change.name + ": " + change.score;
};</script>"""

store = kvstore.open(tempfile.mkdtemp())
scores = store.create_table("scores", {"name": "string", "score": "int64"}, primary_key="name")


class Pages(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        events = self.path == "/events"
        self.send_header("Content-Type", "text/event-stream" if events else "text/html")
        self.end_headers()
        self.wfile.write(b"" if events else PAGE)
        with suppress(OSError, StoreClosed):  # the browser has gone, or the store
            for batch in scores.changelog("full", follow=True) if events else ():
                for change in batch.to_pylist():
                    data = {"kind": change["_change_type"], "name": change["name"], "score": change["score"]}
                    self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())


server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)  # a port of your own in place of 0
threading.Thread(target=server.serve_forever, daemon=True).start()

# What a browser does, for a test:
scores.upsert({"name": "ana", "score": 1})
with urlopen(f"http://127.0.0.1:{server.server_port}/") as page:
    assert b"EventSource" in page.read()
with urlopen(f"http://127.0.0.1:{server.server_port}/events") as events:
    assert json.loads(events.readline()[6:]) == {"kind": "insert", "name": "ana", "score": 1}
    scores.upsert({"name": "ana", "score": 2})
    events.readline()
    kinds = []
    while kinds != ["update_preimage", "update_postimage"]:
        line = events.readline().strip()
        kinds += [json.loads(line[6:])["kind"]] if line else []
    store.close()
server.shutdown()
server.server_close()
